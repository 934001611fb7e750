//! A process with both ends, their plugin and the virtual fabric: one thread drives everything.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use harness::second_libfabric;

use crate::support::calls::{Net, Object};
use crate::support::stage::Part;
use crate::support::virtual_fabric::{VirtualFabric, set};

/// What is loaded.
#[derive(Clone, Copy)]
pub(crate) struct World {
    /// The plugin of each end: the same one, or two independent ones.
    pub(crate) nets: [Net; 2],
    pub(crate) fabric: VirtualFabric,
}

/// A communicator's context, and a listener by which its endpoint can be polled when nothing else is.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) net: Net,
    pub(crate) context: Object,
    pub(crate) listener: Object,
}

/// The provider's file, built by the process that starts the play.
pub(crate) fn provider() -> (&'static str, &'static str) {
    let built = || crate::vfabric::file().to_str().expect("the target folder is text").to_owned();
    let file = std::env::var(format!("IRONRAIL_{PROVIDER}")).unwrap_or_else(|_| built());
    (PROVIDER, file.leak())
}

impl World {
    /// Ends with these numbers of rails, on a new fabric. If the numbers differ, the second end's plugin is loaded from a copy of the file,
    /// since a plugin reads the environment once.
    pub(crate) fn open(part: &Part, profile: &str, rails: [usize; 2]) -> Self {
        Self::open_and_say(part, profile, rails, "warn")
    }

    /// The same with a log of this level.
    pub(crate) fn open_and_say(
        part: &Part,
        profile: &str,
        rails: [usize; 2],
        log_level: &str,
    ) -> Self {
        let provider = PathBuf::from(provider().1);
        let folder = provider.parent().and_then(|path| path.to_str()).expect("a folder");
        for (name, value) in [
            ("FI_PROVIDER_PATH", folder),
            ("FI_PROVIDER", "vfabric"),
            ("VFABRIC_PROFILE", profile),
            ("VFABRIC_NICS", "16"),
            ("IRONRAIL_MAX_RAILS", "16"),
            ("IRONRAIL_LOG_LEVEL", log_level),
        ] {
            set(name, value);
        }
        if std::env::var_os(CLOSE_TIMEOUT).is_none() {
            // On a busy machine the last operations take more than the default.
            set(CLOSE_TIMEOUT, "20000");
        }
        // It loads in a tenth of the time of Debian's, whose verbs reads the kernel's symbols.
        if let (None, Ok(second)) = (std::env::var_os("IRONRAIL_LIBFABRIC"), second_libfabric()) {
            set("IRONRAIL_LIBFABRIC", second.to_str().expect("its path is text"));
        }
        set("IRONRAIL_RAILS", &names(rails[0]));
        let first = Net::open(&part.plugin());
        let context = first.init().expect("init");
        let fabric = VirtualFabric::of(&provider);
        first.finalize(context).expect("finalize");
        // The settings of device memory and of lines are kept for the new fabric.
        let kept = |name| std::env::var(name).unwrap_or_else(|_| "0".to_owned());
        let (hmem, lines) = (kept("VFABRIC_HMEM"), kept("VFABRIC_LINES"));
        let anew = format!("profile={profile} nics=16 hmem={hmem} lines={lines}");
        if rails[0] == rails[1] {
            fabric.configure(&anew);
            return Self { nets: [first, first], fabric };
        }
        let name = format!("second.{}.so", std::process::id());
        let copy = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::copy(part.plugin(), &copy).expect("the target folder takes a file");
        set("IRONRAIL_RAILS", &names(rails[1]));
        let second = Net::open(&copy);
        fs::remove_file(&copy).expect("ours");
        let context = second.init().expect("init");
        second.finalize(context).expect("finalize");
        fabric.configure(&anew);
        Self { nets: [first, second], fabric }
    }
}

impl End {
    /// An endpoint whose device has been probed: later operations are those of connections.
    pub(crate) fn open(net: Net) -> Self {
        let end = Self::open_unsettled(net);
        (0..SETTLED).for_each(|_| end.poll());
        end
    }

    /// The same while the probe has just begun.
    pub(crate) fn open_unsettled(net: Net) -> Self {
        let context = net.init().expect("init");
        let (_, listener) = net.listen(context, 0).expect("listen");
        Self { net, context, listener }
    }

    /// One poll, by accept: no peer connects to this listener.
    pub(crate) fn poll(&self) {
        assert_eq!(self.net.accept(self.listener).expect("accept"), None);
    }

    pub(crate) fn close(self) {
        self.net.close_listen(self.listener).expect("closeListen");
        self.net.finalize(self.context).expect("finalize");
    }
}

/// Makes a connection: its send comm and its receive comm. The ends poll alternately.
pub(crate) fn connect(sender: &End, receiver: &End) -> (Object, Object) {
    let mut senders = false;
    connect_by(sender, receiver, || {
        senders = !senders;
        senders
    })
}

/// The same, where `choose` selects the end to poll: true for the sender.
pub(crate) fn connect_by(
    sender: &End,
    receiver: &End,
    mut choose: impl FnMut() -> bool,
) -> (Object, Object) {
    let (mut handle, listener) = receiver.net.listen(receiver.context, 0).expect("listen");
    let (mut send, mut receive) = (None, None);
    let start = Instant::now();
    while start.elapsed() < CONNECT_MAX {
        if choose() {
            if send.is_none() {
                send = sender.net.connect(sender.context, 0, &mut handle).expect("connect");
            }
        } else if receive.is_none() {
            receive = receiver.net.accept(listener).expect("accept");
        }
        if let (Some(send), Some(receive)) = (send, receive) {
            receiver.net.close_listen(listener).expect("closeListen");
            return (send, receive);
        }
    }
    panic!("no connection after {CONNECT_MAX:?}");
}

/// The first `count` virtual NICs.
fn names(count: usize) -> String {
    (0..count).map(|nic| format!("vnic{nic}")).collect::<Vec<_>>().join(",")
}

/// After this many polls a device's probe is complete, on every profile.
const SETTLED: u32 = 500;
/// A test whose peers are silent sets less.
const CLOSE_TIMEOUT: &str = "IRONRAIL_CLOSE_TIMEOUT_MS";
/// The test's own setting, without its prefix.
const PROVIDER: &str = "TEST_PROVIDER";
/// More is a hang.
const CONNECT_MAX: Duration = Duration::from_secs(30);
