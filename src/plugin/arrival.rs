//! Whether the completion of a write proves that its bytes have arrived at the peer. The probe, which writes to itself, cannot show that:
//! there the NIC that acknowledges is the one that sends.
//!
//! The answer is in one table. A row is a wire protocol with its versions (fi_endpoint(3)): whether completions prove arrival, on which
//! endpoint options that depends, and the source. Neither a provider's name nor an unlisted version is trusted. Where completions prove
//! nothing, a send ends with the receiver's DONE.

use std::fmt;

use fabric::{Info, Nic, OptionName, RailKind};

use super::provider::{
    FI_PROTO_CXI, FI_PROTO_CXI_RNR, FI_PROTO_EFA, FI_PROTO_RXM, FI_PROTO_SHM, FI_PROTO_SOCK_TCP,
    FI_PROTO_XNET,
};

/// What the completions of a wire protocol prove.
#[derive(Debug)]
pub(super) struct Row {
    protocol: u32,
    /// Its name in rdma/fabric.h.
    name: &'static str,
    /// The versions that the source covers; none: all.
    versions: &'static [u32],
    verdict: Verdict,
    /// The man page or source file.
    source: &'static str,
}

#[derive(Debug)]
enum Verdict {
    /// Completions prove arrival if all of these options hold.
    Proven(&'static [Need]),
    Unproven,
}

/// An endpoint option that has to be false.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    option: OptionName,
    /// Its name in libfabric.
    name: &'static str,
    check: Check,
}

/// How the option is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// fi_getopt returns false.
    Read,
    /// fi_setopt accepted false. The man page has no fi_getopt for the option; if a provider supports fi_getopt, it has to return false.
    Set,
}

/// The state of an endpoint's option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OptionState {
    /// Whether fi_setopt accepted false.
    set: bool,
    /// The result of fi_getopt, if the provider supports it.
    read: Option<bool>,
}

/// Emulated writes complete when their messages have arrived in one of the peer's bounce buffers.
const NO_EMULATED_WRITES: Need = Need {
    option: OptionName::EfaEmulatedWrite,
    name: "FI_OPT_EFA_EMULATED_WRITE",
    check: Check::Read,
};

/// Writes between peers on one host would use shm, where they complete at once.
const NO_SHARED_MEMORY: Need = Need {
    option: OptionName::SharedMemoryPermitted,
    name: "FI_OPT_SHARED_MEMORY_PERMITTED",
    check: Check::Set,
};

pub(super) const ROWS: &[Row] = &[
    Row {
        protocol: FI_PROTO_CXI,
        name: "FI_PROTO_CXI",
        versions: &[1],
        verdict: Verdict::Proven(&[]),
        source: "fi_cxi(7), FI_TRANSMIT_COMPLETE: the target's NIC acknowledges once it has all data. Version: CXIP_WIRE_PROTO_VERSION, 1 in all releases from 1.21 to 2.6",
    },
    Row {
        protocol: FI_PROTO_CXI_RNR,
        name: "FI_PROTO_CXI_RNR",
        versions: &[1],
        verdict: Verdict::Proven(&[]),
        source: "fi_cxi(7), as above; from 2.0. Messages differ, writes do not",
    },
    Row {
        protocol: FI_PROTO_EFA,
        name: "FI_PROTO_EFA",
        versions: &[4],
        verdict: Verdict::Proven(&[NO_EMULATED_WRITES, NO_SHARED_MEMORY]),
        source: "prov/efa/docs/efa_rdm_protocol_v4.md, 4.6: the writer's device writes; fi_cq(3), FI_TRANSMIT_COMPLETE of reliable endpoints: delivered to the peer's endpoint. 4.2: emulated writes complete earlier. Options: fi_efa(7), from 1.18; fi_endpoint(3), from 1.21. Version: EFA_RDM_PROTOCOL_VERSION",
    },
    Row {
        protocol: FI_PROTO_RXM,
        name: "FI_PROTO_RXM",
        versions: &[],
        verdict: Verdict::Unproven,
        source: "fi_rxm(7): a layer over any provider of FI_EP_MSG. Which one is below cannot be seen: InfiniBand's NICs acknowledge, but over iWARP verbs promises FI_INJECT_COMPLETE only (prov/verbs/src/verbs_info.c), and over tcp a write completes once a socket has taken it",
    },
    Row {
        protocol: FI_PROTO_XNET,
        name: "FI_PROTO_XNET",
        versions: &[],
        verdict: Verdict::Unproven,
        source: "prov/tcp/src/xnet_progress.c: a write completes once the socket has taken it",
    },
    Row {
        protocol: FI_PROTO_SOCK_TCP,
        name: "FI_PROTO_SOCK_TCP",
        versions: &[],
        verdict: Verdict::Unproven,
        source: "as FI_PROTO_XNET",
    },
    Row {
        protocol: FI_PROTO_SHM,
        name: "FI_PROTO_SHM",
        versions: &[],
        verdict: Verdict::Unproven,
        source: "fi_shm(7), Progress: short operations complete at once, and memory changes when the peer polls",
    },
];

/// The row by which completions of this protocol prove arrival, on an endpoint with these options.
///
/// # Errors
///
/// The reason why they prove nothing.
pub(super) fn of(
    protocol: u32,
    version: u32,
    state: impl Fn(OptionName) -> OptionState,
) -> Result<&'static Row, Doubt> {
    let Some(row) = ROWS.iter().find(|row| row.protocol == protocol) else {
        return Err(Doubt::Protocol(protocol));
    };
    let needs = match row.verdict {
        Verdict::Unproven => return Err(Doubt::Row(row)),
        Verdict::Proven(needs) => needs,
    };
    if !row.versions.contains(&version) {
        return Err(Doubt::Version(row, version));
    }
    for need in needs {
        let OptionState { set, read } = state(need.option);
        match (need.check, set, read) {
            (Check::Read, _, Some(false)) | (Check::Set, true, Some(false) | None) => {}
            (Check::Set, false, _) => return Err(Doubt::Refused(need.name)),
            (_, _, Some(true)) => return Err(Doubt::ReadsTrue(need.name)),
            (Check::Read, _, None) => return Err(Doubt::Unreadable(need.name)),
        }
    }
    Ok(row)
}

/// Whether the completions of a rail prove arrival. Logs the reason at debug level.
pub(super) fn is_proven<K: RailKind>(info: &Info, nic: &Nic) -> bool {
    let state = |name| OptionState { set: nic.is_set::<K>(name), read: nic.flag::<K>(name) };
    let (provider, domain) = (info.provider(), info.domain_name());
    match of(info.protocol(), info.protocol_version(), state) {
        Ok(row) => {
            log::debug!("{provider} {domain}: completions of writes prove arrival, by {row}");
            true
        }
        Err(doubt) => {
            log::debug!(
                "{provider} {domain}: completions of writes do not prove arrival, and DONE is waited for: {doubt}"
            );
            false
        }
    }
}

/// Why completions prove nothing.
#[derive(Clone, Copy, Debug)]
pub(super) enum Doubt {
    /// No row has this protocol.
    Protocol(u32),
    /// The row's verdict.
    Row(&'static Row),
    /// The row has other versions.
    Version(&'static Row, u32),
    /// fi_setopt refused the option, or libfabric is too old for it.
    Refused(&'static str),
    ReadsTrue(&'static str),
    /// fi_getopt failed.
    Unreadable(&'static str),
}

/// Texts for the log at debug level.
struct Reasons {
    unknown: &'static str,
    refused: &'static str,
    reads_true: &'static str,
    unreadable: &'static str,
}

const REASONS: Reasons = Reasons {
    unknown: "is not in the table",
    refused: "cannot be set to false",
    reads_true: "reads true",
    unreadable: "cannot be read",
};

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(number) => write!(f, "protocol {number} {}", REASONS.unknown),
            Self::Row(row) => row.fmt(f),
            Self::Version(row, version) => {
                write!(f, "{} version {version} {}", row.name, REASONS.unknown)
            }
            Self::Refused(name) => write!(f, "{name} {}", REASONS.refused),
            Self::ReadsTrue(name) => write!(f, "{name} {}", REASONS.reads_true),
            Self::Unreadable(name) => write!(f, "{name} {}", REASONS.unreadable),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if let [version] = self.versions {
            write!(f, " version {version}")?;
        }
        for need in self.needs() {
            write!(f, ", {} = false", need.name)?;
        }
        write!(f, " ({})", self.source)
    }
}

impl Row {
    fn needs(&self) -> &'static [Need] {
        match self.verdict {
            Verdict::Proven(needs) => needs,
            Verdict::Unproven => &[],
        }
    }

    /// A line of docs/providers.md.
    #[cfg(test)]
    pub(super) fn line(&self) -> String {
        let versions: Vec<_> = self.versions.iter().map(u32::to_string).collect();
        let versions = if versions.is_empty() { "any".to_owned() } else { versions.join(", ") };
        let needs: Vec<_> = self
            .needs()
            .iter()
            .map(|need| match need.check {
                Check::Read => format!("`{}` reads false", need.name),
                Check::Set => format!("`{}` was set to false, and does not read true", need.name),
            })
            .collect();
        let proves = match self.verdict {
            Verdict::Unproven => "no".to_owned(),
            Verdict::Proven([]) => "yes".to_owned(),
            Verdict::Proven(_) => format!("if {}", needs.join("; ")),
        };
        format!(
            "| `{}` ({}) | {versions} | {proves} | {} |\n",
            self.name, self.protocol, self.source
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CXI: u32 = FI_PROTO_CXI;
    const EFA: u32 = FI_PROTO_EFA;
    /// efa's behaviour: fi_setopt accepts all values, and fi_getopt supports emulation only.
    const GOOD: fn(OptionName) -> OptionState = |name| match name {
        OptionName::EfaEmulatedWrite => OptionState { set: false, read: Some(false) },
        _ => OptionState { set: true, read: None },
    };

    fn doubt(protocol: u32, version: u32, state: impl Fn(OptionName) -> OptionState) -> String {
        of(protocol, version, state).unwrap_err().to_string()
    }

    #[test]
    fn software_and_layers_prove_nothing_in_any_version() {
        for (protocol, name) in [(6, "SOCK_TCP"), (11, "RXM"), (16, "SHM"), (25, "XNET")] {
            for version in 0..8 {
                let doubt = doubt(protocol, version, GOOD);
                assert!(doubt.starts_with(&format!("FI_PROTO_{name} (")), "{doubt}");
            }
        }
    }

    #[test]
    fn a_protocol_without_a_row_proves_nothing() {
        let known: Vec<u32> = ROWS.iter().map(|row| row.protocol).collect();
        for protocol in (0..64).chain([1 << 31]).filter(|protocol| !known.contains(protocol)) {
            let expected = format!("protocol {protocol} is not in the table");
            assert_eq!(doubt(protocol, 1, GOOD), expected);
        }
    }

    #[test]
    fn a_protocol_is_trusted_in_the_versions_that_its_row_names() {
        for row in ROWS.iter().filter(|row| !row.versions.is_empty()) {
            for version in 0..16 {
                let trusted = of(row.protocol, version, GOOD).is_ok();
                assert_eq!(trusted, row.versions.contains(&version), "{} {version}", row.name);
            }
        }
        let expected = "FI_PROTO_EFA version 5 is not in the table";
        assert_eq!(doubt(EFA, 5, GOOD), expected);
    }

    #[test]
    fn cxi_needs_no_option() {
        assert!(of(CXI, 1, |_| OptionState { set: false, read: None }).is_ok());
    }

    #[test]
    fn efa_is_trusted_only_if_each_option_is_as_it_should_be() {
        use OptionName::{EfaEmulatedWrite, SharedMemoryPermitted};
        let (emulated, shared) = ("FI_OPT_EFA_EMULATED_WRITE", "FI_OPT_SHARED_MEMORY_PERMITTED");
        for set in [false, true] {
            for read in [None, Some(false), Some(true)] {
                let with =
                    |wrong, state| move |name| if name == wrong { state } else { GOOD(name) };
                let state = OptionState { set, read };
                let of_writes = of(EFA, 4, with(EfaEmulatedWrite, state)).map(|row| row.protocol);
                match read {
                    Some(false) => assert_eq!(of_writes.unwrap(), EFA),
                    Some(true) => {
                        let expected = format!("{emulated} reads true");
                        assert_eq!(of_writes.unwrap_err().to_string(), expected);
                    }
                    None => {
                        let expected = format!("{emulated} cannot be read");
                        assert_eq!(of_writes.unwrap_err().to_string(), expected);
                    }
                }
                let of_memory =
                    of(EFA, 4, with(SharedMemoryPermitted, state)).map(|row| row.protocol);
                match (set, read) {
                    (false, _) => {
                        let expected = format!("{shared} cannot be set to false");
                        assert_eq!(of_memory.unwrap_err().to_string(), expected);
                    }
                    (true, Some(true)) => {
                        let expected = format!("{shared} reads true");
                        assert_eq!(of_memory.unwrap_err().to_string(), expected);
                    }
                    (true, _) => assert_eq!(of_memory.unwrap(), EFA),
                }
            }
        }
    }

    /// Otherwise a row's requirement could never be met.
    #[test]
    fn each_option_that_has_to_be_set_is_set_on_every_data_rail() {
        use fabric::PROVIDER_OPTIONS;
        for need in ROWS.iter().flat_map(Row::needs).filter(|need| need.check == Check::Set) {
            let is_set = PROVIDER_OPTIONS
                .iter()
                .any(|row| row.option.name == need.option && !row.option.value);
            assert!(is_set, "{}", need.name);
        }
    }
}
