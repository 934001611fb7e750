//! Broken plugins: each fault fails the behaviours that it concerns, and leaves another one passing.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Command;

use super::faults::{CHAPTERS, Fault, HARMLESS};
use super::{conform, ended, give_gpus, ids, reference, set, support};

/// How the detection of this fault failed. Empty if it did not.
fn missed(fault: &Fault) -> String {
    let (code, lines, errors) = ended(command(fault));
    let passed = set(&[fault.spares].into_iter().filter(|id| !id.is_empty()).collect::<Vec<_>>());
    let failed = set(fault.found_by);
    let right = code == i32::from(!failed.is_empty())
        && ids(&lines, "FAIL") == failed
        && ids(&lines, "pass") == passed;
    if right { String::new() } else { format!("{}: code {code}\n{lines}{errors}", fault.words) }
}

/// `conform` over the plugin with this fault: what finds it, and what it spares.
fn command(fault: &Fault) -> Command {
    let mut chosen = fault.found_by.to_vec();
    chosen.extend(Some(fault.spares).filter(|spares| !spares.is_empty()));
    let Fault { table, arguments, .. } = fault;
    let only = chosen.join(",");
    let mut command = conform(&format!("{arguments} --abi {table} --only {only} --net"));
    let plugin = if fault.unresolved { support::unresolved(super::TEMPORARY) } else { reference() };
    command.arg(plugin).env("REFERENCE_FAULT", fault.words);
    if fault.devices > 1 {
        command.env("REFERENCE_DEVICES", fault.devices.to_string());
    }
    if let Some(takes) = fault.gpus {
        give_gpus(&mut command);
        if !takes.is_empty() {
            command.env("REFERENCE_GPU", takes);
        }
    }
    command
}

fn chapter(name: &str) {
    let (_, faults) = CHAPTERS.iter().find(|(chapter, _)| *chapter == name).unwrap();
    all_found(faults);
}

fn all_found(faults: &[Fault]) {
    let missed: Vec<String> = faults.iter().map(missed).filter(|why| !why.is_empty()).collect();
    assert!(missed.is_empty(), "{} of {}:\n{}", missed.len(), faults.len(), missed.join("\n"));
}

macro_rules! chapters {
    ($($name:ident: $chapter:literal;)*) => {
        $(#[test]
        fn $name() {
            chapter($chapter);
        })*

        #[test]
        fn every_fault_is_in_a_test() {
            let tested = [$($chapter),*];
            let all: Vec<&str> = CHAPTERS.iter().map(|(chapter, _)| *chapter).collect();
            assert_eq!(tested[..], all[..]);
        }
    };
}

chapters! {
    faults_in_loading_are_found: "Loading";
    faults_in_properties_are_found: "Properties";
    faults_in_connections_are_found: "Connections";
    faults_in_registration_are_found: "Registration";
    faults_in_messages_are_found: "Messages";
    faults_in_requests_are_found: "Requests";
    faults_in_groups_are_found: "Groups";
    faults_with_short_and_long_messages_are_found: "Short and long";
    faults_in_the_order_of_lines_are_found: "LL and LL128";
    faults_in_flushes_and_with_gpu_memory_are_found: "Flush and GPU memory";
    faults_in_closes_are_found: "Close";
    faults_with_threads_are_found: "Threads";
    faults_with_silent_and_dead_peers_are_found: "Silence and death";
}

#[test]
fn harmless_faults_are_not_found() {
    all_found(HARMLESS);
}

/// Words of the plugin, the behaviour that is skipped, and what is said.
const UNJUDGED: [(&str, &str, &str); 2] = [
    (
        "same-device-only,no-plane",
        "every-device-connects",
        "do not say that they are of one network",
    ),
    ("nap-init=1200", "memory-is-flat", "--timeout gives them more time"),
];

#[test]
fn behaviours_that_cannot_be_judged_are_skipped_with_a_sentence() {
    for (words, only, said) in UNJUDGED {
        let mut command = conform(&format!("--timeout 10 --only {only} --net"));
        command.arg(reference()).env("REFERENCE_FAULT", words).env("REFERENCE_DEVICES", "2");
        let (code, lines, errors) = ended(command);
        assert_eq!((code, ids(&lines, "skip")), (0, set(&[only])), "{words}: {lines}{errors}");
        assert!(lines.contains(said), "{words}: {lines}");
    }
}

#[test]
fn every_behaviour_has_a_fault_that_it_finds() {
    let (code, list, _) = ended(conform("--list"));
    assert_eq!(code, 0);
    let all: BTreeSet<&str> = list.lines().map(|line| line.split_once(": ").unwrap().0).collect();
    let found: BTreeSet<&str> = faults().flat_map(|(_, fault)| fault.found_by).copied().collect();
    let missing: Vec<_> = all.difference(&found).collect();
    assert!(missing.is_empty(), "no fault for {missing:?}");
    let unknown: Vec<_> = found.difference(&all).collect();
    assert!(unknown.is_empty(), "there are no behaviours {unknown:?}");
}

#[test]
fn a_list_is_not_json() {
    let (code, list, errors) = ended(conform("--list --json list.json"));
    assert_eq!((code, list.as_str()), (2, ""), "{errors}");
}

/// A word that is in the list only, or in the plugin only, would be a fault without a test.
#[test]
fn the_words_of_the_faults_are_those_of_the_plugin() {
    let source = include_str!("../plugins/reference.c");
    let words_after = |opening: &str| -> BTreeSet<&str> {
        source.split(opening).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
    };
    let mut known: BTreeSet<String> = words_after("is(\"")
        .union(&words_after("number_of(\""))
        .map(|word| (*word).to_owned())
        .collect();
    known.extend(words_after("WRONG(\"").iter().map(|field| format!("props-{field}")));
    // What `AT` and `WRONG` in reference.c compose.
    for prefix in ["fail-", "crash-", "nap-", "props-"] {
        assert!(known.remove(prefix), "{prefix}");
    }
    let calls = words_after("AT(\"");
    let used: BTreeSet<String> = faults()
        .map(|(_, fault)| fault)
        .chain(HARMLESS)
        .map(|fault| fault.words)
        .chain(UNJUDGED.map(|(words, ..)| words))
        .flat_map(|words| words.split(','))
        .map(|word| word.split('=').next().unwrap().to_owned())
        .filter(|word| !word.is_empty())
        .collect();
    let (of_calls, of_places): (BTreeSet<_>, BTreeSet<_>) = used.into_iter().partition(|word| {
        let call = |prefix| word.strip_prefix(prefix).is_some_and(|call| calls.contains(call));
        call("fail-") || call("crash-") || call("nap-")
    });
    assert_eq!(of_places, known);
    assert!(of_calls.len() > 5, "{of_calls:?}");
}

fn faults() -> impl Iterator<Item = (&'static str, &'static Fault)> {
    CHAPTERS.iter().flat_map(|(chapter, faults)| faults.iter().map(move |fault| (*chapter, fault)))
}

/// The last chapter of docs/conform.md.
pub(super) fn page() -> String {
    let mut page = HEAD.to_owned();
    for (_, fault) in faults() {
        let ids: Vec<String> = fault.found_by.iter().map(|id| format!("`{id}`")).collect();
        let words =
            if fault.words.is_empty() { String::new() } else { format!("`{}`", fault.words) };
        writeln!(page, "| {words} | {} | {} |", fault.breaks.replace('*', "\\*"), ids.join(", "))
            .unwrap();
    }
    page
}

const HEAD: &str = "
## What finds what out

For each behaviour there is a plugin that breaks it and must be found out. `crates/cli/tests/plugins/reference.c` keeps the whole contract, and breaks
it in the one place that REFERENCE_FAULT names. For each of these words the test `conform` runs the behaviours of the third column, all of which must
fail, and another one, which must pass. No behaviour is without such a fault.

| REFERENCE_FAULT | what is broken | found out by |
|---|---|---|
";
