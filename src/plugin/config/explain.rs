//! Every setting with its value and the value's source, as JSON, for `ironrail explain`.

use std::collections::BTreeMap;

use super::setting::Setting;
use super::{ALIASES, Config, PREFIX, SETTINGS, of_alias, shown, variables};
use crate::plugin::environment::{self, PROVIDER_VARIABLES};
use crate::plugin::json::{Object, array};

/// The settings by the current environment, whether the plugin has started or not.
pub(in crate::plugin) fn settings() -> Object {
    explain(variables().map(|(name, value)| (name, shown(&value))).collect())
}

fn explain(variables: BTreeMap<String, String>) -> Object {
    let given: BTreeMap<_, _> =
        variables.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let read = Config::from_variables(given.clone());
    let notes = read.iter().flat_map(|config| &config.notes);
    let notes = notes.map(|note| Object::new().text("level", note.level).text("text", &note.text));
    let rows = SETTINGS.iter().map(|setting| row(setting, &given).end());
    let wanted = PROVIDER_VARIABLES.iter().map(|wanted| {
        let set = read.as_ref().is_ok_and(|config| environment::sets(config, wanted));
        let own = set.then(|| wanted.value.to_owned());
        let value = given.get(wanted.name).cloned().or(own);
        Object::new()
            .text("name", wanted.name)
            .maybe("value", value)
            .text("source", if set { "Ironrail" } else { source(&given, wanted.name) })
            .text("provider", wanted.provider)
            .text("what", wanted.doc)
            .end()
    });
    Object::new()
        .maybe("refused", read.as_ref().err())
        .raw("settings", &array(rows))
        .raw("notes", &array(notes.map(Object::end)))
        .raw("provider_variables", &array(wanted))
}

fn source(given: &BTreeMap<String, String>, name: &str) -> &'static str {
    if given.contains_key(name) { "environment" } else { "default" }
}

/// A wrong value is shown unchanged.
fn row(setting: &'static Setting, given: &BTreeMap<String, String>) -> Object {
    let name = format!("{PREFIX}{}", setting.name);
    let alias = ALIASES.iter().find(|(alias, ours)| {
        let takes = |value: &String| setting.kind.parse(of_alias(setting, value)).is_some();
        *ours == setting.name && given.get(*alias).is_some_and(takes)
    });
    let alias = alias.map(|(alias, _)| *alias).filter(|_| !given.contains_key(&name));
    let value = given.get(alias.unwrap_or(&name)).map(String::as_str);
    let value = value.map(|value| if alias.is_some() { of_alias(setting, value) } else { value });
    let shown = value.or_else(|| Some(setting.default).filter(|text| !text.is_empty()));
    let source = if alias.is_some() { "alias" } else { source(given, &name) };
    Object::new()
        .text("name", &name)
        .maybe("value", shown)
        .text("source", source)
        .maybe("alias", alias)
        .text("default", setting.shown_default())
        .text("takes", setting.kind.accepted())
        .flag("shared", setting.shared)
        .text("what", setting.doc.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(variables: &[(&str, &str)]) -> String {
        let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        explain(owned.collect()).end()
    }

    #[test]
    fn each_setting_has_its_value_and_source() {
        let text = explained(&[
            ("IRONRAIL_MAX_RAILS", "2"),
            ("OFI_NCCL_CQ_SIZE", "2048"),
            ("IRONRAIL_JOB", ""),
        ]);
        for row in [
            r#"{"name":"IRONRAIL_MAX_RAILS","value":"2","source":"environment","alias":null,"default":"4""#,
            r#"{"name":"IRONRAIL_CQ_ENTRIES","value":"2048","source":"alias","alias":"OFI_NCCL_CQ_SIZE","default":"0""#,
            r#"{"name":"IRONRAIL_JOB","value":null,"source":"default","alias":null,"default":"unset""#,
            r#""refused":null"#,
        ] {
            assert!(text.contains(row), "{row} in {text}");
        }
        assert_eq!(text.matches("{\"name\":\"IRONRAIL_").count(), SETTINGS.len());
    }

    #[test]
    fn ours_wins_over_an_alias_and_a_wrong_alias_is_none() {
        let both = explained(&[("OFI_NCCL_CQ_SIZE", "2048"), ("IRONRAIL_CQ_ENTRIES", "4096")]);
        assert!(both.contains(r#""IRONRAIL_CQ_ENTRIES","value":"4096","source":"environment""#));
        let wrong = explained(&[("OFI_NCCL_CQ_SIZE", "many")]);
        assert!(
            wrong.contains(r#""IRONRAIL_CQ_ENTRIES","value":"0","source":"default""#),
            "{wrong}"
        );
    }

    #[test]
    fn an_alias_that_turns_inline_messages_off_has_the_value_that_is_used() {
        let text = explained(&[("OFI_NCCL_EAGER_MAX_SIZE", "-1")]);
        let row = r#""IRONRAIL_INLINE_MAX_SIZE","value":"0","source":"alias","alias":"OFI_NCCL_EAGER_MAX_SIZE""#;
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn a_wrong_value_has_the_sentence_of_the_start() {
        let text = explained(&[("IRONRAIL_MAX_RAILS", "77")]);
        assert!(text.contains(r#""refused":"IRONRAIL_MAX_RAILS=77 is not a value"#), "{text}");
        assert!(text.contains(r#""name":"IRONRAIL_MAX_RAILS","value":"77""#), "{text}");
    }

    #[test]
    fn a_variable_of_libfabrics_is_the_users_or_ours() {
        let ours = explained(&[("IRONRAIL_PROVIDER", "cxi")]);
        assert!(ours.contains(r#""FI_CXI_ENABLE_WRITEDATA","value":"1","source":"Ironrail""#));
        let theirs = explained(&[("FI_CXI_ENABLE_WRITEDATA", "0")]);
        assert!(theirs.contains(r#""FI_CXI_ENABLE_WRITEDATA","value":"0","source":"environment""#));
        let unset = explained(&[("IRONRAIL_PROVIDER", "shm")]);
        assert!(unset.contains(r#""FI_CXI_ENABLE_WRITEDATA","value":null,"source":"default""#));
    }
}
