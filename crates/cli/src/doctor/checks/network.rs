//! NCCL_NET: whether it names a network that NCCL will find.

use crate::doctor::finding::Finding;
use crate::doctor::machine::{Machine, OURS};

const CHECK: &str = "network.named";

pub(super) fn check(machine: &Machine) -> Vec<Finding> {
    let networks: Vec<&str> =
        machine.plugins.iter().filter_map(|plugin| plugin.network.as_deref()).collect();
    let Some((value, place)) = machine.variable("NCCL_NET") else {
        let Some(network) = networks.first() else { return Vec::new() };
        return vec![Finding::ok(
            CHECK,
            "NCCL_NET is unset",
            format!(
                "NCCL takes {network}, and uses sockets if that fails; NCCL_NET={network} would make it an error"
            ),
        )];
    };
    let looked = format!("NCCL_NET={value} (from {place})");
    let wanted = networks.first().copied().unwrap_or(OURS);
    let fail = |found: String, cure: String| vec![Finding::fail(CHECK, &looked, found, cure)];
    if value.contains(['"', '\'']) {
        return fail(
            "the value holds quotes, which NCCL compares too: no network has such a name"
                .to_owned(),
            format!(
                "set NCCL_NET={wanted}, without quotes; env files of containers keep what a shell would take away"
            ),
        );
    }
    if networks.iter().any(|network| network.eq_ignore_ascii_case(value)) {
        return vec![Finding::ok(CHECK, looked, "it is the plugin's name")];
    }
    if INTERNAL.iter().any(|name| name.eq_ignore_ascii_case(value)) {
        let what = if value.eq_ignore_ascii_case("IB") { "its own InfiniBand" } else { "sockets" };
        return fail(
            format!("NCCL would use {what} and no plugin"),
            format!("unset NCCL_NET in {place}, or set NCCL_NET={wanted}"),
        );
    }
    // Without a plugin there is no name to compare with, and `plugin.found` has reported that.
    let Some(network) = networks.first() else { return Vec::new() };
    fail(
        format!(
            "the plugin calls its network {network}: NCCL would end with \"invalid usage\" and say so at INFO only"
        ),
        format!("set NCCL_NET={network} (in any case of letters), or unset it"),
    )
}

/// NCCL's built-in networks.
const INTERNAL: &[&str] = &["Socket", "IB"];
