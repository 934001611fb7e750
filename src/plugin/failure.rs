//! Why the plugin did not start. Stored, since every later call fails with it.

use fabric::{Attempt, FabricError, Version};

use super::config::setting::Setting;
use crate::error::{Cause, Error, Kind};
use crate::types::Protocol;

/// What was requested, and what was found.
#[derive(Clone, Debug)]
pub(crate) enum StartError {
    /// A setting has a value that it does not accept.
    Setting { setting: &'static Setting, given: String },
    /// No libfabric could be loaded. `named`: a setting names the file.
    NoLibrary { attempts: Vec<Attempt>, named: bool },
    /// fi_getinfo failed.
    NoAnswer { version: Version, fault: FabricError },
    /// The provider that a setting names is not offered, or is refused.
    NoSuchProvider {
        wanted: String,
        refusal: Option<&'static str>,
        version: Version,
        offers: Offers,
    },
    /// No provider that is offered can be used.
    NoProvider { version: Version, offers: Offers },
    /// A rail that a setting names does not exist.
    NoSuchRail { rail: String, provider: String, there: Vec<String> },
    /// A setting names one rail twice.
    RailTwice { names: [String; 2], provider: String },
    /// A panic, which was logged.
    Panicked,
}

/// The providers that libfabric offers for what was requested.
#[derive(Clone, Debug)]
pub(crate) struct Offers {
    pub(crate) providers: Vec<String>,
    /// None: any.
    pub(crate) protocol: Option<Protocol>,
    pub(crate) basic_regions: bool,
}

impl StartError {
    fn kind(&self) -> Kind {
        match self {
            Self::Setting { .. } | Self::NoSuchRail { .. } | Self::RailTwice { .. } => {
                Kind::InvalidUsage
            }
            Self::NoLibrary { .. }
            | Self::NoAnswer { .. }
            | Self::NoSuchProvider { .. }
            | Self::NoProvider { .. } => Kind::System,
            Self::Panicked => Kind::Internal,
        }
    }
}

impl From<&StartError> for Error {
    fn from(error: &StartError) -> Self {
        Cause::NotStarted(error.kind()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::config::SETTINGS;

    #[test]
    fn every_failure_of_the_start_has_the_sentence_and_the_code_that_users_know() {
        let setting = |name| SETTINGS.iter().find(|setting| setting.name == name).expect("a row");
        let version = Version::new(1, 17);
        let offers = |providers: &[&str], protocol, basic_regions| Offers {
            providers: providers.iter().map(|name| (*name).to_owned()).collect(),
            protocol,
            basic_regions,
        };
        let attempt = |reason: &str| Attempt {
            candidate: "libfabric.so.1".into(),
            reason: reason.to_owned(),
        };
        let fault = FabricError::self_write(5);
        for (error, kind, sentence) in [
            (
                StartError::Setting { setting: setting("MAX_RAILS"), given: "77".to_owned() },
                Kind::InvalidUsage,
                "IRONRAIL_MAX_RAILS=77 is not a value Ironrail can use: give a whole number from 1 to 16, or unset it (default: 4)",
            ),
            (
                StartError::Setting { setting: setting("RAILS"), given: ",".to_owned() },
                Kind::InvalidUsage,
                "IRONRAIL_RAILS=, is not a value Ironrail can use: give a list separated by commas, without empty places or repetitions, or unset it (default: unset)",
            ),
            (
                StartError::NoLibrary {
                    attempts: vec![attempt("libfabric.so.1: cannot open it")],
                    named: true,
                },
                Kind::System,
                "no libfabric 1.17 or newer could be loaded (libfabric.so.1: cannot open it): correct IRONRAIL_LIBFABRIC, or unset it for libfabric.so.1",
            ),
            (
                StartError::NoLibrary {
                    attempts: vec![attempt("too old"), attempt("no symbol")],
                    named: false,
                },
                Kind::System,
                "no libfabric 1.17 or newer could be loaded (libfabric.so.1: too old; libfabric.so.1: no symbol): install it (Debian: libfabric1), add its directory to LD_LIBRARY_PATH, or name the file in IRONRAIL_LIBFABRIC",
            ),
            (
                StartError::NoAnswer { version, fault },
                Kind::System,
                "fi_getinfo of libfabric 1.17 failed (fi_write to itself: Input/output error (-5)): run fi_info to see why",
            ),
            (
                StartError::NoSuchProvider {
                    wanted: "cxi".to_owned(),
                    refusal: None,
                    version,
                    offers: offers(&["tcp;ofi_rxm", "shm"], None, false),
                },
                Kind::System,
                "IRONRAIL_PROVIDER=cxi is not available: libfabric 1.17 offers tcp;ofi_rxm, shm; name one of these, or unset it",
            ),
            (
                StartError::NoProvider { version, offers: offers(&[], None, false) },
                Kind::System,
                "no provider can serve: libfabric 1.17 offers nothing with reliable datagrams and one-sided access or tagged messages; check that a network interface is up, and that FI_PROVIDER does not hide it, or name a provider in IRONRAIL_PROVIDER",
            ),
            (
                StartError::NoSuchProvider {
                    wanted: "efa".to_owned(),
                    refusal: Some("its completions prove nothing"),
                    version,
                    offers: offers(&[], Some(Protocol::Sendrecv), false),
                },
                Kind::System,
                "IRONRAIL_PROVIDER=efa is not available (its completions prove nothing): libfabric 1.17 offers nothing with reliable datagrams and tagged messages; name one of these, or unset it",
            ),
            (
                StartError::NoProvider { version, offers: offers(&[], Some(Protocol::Rdma), true) },
                Kind::System,
                "no provider can serve: libfabric 1.17 offers nothing with reliable datagrams and one-sided access with IRONRAIL_BASIC_REGIONS=1; check that a network interface is up, and that FI_PROVIDER does not hide it, or name a provider in IRONRAIL_PROVIDER",
            ),
            (
                StartError::NoSuchRail {
                    rail: "eth7".to_owned(),
                    provider: "net".to_owned(),
                    there: vec!["eth0 (192.0.2.2)".to_owned(), "eth1 (192.0.2.3)".to_owned()],
                },
                Kind::InvalidUsage,
                "IRONRAIL_RAILS names eth7, which net does not have: it has eth0 (192.0.2.2), eth1 (192.0.2.3); name some of these, or unset it",
            ),
            (
                StartError::RailTwice {
                    names: ["mlx5_0", "mlx5_0-xrc"].map(str::to_owned),
                    provider: "verbs;ofi_rxm".to_owned(),
                },
                Kind::InvalidUsage,
                "IRONRAIL_RAILS names mlx5_0 and mlx5_0-xrc, which verbs;ofi_rxm has as one rail: name it once",
            ),
            (
                StartError::Panicked,
                Kind::Internal,
                "an earlier bug has kept Ironrail from starting; restart the job, and report the first line",
            ),
        ] {
            assert_eq!((error.to_string().as_str(), Error::from(&error).kind()), (sentence, kind));
        }
    }
}
