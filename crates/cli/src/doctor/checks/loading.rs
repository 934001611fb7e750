//! Whether NCCL finds a plugin, opens it, and finds a table in it; and which of several plugins it uses.

use std::path::Path;

use net_loader::{NEWEST, OLDEST};

use crate::doctor::finding::Finding;
use crate::doctor::machine::{Machine, OURS, Plugin, Refused, UNSTARTED};

pub(super) fn check(machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(settings_files(machine));
    findings.extend(named(machine));
    let stopped =
        findings.iter().any(|finding| finding.check == "plugin.named" && finding.cure.is_some());
    if !stopped {
        for plugin in &machine.plugins {
            findings.extend(opened(machine, plugin));
        }
    }
    findings.extend(wins(machine));
    findings
}

/// NCCL does not report a settings file that it cannot read.
fn settings_files(machine: &Machine) -> Option<Finding> {
    let file = machine.files.iter().find(|file| file.named)?;
    let looked = "NCCL_CONF_FILE";
    let path = file.path.display();
    Some(match &file.settings {
        Some(settings) => {
            Finding::ok("config.file", looked, format!("{path}: {} settings", settings.len()))
        }
        None => Finding::warn(
            "config.file",
            looked,
            format!("{path} cannot be read, and NCCL silently continues without it"),
            "correct NCCL_CONF_FILE, or unset it",
        ),
    })
}

/// Errors in the value itself.
fn named(machine: &Machine) -> Option<Finding> {
    // An empty value is a list without names, and not the same as no variable.
    let (value, place) = machine.given("NCCL_NET_PLUGIN")?;
    if machine.named_by_command {
        return None;
    }
    let looked = format!("NCCL_NET_PLUGIN={value} (from {place})");
    let fail =
        |found: String, cure: String| Some(Finding::fail("plugin.named", &looked, found, cure));
    if value.eq_ignore_ascii_case("none") {
        return fail(
            "none switches every plugin off: NCCL would use its own network, sockets where there is no InfiniBand".to_owned(),
            format!("unset NCCL_NET_PLUGIN in {place}, or set NCCL_NET_PLUGIN=ironrail"),
        );
    }
    if crate::plugin::names(value).next().is_none() {
        return fail(
            "the value names no plugin: NCCL would use its own network, sockets where there is no InfiniBand".to_owned(),
            "set NCCL_NET_PLUGIN=ironrail".to_owned(),
        );
    }
    let bare = value
        .trim_matches(|letter: char| letter.is_whitespace() || letter == '"' || letter == '\'');
    if bare != value {
        let what = if value.contains(['"', '\'']) { "quotes" } else { "a blank" };
        return fail(
            format!("the value holds {what}, which NCCL takes for a part of the name"),
            format!(
                "set NCCL_NET_PLUGIN={bare}, without {what}; env files of containers keep what a shell would take away"
            ),
        );
    }
    Some(Finding::ok("plugin.named", looked, format!("NCCL tries {}", tried(machine))))
}

fn tried(machine: &Machine) -> String {
    let names: Vec<_> = machine.plugins.iter().map(|plugin| shown(&plugin.asked)).collect();
    names.join(", then ")
}

/// The file that NCCL looks for when no name is given.
fn shown(asked: &str) -> &str {
    if asked.is_empty() { "libnccl-net.so" } else { asked }
}

fn opened(machine: &Machine, plugin: &Plugin) -> Vec<Finding> {
    if let Some(failure) =
        plugin.failure.as_ref().filter(|_| plugin.refused.is_empty() && plugin.file.is_none())
    {
        let (found, next) = if failure.why.starts_with(UNSTARTED) {
            (failure.why.clone(), TO_START)
        } else {
            (
                format!("the process that opened it did not survive: {}", failure.why),
                "reinstall the plugin; another library that it needs may crash as it is loaded",
            )
        };
        return vec![Finding::fail("plugin.opens", looked(machine, plugin), found, next)];
    }
    let Some(file) = &plugin.file else {
        return vec![refused(machine, plugin)];
    };
    let mut findings = vec![Finding::ok(
        "plugin.found",
        looked(machine, plugin),
        format!("{} opens", file.display()),
    )];
    findings.push(table(plugin));
    findings
}

/// What lets this command start processes.
pub(super) const TO_START: &str = "raise the limits of processes (`ulimit -u`; pids.max of the cgroup, --pids-limit of the container) and of open files (`ulimit -n`); mount /proc where there is none";

fn looked(machine: &Machine, plugin: &Plugin) -> String {
    let path = machine.environment.get("LD_LIBRARY_PATH").map_or("", String::as_str);
    format!("{} with LD_LIBRARY_PATH={path}", shown(&plugin.asked))
}

/// dlopen(3) has refused every name.
fn refused(machine: &Machine, plugin: &Plugin) -> Finding {
    let looked = looked(machine, plugin);
    let Some(last) = plugin.refused.iter().find(|refused| !is_absent(refused)) else {
        let names: Vec<_> = plugin.refused.iter().map(|refused| refused.name.as_str()).collect();
        if let Some(finding) = other_processor(machine, &names, &looked) {
            return finding;
        }
        let found = format!(
            "no {} on the loader's path: NCCL would say so at INFO only, and use sockets",
            names.join(" and no ")
        );
        return Finding::fail("plugin.found", looked, found, way_to(machine, plugin));
    };
    let Refused { name, reason } = last;
    Finding::fail(
        "plugin.opens",
        looked,
        format!("{name} is there and cannot be loaded: {reason}"),
        cure(reason),
    )
}

/// Whether the file itself is missing, not one of its dependencies.
fn is_absent(refused: &Refused) -> bool {
    let starts = refused.reason.strip_prefix(refused.name.as_str());
    starts.is_some_and(|rest| rest.starts_with(": cannot open shared object file: No such file"))
}

/// The loader skips a file for another processor, and then reports that there is none.
fn other_processor(machine: &Machine, names: &[&str], looked: &str) -> Option<Finding> {
    let is_meant = |path: &Path| {
        let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
        names.iter().any(|name| file.as_deref() == Some(name) || path == Path::new(name))
    };
    let other = machine.copies.iter().find(|copy| {
        copy.searched
            && is_meant(&copy.path)
            && !copy.processor.is_empty()
            && copy.processor != machine.processor
    })?;
    Some(Finding::fail(
        "plugin.opens",
        looked,
        format!(
            "{} was built for another processor, {}, and the loader passes over it: this machine is {}",
            other.path.display(),
            other.processor,
            machine.processor
        ),
        "install the plugin that was built for this machine",
    ))
}

/// How to make NCCL find the plugin.
fn way_to(machine: &Machine, plugin: &Plugin) -> String {
    let asked = plugin.asked.as_str();
    if asked.starts_with("lib") {
        return format!(
            "set NCCL_NET_PLUGIN=ironrail: NCCL adds libnccl-net- and .so to a word; a file's name is taken whole, as lib….so or with a /, as {asked}.so"
        );
    }
    let ours = machine.copies.iter().find(|copy| copy.path.ends_with("libnccl-net-ironrail.so"));
    let ironrail = match ours.and_then(|copy| copy.path.parent()) {
        Some(folder) => format!(
            "set NCCL_NET_PLUGIN=ironrail, and LD_LIBRARY_PATH={}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}; `ironrail env` prints both",
            folder.display()
        ),
        None => "set NCCL_NET_PLUGIN=ironrail, and add the folder of libnccl-net-ironrail.so to LD_LIBRARY_PATH, inside the container if there is one; `ironrail env` prints both".to_owned(),
    };
    match asked {
        "" | "ironrail" => ironrail,
        _ if asked.contains('/') => format!("name a file that is there; for Ironrail, {ironrail}"),
        other => format!(
            "add the folder of libnccl-net-{other}.so to LD_LIBRARY_PATH; for Ironrail, {ironrail}"
        ),
    }
}

/// The cure for an error text of dlopen.
fn cure(reason: &str) -> String {
    let missing = reason.split_once(": cannot open shared object file").map(|(name, _)| name);
    if let Some(name) = missing.filter(|name| name.starts_with("lib")) {
        return format!(
            "install the package that has {name}, or add the folder of {name} to LD_LIBRARY_PATH; `ldd` on the plugin's file lists all that is missing"
        );
    }
    if reason.contains("wrong ELF class")
        || reason.contains("cannot open shared object file: Exec format")
    {
        return "install the plugin that was built for this machine: this one is for another processor".to_owned();
    }
    if reason.contains("undefined symbol") {
        return "rebuild the plugin, or load what it was built with: NCCL opens with RTLD_NOW, so that one undefined symbol makes the whole plugin unusable".to_owned();
    }
    if reason.contains("version `FABRIC_") {
        return "the plugin was built with a newer libfabric than the one that is found: put the newer one first in LD_LIBRARY_PATH, or take a plugin built with this one; Ironrail opens any from 1.17 on".to_owned();
    }
    if reason.contains("version `GLIBC_") {
        return "the plugin was built on a newer system: take one that was built for this one, or build it here".to_owned();
    }
    if reason.contains("invalid ELF header") || reason.contains("file too short") {
        return "the file is no library: it may be a Git LFS pointer, a text, or cut off; fetch it again".to_owned();
    }
    if reason.contains("Permission denied") {
        return "let this user read the file and enter its folders".to_owned();
    }
    "correct what the loader says; `LD_DEBUG=libs` shows where it looks".to_owned()
}

/// The table that NCCL would use.
fn table(plugin: &Plugin) -> Finding {
    let versions = |versions: &[u32]| {
        versions.iter().map(|version| format!("v{version}")).collect::<Vec<_>>().join(" ")
    };
    let looked = format!(
        "the symbols ncclNetPlugin_v{NEWEST} to _v{OLDEST} of {}",
        plugin.file.as_deref().unwrap_or_else(|| "the plugin".as_ref()).display()
    );
    let taken = plugin.tables.iter().find(|version| (OLDEST..=NEWEST).contains(*version));
    match taken {
        Some(taken) => Finding::ok(
            "plugin.table",
            looked,
            format!("{}; NCCL takes the newest it knows, up to v{taken}", versions(&plugin.tables)),
        ),
        None => Finding::fail(
            "plugin.table",
            looked,
            if plugin.tables.is_empty() {
                "it exports no table of a net plugin".to_owned()
            } else {
                format!(
                    "it has {} alone, and NCCL takes none below v{OLDEST}",
                    versions(&plugin.tables)
                )
            },
            "update the plugin to one with table v6 or newer, or name another file in NCCL_NET_PLUGIN",
        ),
    }
}

/// The candidate that NCCL uses, if there are several and the choice is not the expected one.
fn wins(machine: &Machine) -> Option<Finding> {
    let winner = machine.winner()?;
    let network = winner.network.as_deref()?;
    let file = winner.file.as_ref()?;
    let looked = "plugins in the loader's folders, in its order".to_owned();
    let searched = machine.copies.iter().filter(|copy| copy.searched);
    let same_name: Vec<_> =
        searched.filter(|copy| copy.path.file_name() == file.file_name()).collect();
    if let [first, others @ ..] = same_name.as_slice()
        && let Some(other) = others.iter().find(|other| other.digest != first.digest)
    {
        return Some(Finding::warn(
            "plugin.wins",
            looked,
            format!(
                "two different files of one name: {} is the first, and the loader takes it; {} is not used",
                first.path.display(),
                other.path.display()
            ),
            "remove the one that is not wanted, or change the order in LD_LIBRARY_PATH",
        ));
    }
    let unnamed = machine.value("NCCL_NET_PLUGIN").is_none() && !machine.named_by_command;
    if unnamed && !network.eq_ignore_ascii_case(OURS) {
        return Some(Finding::warn(
            "plugin.wins",
            looked,
            format!(
                "NCCL_NET_PLUGIN is unset, so NCCL takes {}, whose network is {network}",
                file.display()
            ),
            "set NCCL_NET_PLUGIN=ironrail for Ironrail, or name the plugin that you want, so that the choice does not depend on the files of an image",
        ));
    }
    Some(Finding::ok("plugin.wins", looked, format!("{network}, {}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_a_plugin_names_its_file_first_and_ironrail_only_as_another() {
        let machine = Machine::default();
        let way = |asked: &str| {
            way_to(&machine, &Plugin { asked: asked.to_owned(), ..Plugin::default() })
        };
        for (asked, begins) in [
            ("", "set NCCL_NET_PLUGIN=ironrail, and add the folder"),
            ("ironrail", "set NCCL_NET_PLUGIN=ironrail, and add the folder"),
            ("ofi", "add the folder of libnccl-net-ofi.so to LD_LIBRARY_PATH; for Ironrail, set"),
            ("/opt/libx.so", "name a file that is there; for Ironrail, set"),
            ("libnccl-net-ofi", "set NCCL_NET_PLUGIN=ironrail: NCCL adds libnccl-net- and .so"),
        ] {
            assert!(way(asked).starts_with(begins), "{asked}: {}", way(asked));
        }
    }
}
