//! The pages of errors list every sentence that the sources can put into an error or a warning, with its cause and the next step.
//!
//! A sentence is any string literal of two words or more. Left out are tests, messages of panics, log lines below a warning, and the
//! constants in [`ELSEWHERE`].

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use litrs::StringLit;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The pages, and the sources that they cover: all of the plugin but `topology`, which explains devices in log lines of level info and in
/// docs/topology.md; the group library; and the command, whose findings and behaviours have docs/doctor.md and docs/conform.md.
const PAGES: &[(&str, Which, &[&str])] = &[
    (
        "docs/errors.md",
        Which::All,
        &[
            "src",
            "crates/counters/src",
            "crates/fabric/src",
            "crates/gpu/src",
            "crates/libfabric-sys/src",
            "crates/proto/src",
        ],
    ),
    (
        "docs/group-errors.md",
        Which::All,
        &[
            "crates/group/src",
            "crates/group-arrow/src",
            "crates/net-loader/src",
            "crates/python/src",
        ],
    ),
    ("docs/cli-errors.md", Which::Errors, &["crates/cli/src"]),
];

/// Which string literals of a source are sentences.
#[derive(Clone, Copy)]
enum Which {
    /// Any.
    All,
    /// Those in the arguments of [`ERRORS`] and in [`LOUD`] macros: most text of the command is not an error.
    Errors,
}

/// Constructors of errors, and a call that prints one.
const ERRORS: &[&str] = &[
    "Bootstrap",
    "Contract",
    "Err",
    "Load",
    "System",
    "Usage",
    "print_error",
    "print_error_apart",
    "unusable",
    "usage",
];

/// Constants that are not sentences: reasons, from which docs/configuration.md and docs/providers.md are generated, or which the log has at
/// debug level only; and the message of a panic.
const ELSEWHERE: &[(&str, &str)] = &[
    ("crates/fabric/src/provider.rs", "PROVIDER_OPTIONS"),
    ("src/plugin/arrival.rs", "ROWS"),
    ("src/plugin/arrival.rs", "REASONS"),
    ("src/plugin/environment.rs", "PROVIDER_VARIABLES"),
    ("src/plugin/options.rs", "ARRIVAL_QUEUES"),
    ("src/plugin/options.rs", "LARGEST_WRITES"),
    ("src/plugin/selection.rs", "REFUSED"),
    ("src/plugin/config/value.rs", "MISMATCH"),
];

/// Calls and macros whose text users do not see, or not as a warning. A panic's message is part of "a bug in Ironrail".
const UNSEEN: &[&str] = &[
    "asm",
    "assert",
    "assert_eq",
    "assert_ne",
    "debug",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "expect",
    "info",
    "panic",
    "point", // fault::point, a place where tests can cause a panic
    "trace",
    "unreachable",
];

/// Macros whose text is listed if it has one word.
const LOUD: &[&str] = &["error", "warn"];

/// The last part of a page: phrases that need no cause.
const PARTS: &str = "\n## Parts of sentences\n";

#[test]
fn the_pages_of_errors_have_every_sentence_and_no_other() {
    for (page, which, roots) in PAGES {
        let sources = roots.iter().flat_map(|root| files(Path::new(root)));
        let in_sources: BTreeSet<String> =
            sources.flat_map(|path| of_file(&path, *which)).collect();
        let text = read_page(page);
        let on_page: BTreeSet<String> =
            text.lines().filter_map(listed).map(str::to_owned).collect();
        let missing: Vec<_> = in_sources.difference(&on_page).collect();
        assert!(missing.is_empty(), "{page} lacks {missing:#?}");
        let gone: Vec<_> = on_page.difference(&in_sources).collect();
        assert!(gone.is_empty(), "{page} has what no source says: {gone:#?}");
    }
}

#[test]
fn every_sentence_is_once_on_its_page_and_has_a_cause_and_a_next_step() {
    for (page, ..) in PAGES {
        let text = read_page(page);
        let mut seen = BTreeSet::new();
        for sentence in text.lines().filter_map(listed) {
            assert!(seen.insert(sentence), "{page} has twice: {sentence}");
        }
        let (explained, _) = text.split_once(PARTS).expect("a page ends with the parts");
        for block in explained.split("\n\n").filter(|block| block.starts_with("- `")) {
            for name in ["  Cause: ", "  Next: "] {
                let found = block.lines().find_map(|line| line.strip_prefix(name));
                assert!(found.is_some_and(|text| text.len() > 4), "{page}: no{name}for\n{block}");
            }
            let known = |line: &&str| {
                listed(line).is_some()
                    || line.starts_with("  Cause: ")
                    || line.starts_with("  Next: ")
            };
            let unknown = block.lines().find(|line| !known(line));
            assert_eq!(unknown, None, "{page}, in\n{block}");
        }
    }
}

#[test]
fn a_sentence_is_found_wherever_it_stands() {
    let source = r##"
        //! No sentence.
        #![doc = "No sentence."]
        /// No sentence.
        #[allow(dead_code, reason = "no sentence")]
        const PROVIDER_VARIABLES: &str = "a reason";
        const OTHER: &str = "a constant";
        fn f(x: u32) -> Option<&'static str> {
            log::warn!("one: {}", x);
            log::error!(r#"raw "text" {x}"#);
            log::info!("no sentence");
            assert!(x > 1, "no sentence");
            maybe().expect("no sentence");
            let named = ["word", "{x} word", "{x}: {x}"];
            g(|| match x { 1 => format!("in a \
                macro"), _ => "in a match".into() });
            None
        }
        #[cfg(test)]
        mod tests { const NONE: &str = "no sentence"; }
        fn behind() -> &'static str { "behind tests" }
    "##;
    let found = sentences(source, &["PROVIDER_VARIABLES"]);
    let expected =
        ["a constant", "one: {}", "raw \"text\" {x}", "in a macro", "in a match", "behind tests"];
    assert_eq!(found, expected);
}

#[test]
fn a_sentence_of_the_command_is_found_in_an_error_only() {
    let source = r#"
        const OTHER: &str = "no sentence";
        fn f(x: u32) -> Result<(), GroupError> {
            print("no sentence");
            if x > 1 { return Err(GroupError::Usage(format!("in an {x} error"))); }
            output::print_error("in a call");
            g().map_err(|error| GroupError::System { what: "in a struct", error })?;
            log::warn!("in a warning");
            Ok(())
        }
        #[cfg(test)]
        mod tests { fn none() { Err("no sentence") } }
    "#;
    let expected = ["in an {x} error", "in a call", "in a struct", "in a warning"];
    assert_eq!(sentences_of_errors(source), expected);
}

/// The sentence of a line of a page. One that contains a backtick is between two of them, as in Markdown.
fn listed(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("- `")?;
    match rest.strip_prefix("` ") {
        Some(rest) => rest.strip_suffix(" ``"),
        None => rest.strip_suffix('`'),
    }
}

fn of_file(path: &Path, which: Which) -> Vec<String> {
    let tables: Vec<_> = ELSEWHERE
        .iter()
        .filter(|(file, _)| path.ends_with(file))
        .map(|(_, table)| *table)
        .collect();
    let text = fs::read_to_string(path).expect("a source is text");
    match which {
        Which::All => sentences(&text, &tables),
        Which::Errors => sentences_of_errors(&text),
    }
}

/// The sentences in the arguments of [`ERRORS`] and in [`LOUD`] macros.
fn sentences_of_errors(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    find_errors(text.parse().expect("a source is Rust"), &mut found);
    found
}

fn find_errors(tokens: TokenStream, found: &mut Vec<String>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut rest = &tokens[..];
    while let [first, behind @ ..] = rest {
        rest = behind;
        match first {
            TokenTree::Punct(punct) if punct.as_char() == '#' => rest = past_attribute(behind),
            TokenTree::Ident(name) => {
                let (names, arguments) =
                    if is(behind.first(), '!') { (LOUD, &behind[1..]) } else { (ERRORS, behind) };
                if names.contains(&name.to_string().as_str())
                    && let [TokenTree::Group(group), behind @ ..] = arguments
                {
                    read(group.stream(), &[], 2, found);
                    rest = behind;
                }
            }
            TokenTree::Group(group) => find_errors(group.stream(), found),
            _ => {}
        }
    }
}

/// The sentences of a source, without those of some constants.
fn sentences(text: &str, tables: &[&str]) -> Vec<String> {
    let tokens: TokenStream = text.parse().expect("a source is Rust");
    let mut found = Vec::new();
    read(tokens, tables, 2, &mut found);
    found
}

/// Adds the literals of `words` words and more.
fn read(tokens: TokenStream, tables: &[&str], words: usize, found: &mut Vec<String>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut rest = &tokens[..];
    while let [first, behind @ ..] = rest {
        rest = behind;
        match first {
            TokenTree::Punct(punct) if punct.as_char() == '#' => rest = past_attribute(behind),
            TokenTree::Ident(name) => {
                let name = name.to_string();
                let arguments = match behind {
                    [TokenTree::Punct(bang), TokenTree::Group(group), ..]
                        if bang.as_char() == '!' =>
                    {
                        Some((2, group))
                    }
                    [TokenTree::Group(group), ..] => Some((1, group)),
                    _ => None,
                };
                if let Some((len, group)) = arguments {
                    if UNSEEN.contains(&name.as_str()) {
                        rest = &behind[len..];
                    } else if len == 2 && LOUD.contains(&name.as_str()) {
                        read(group.stream(), tables, 1, found);
                        rest = &behind[len..];
                    }
                } else if tables.contains(&name.as_str()) && is(behind.first(), ':') {
                    let end = behind.iter().position(|token| is(Some(token), ';'));
                    rest = &behind[end.expect("a constant ends")..];
                }
            }
            TokenTree::Group(group) => read(group.stream(), tables, words, found),
            TokenTree::Literal(literal) => {
                if let Ok(text) = StringLit::try_from(literal)
                    && words_of(text.value()) >= words
                {
                    found.push(text.value().trim().to_owned());
                }
            }
            TokenTree::Punct(_) => {}
        }
    }
}

/// What follows an attribute, or its item if that is for tests only.
fn past_attribute(tokens: &[TokenTree]) -> &[TokenTree] {
    let tokens = if is(tokens.first(), '!') { &tokens[1..] } else { tokens };
    let [TokenTree::Group(attribute), behind @ ..] = tokens else { return tokens };
    let text = attribute.stream().to_string().replace(' ', "");
    if text != "cfg(test)" && text != "test" {
        return behind;
    }
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        // A comma ends a field.
        other => is(Some(other), ';') || is(Some(other), ','),
    };
    let end = behind.iter().position(ends).expect("an item ends");
    &behind[end + 1..]
}

fn is(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

/// The number of words, without what is between braces.
fn words_of(text: &str) -> usize {
    let outside =
        text.split('{').map(|piece| piece.split_once('}').map_or(piece, |(_, rest)| rest));
    let outside = outside.collect::<Vec<_>>().join("-");
    outside.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic)).count()
}

/// The source files below a folder, without tests.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for entry in fs::read_dir(root.join(folder)).expect("the folder is there") {
        let path = entry.expect("the entry is readable").path();
        if path.file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read_page(page: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    fs::read_to_string(path).expect("the page is there")
}
