//! The checks: each is given a machine's description and returns findings.
//!
//! Causes come before their consequences, so the first FAIL is the one to cure. All checks are pure.

mod fabric;
mod gpu;
mod interfaces;
mod libfabric;
mod limits;
mod loading;
mod names;
mod network;
pub(crate) mod ranks;
mod start;
mod variables;

use super::finding::Finding;
use super::machine::{Group, Machine};

/// The findings of several ranks: differences first, then each rank's own, merged where they are equal; last, that pairs were not tried
/// because of these.
pub(crate) fn group(group: &Group) -> Vec<Finding> {
    let mut findings = ranks::check(group);
    let shared = findings.len();
    let reached = group.ranks.iter().enumerate().filter(|(_, one)| one.unreachable.is_none());
    for (rank, machine) in reached {
        for mut finding in all(machine) {
            let known = findings[shared..].iter_mut().find(|known| {
                (&known.check, known.level, &known.found)
                    == (&finding.check, finding.level, &finding.found)
            });
            match known {
                Some(known) => known.ranks.push(rank),
                None => {
                    finding.ranks.push(rank);
                    findings.push(finding);
                }
            }
        }
    }
    findings.extend(ranks::untried(group));
    findings
}

/// All findings of a machine.
pub(crate) fn all(machine: &Machine) -> Vec<Finding> {
    let checks: [fn(&Machine) -> Vec<Finding>; 9] = [
        loading::check,
        network::check,
        libfabric::check,
        interfaces::check,
        fabric::check,
        gpu::check,
        limits::check,
        variables::check,
        start::check,
    ];
    checks.iter().flat_map(|check| check(machine)).collect()
}
