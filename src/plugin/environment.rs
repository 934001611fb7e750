//! The variables that providers want before libfabric initialises, and NCCL's own that says which protocols it may use: the
//! only place that changes the environment.
//!
//! Providers read their variables once, when libfabric loads them, and some have no other switch. A value that is there
//! stays, whoever put it there; what is set here is logged once, and listed in docs/configuration.md.

use super::config::{Config, PROTOCOLS};
use super::provider::core;

/// A variable of libfabric's, the value it gets where nobody gave one, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) name: &'static str,
    pub(crate) value: &'static str,
    /// Part of the name of the providers that read it; of a layered one ([`OVER_TCP`]) all of it.
    pub(crate) provider: &'static str,
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "docs/configuration.md is made from it, by a test")
    )]
    pub(crate) doc: &'static str,
}

pub(crate) const WANTED: &[Wanted] = &[
    Wanted {
        name: "FI_CXI_ENABLE_WRITEDATA",
        value: "1",
        provider: "cxi",
        doc: "Without it cxi refuses writes with immediates; the ones older than libfabric 2.5.0 do so in any case, and messages then end with fin lines.",
    },
    Wanted {
        name: "FI_OFI_RXM_MSG_RX_SIZE",
        value: "128",
        provider: OVER_TCP,
        doc: "The receive pool below rxm, which its first connection allocates. 128 holds more messages than one connection may have outstanding (112), and more than twice less memory than tcp's default: fi_pingpong takes 40 MB instead of 92 on libfabric 1.17, and 56 instead of 173 on 2.5.1. Over verbs, which reads the same variable, the queues stay as the NIC has them.",
    },
    Wanted {
        name: "FI_OFI_RXM_MSG_TX_SIZE",
        value: "128",
        provider: OVER_TCP,
        doc: "The send queue below rxm, for the same reason.",
    },
    Wanted {
        name: "FI_NET_STAGING_SBUF_SIZE",
        value: "0",
        provider: "net",
        doc: "Else what finds no room in a full socket is copied into a buffer of the provider's, and said to be sent: there it waits for the next poll, which may never come after a rank's last message.",
    },
    Wanted {
        name: "FI_TCP_STAGING_SBUF_SIZE",
        value: "0",
        provider: "tcp",
        doc: "The same, by the provider's name in libfabric 2.x, and below rxm.",
    },
    Wanted {
        name: "FI_TCP_MAX_RX_SIZE",
        value: "128",
        provider: "tcp",
        doc: "Room in each of the 1,024 descriptors of an endpoint for a tagged message that comes before its receive, 16 KiB by default since libfabric 1.20: 17 MiB per endpoint, cleared at its first operation, and the plugin sends no tagged messages. Longer ones are still taken, into memory that is allocated for each.",
    },
];

/// rxm as this plugin chooses it only where a user asks for it: its variables are rxm's whatever is below, and verbs may be.
const OVER_TCP: &str = "tcp;ofi_rxm";

/// Sets what nobody set, for the providers that may be chosen. Once per process, before libfabric is loaded.
pub(crate) fn prepare(config: &Config) {
    for wanted in missing(config) {
        put(wanted.name, wanted.value);
        log::info!(
            "{}={} is set for {}, since nobody set it",
            wanted.name,
            wanted.value,
            wanted.provider
        );
    }
}

/// Keeps NCCL from protocols that need an order of bytes which the provider does not promise. Once per process, while NCCL
/// initialises: it reads the variable afterwards (NCCL src/graph/tuning.cc:453, called from src/init.cc:1644).
pub(crate) fn steer(config: &Config, protocols: Option<&'static str>) {
    let Some(protocols) = protocols else { return };
    if let Some(given) = config.protocols() {
        log::info!(
            "{PROTOCOLS}={given} stays, since it was given; the provider's order of bytes asks for {protocols}"
        );
        return;
    }
    put(PROTOCOLS, protocols);
    log::info!(
        "{PROTOCOLS}={protocols} is set, since nobody set it: the provider does not promise the order of bytes that the other protocols need"
    );
}

/// What a user did not set, of the providers that the setting leaves open.
fn missing(config: &Config) -> impl Iterator<Item = &'static Wanted> {
    WANTED.iter().filter(|wanted| {
        let open = match wanted.provider {
            OVER_TCP => asks_for_tcp(config),
            part => config.provider.as_ref().is_none_or(|name| name.contains(part)),
        };
        open && config.provider_variable(wanted.name).is_none()
    })
}

/// Whether the provider is tcp, or on it, because a user says so. libfabric 1.17 offers `tcp` in its layered form alone.
fn asks_for_tcp(config: &Config) -> bool {
    let named = config.provider.as_deref().or_else(|| config.provider_variable("FI_PROVIDER"));
    named.is_some_and(|name| matches!(core(name), "tcp" | "net"))
}

#[allow(
    unsafe_code,
    reason = "the environment can be changed in no other way, and this is the one place that does"
)]
fn put(name: &str, value: &str) {
    // SAFETY: no thread of ours reads the environment meanwhile. Another's may call getenv(3), which nothing that a library
    // can do excludes: so this happens once, only for what is missing, and while NCCL initialises, where NCCL itself calls
    // setenv(3) for its configuration file. Values that getenv(3) has handed out stay: glibc never frees them.
    unsafe { std::env::set_var(name, value) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing_with(variables: &[(&str, &str)]) -> Vec<&'static str> {
        let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let config = Config::from_variables(owned).unwrap();
        missing(&config).map(|wanted| wanted.name).collect()
    }

    #[test]
    fn every_provider_that_may_be_chosen_gets_what_it_wants() {
        assert_eq!(missing_with(&[("IRONRAIL_PROVIDER", "cxi")]), ["FI_CXI_ENABLE_WRITEDATA"]);
        assert_eq!(
            missing_with(&[("IRONRAIL_PROVIDER", "tcp;ofi_rxm")]),
            [
                "FI_OFI_RXM_MSG_RX_SIZE",
                "FI_OFI_RXM_MSG_TX_SIZE",
                "FI_TCP_STAGING_SBUF_SIZE",
                "FI_TCP_MAX_RX_SIZE"
            ]
        );
        assert!(missing_with(&[("IRONRAIL_PROVIDER", "shm")]).is_empty());
    }

    #[test]
    fn the_pools_of_rxm_are_cut_over_tcp_alone() {
        let cut = |variables: &[(&str, &str)]| {
            let names = missing_with(variables);
            names.iter().filter(|name| name.starts_with("FI_OFI_RXM_")).count() == 2
        };
        for name in ["tcp;ofi_rxm", "tcp", "net;ofi_rxm"] {
            assert!(cut(&[("IRONRAIL_PROVIDER", name)]), "{name}");
            assert!(cut(&[("FI_PROVIDER", name)]), "{name}");
            let other = [("IRONRAIL_PROVIDER", "verbs;ofi_rxm"), ("FI_PROVIDER", name)];
            assert!(!cut(&other), "the plugin's own setting decides");
        }
        assert!(!cut(&[]), "verbs may be chosen");
        for name in ["verbs;ofi_rxm", "verbs", "cxi", "ofi_rxm"] {
            assert!(!cut(&[("IRONRAIL_PROVIDER", name)]), "{name}");
            assert!(!cut(&[("FI_PROVIDER", name)]), "{name}");
        }
    }

    #[test]
    fn a_users_value_stays() {
        for wanted in WANTED {
            let provider = ("IRONRAIL_PROVIDER", wanted.provider);
            assert!(missing_with(&[provider]).contains(&wanted.name));
            assert!(!missing_with(&[provider, (wanted.name, "7")]).contains(&wanted.name));
        }
    }
}
