//! The checks, in the order in which things go wrong: each takes a machine's description and gives findings.
//!
//! Causes stand before their consequences, so that the first FAIL is the one to cure. All of it is pure.

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

/// Of ranks: what differs between them first, then each one's own, said once where it is the same.
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
    findings
}

/// Everything there is to say of a machine.
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
