//! The settings as text: those that were set first, then the rest.

use anstyle::Style;
use ironrail_group::error::GroupError;

use super::explanation::{Explanation, Setting};
use super::size;
use crate::output;

/// Prints the settings. Returns whether the plugin would start with them.
pub(super) fn show(
    mut explanation: Explanation,
    names: &[String],
    json: bool,
) -> Result<bool, GroupError> {
    by_files(&mut explanation);
    let chosen = chosen(&explanation, names)?;
    if json {
        explanation.settings = chosen.into_iter().cloned().collect();
        output::line(format_args!("{:#}", serde_json::json!(explanation)));
        return Ok(explanation.refused.is_none());
    }
    let (given, other): (Vec<&Setting>, Vec<&Setting>) =
        chosen.into_iter().partition(|setting| !names.is_empty() || setting.source != "default");
    given.iter().for_each(|setting| at_length(setting));
    if !other.is_empty() {
        output::line("At their defaults:");
        other.iter().for_each(|setting| in_short(setting));
    }
    if names.is_empty() {
        variables(&explanation);
    }
    for note in &explanation.notes {
        output::line(format_args!("{}: {}", note.level.to_lowercase(), note.text));
    }
    if let Some(refused) = &explanation.refused {
        output::print_error(refused);
    }
    Ok(explanation.refused.is_none())
}

/// The plugin sees the settings of NCCL's files as environment.
fn by_files(explanation: &mut Explanation) {
    let files = crate::doctor::settings_of_files();
    for setting in &mut explanation.settings {
        let name = setting.alias.as_ref().unwrap_or(&setting.name);
        if setting.source != "default" && files.contains_key(name) {
            setting.source = "file".to_owned();
        }
    }
}

fn chosen<'a>(
    explanation: &'a Explanation,
    names: &[String],
) -> Result<Vec<&'a Setting>, GroupError> {
    if names.is_empty() {
        return Ok(explanation.settings.iter().collect());
    }
    let find = |name: &String| {
        let wanted = letters(name);
        explanation.settings.iter().find(|setting| letters(&setting.name) == wanted).ok_or_else(
            || {
                let near = near(explanation, &wanted);
                let hint = if near.is_empty() {
                    "`ironrail explain` lists them all".to_owned()
                } else {
                    format!("there is {}", near.join(", "))
                };
                let full = full(name);
                GroupError::Usage(format!("there is no setting {full}: {hint}"))
            },
        )
    };
    names.iter().map(find).collect()
}

fn full(name: &str) -> String {
    let upper = name.to_ascii_uppercase();
    if upper.starts_with(PREFIX) { upper } else { format!("{PREFIX}{upper}") }
}

/// The letters by which names are compared: without the prefix of all names, which contains the letters RAIL.
fn letters(name: &str) -> String {
    let all = name.to_ascii_uppercase().replace(['_', '-'], "");
    all.strip_prefix("IRONRAIL").map(str::to_owned).unwrap_or(all)
}

/// The settings whose names contain the letters, or else those whose names differ by few letters.
fn near<'a>(explanation: &'a Explanation, wanted: &str) -> Vec<&'a str> {
    let names = || explanation.settings.iter().map(|setting| setting.name.as_str());
    if wanted.is_empty() {
        return Vec::new();
    }
    let containing: Vec<_> = names().filter(|name| letters(name).contains(wanted)).collect();
    if !containing.is_empty() {
        return containing;
    }
    // Fewer for a short name, since short names differ by one or two letters only.
    let most = SLIPS_MAX.min(wanted.len() / 2);
    names().filter(|name| strsim::osa_distance(&letters(name), wanted) <= most).collect()
}

/// The most letters that are wrong, missing, additional, or swapped with the next one.
const SLIPS_MAX: usize = 2;

const PREFIX: &str = "IRONRAIL_";

fn at_length(setting: &Setting) {
    let Setting { name, value, default, takes, shared, what, .. } = setting;
    let bold = Style::new().bold();
    let value = value.as_deref().unwrap_or("unset");
    let in_effect = capped(setting).map_or_else(String::new, |cap| format!(", in effect {cap}"));
    output::line(format_args!(
        "{bold}{name}={value}{bold:#}{in_effect}  ({}; default {default})",
        from(setting)
    ));
    output::line(format_args!("    {what}"));
    output::line(format_args!("    takes {takes}"));
    if *shared {
        output::line("    peers should have the same; they compare it when they connect");
    }
    for (_, depends) in
        DEPENDS.iter().filter(|(of, _)| *of == &name[PREFIX.len().min(name.len())..])
    {
        output::line(format_args!("    {depends}"));
    }
}

/// The bytes that are in effect instead of a value that the plugin accepts and reduces.
fn capped(setting: &Setting) -> Option<u64> {
    let bytes = size::parse(setting.value.as_deref()?).ok()?;
    (setting.name == INLINE_MAX_SIZE && bytes > size::LONGEST_INLINE)
        .then_some(size::LONGEST_INLINE)
}

const INLINE_MAX_SIZE: &str = "IRONRAIL_INLINE_MAX_SIZE";

fn from(setting: &Setting) -> String {
    match (setting.source.as_str(), &setting.alias) {
        ("alias", Some(alias)) => format!("by {alias}, a name of aws-ofi-nccl's"),
        ("file", Some(alias)) => format!("by {alias} in a file of NCCL's"),
        ("file", None) => "from a file of NCCL's".to_owned(),
        ("environment", _) => "from the environment".to_owned(),
        (other, _) => other.to_owned(),
    }
}

fn in_short(setting: &Setting) {
    let first = first_sentence(&setting.what);
    let default = &setting.default;
    output::line(format_args!("    {:<30} {default:<8} {}", setting.name, first));
}

/// The text up to the first colon or full stop before a blank: names and addresses contain these characters too.
fn first_sentence(text: &str) -> &str {
    let end = [". ", ": "].iter().filter_map(|end| text.find(end)).min();
    &text[..end.unwrap_or_else(|| text.trim_end_matches('.').len())]
}

/// Prints the variables that libfabric's providers read.
fn variables(explanation: &Explanation) {
    let set = explanation.provider_variables.iter().filter(|variable| variable.value.is_some());
    let set: Vec<_> = set.collect();
    if set.is_empty() {
        return;
    }
    output::line("Variables of libfabric's, as they will be when it loads:");
    for variable in set {
        let value = variable.value.as_deref().unwrap_or_default();
        let by = if variable.source == "Ironrail" { "set by Ironrail" } else { "yours" };
        let what = first_sentence(&variable.what);
        output::line(format_args!(
            "    {}={value}  ({by}, for {}) {what}",
            variable.name, variable.provider
        ));
    }
}

/// Other variables on which a setting depends, if its own text does not say so.
const DEPENDS: &[(&str, &str)] = &[
    (
        "RAILS",
        "FI_TCP_IFACE and FI_PROVIDER filter what libfabric lists, before this names rails; IRONRAIL_MAX_RAILS limits how many are used",
    ),
    (
        "MAX_RAILS",
        "by NCCL_NET_MERGE_LEVEL and NCCL_NET_FORCE_MERGE NCCL fuses several devices into one",
    ),
    (
        "STRIPE_MIN",
        "no effect on a device with one rail; IRONRAIL_LARGEST_WRITE cuts messages, too",
    ),
    ("PROVIDER", "FI_PROVIDER hides the providers that it does not name, before this chooses one"),
    ("LIBFABRIC", "each libfabric has its own providers; FI_PROVIDER_PATH adds others"),
    (
        "DEVICE_MEMORY",
        "by NCCL_NET_GDR_LEVEL and NCCL_DMABUF_ENABLE NCCL decides whether to use it",
    ),
    ("CONNECT_TIMEOUT_MS", "the framework's own timeout may end the job before"),
    ("LOG_LEVEL", "NCCL_DEBUG filters it again: without NCCL_DEBUG nothing is printed"),
    ("STATS_PAGE", "a file of 512 KiB in /dev/shm per process, while it has connections"),
    (
        "STALL_REPORT_MS",
        "time counts only while NCCL polls; IRONRAIL_PEER_TIMEOUT_MS ends connections to silent peers",
    ),
    ("DUMP_TRIGGER", "the job's user must be allowed to write into the folder"),
    ("STATS_FILE", "written when endpoints close: a killed process leaves what was written before"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str) -> Result<String, String> {
        let setting = |name: &str| Setting {
            name: format!("{PREFIX}{name}"),
            value: None,
            source: "default".to_owned(),
            alias: None,
            default: String::new(),
            takes: String::new(),
            shared: false,
            what: String::new(),
        };
        let names = ["RAILS", "MAX_RAILS", "PROVIDER", "CONNECT_TIMEOUT_MS", "JOB"];
        let settings = names.map(setting).to_vec();
        let explanation = Explanation { settings, ..Explanation::default() };
        chosen(&explanation, &[name.to_owned()])
            .map(|chosen| chosen[0].name.clone())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_setting_is_found_with_and_without_its_prefix_and_underscores() {
        for name in ["maxrails", "Max-Rails", "IRONRAIL_MAXRAILS", "ironrailmaxrails", "max_rails"]
        {
            assert_eq!(found(name).as_deref(), Ok("IRONRAIL_MAX_RAILS"), "{name}");
        }
    }

    #[test]
    fn a_misspelt_or_incomplete_name_gets_similar_ones() {
        for (name, near) in [
            ("max_rials", "there is IRONRAIL_MAX_RAILS"),
            ("PROVIDR", "there is IRONRAIL_PROVIDER"),
            ("connecttimeout", "there is IRONRAIL_CONNECT_TIMEOUT_MS"),
            ("rail", "there is IRONRAIL_RAILS, IRONRAIL_MAX_RAILS"),
            ("jib", "there is IRONRAIL_JOB"),
            ("foo", "`ironrail explain` lists them all"),
            ("zebra", "`ironrail explain` lists them all"),
            ("", "`ironrail explain` lists them all"),
        ] {
            let error = found(name).unwrap_err();
            assert!(error.ends_with(near), "{name}: {error}");
        }
    }

    /// docs/configuration.md is generated from the table of the settings.
    #[test]
    fn dependencies_are_listed_for_settings_only() {
        let page = include_str!("../../../../docs/configuration.md");
        for (name, _) in DEPENDS {
            assert!(page.contains(&format!("| `{PREFIX}{name}`")), "{name}");
        }
    }
}
