//! Somebody who speaks libfabric to a plugin's control endpoint without being a plugin.

use std::cell::RefCell;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{
    Control, Delivery, Event, Info, Library, Nic, NicOptions, Pages, PeerAddress, Post, Query,
    Region, RemoteBytes, RemoteKey, Write,
};
use proto::codec::{Address, Name};
use proto::handshake::{Identity, Ring};
use proto::rails::Rail;
use proto::{Capabilities, ConnectionId, ImmediateWidth, Request, Window};

use super::calls::Handle;

/// A control endpoint of its own.
pub(crate) struct Stranger {
    region: Region<Control>,
    pages: Arc<Pages>,
    nic: RefCell<Nic>,
}

/// What it says of its provider.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    immediate: ImmediateWidth::Eight,
    true_lengths: false,
    self_read: true,
    proves_arrival: false,
    delivery_complete: true,
    virtual_addresses: false,
    rma_inject_bytes: 64,
    largest_write: 1 << 30,
};

/// The longest message that a stranger sends.
pub(crate) const LONGEST: usize = 1 << 16;
/// Where in its pages an answer goes, and its mailbox lies.
const HEARD: usize = 32 << 10;
const MAILBOX: usize = 48 << 10;
/// How often it tries at the least.
const TURNS: usize = 1000;
/// What it may have in flight: what is sent to the dead never ends.
const OPERATIONS: u16 = 1024;

impl Stranger {
    /// With the library and the provider that the plugin takes.
    pub(crate) fn open() -> Self {
        let named = std::env::var_os("IRONRAIL_LIBFABRIC").filter(|name| !name.is_empty());
        let name = named.unwrap_or_else(|| OsString::from("libfabric.so.1"));
        let library = Library::open(&[name]).expect("the plugin has found it");
        let provider = std::env::var("IRONRAIL_PROVIDER").ok();
        let providers =
            provider.as_deref().map_or_else(|| vec!["net", "tcp"], |provider| vec![provider]);
        let find = |provider: &str| {
            let query = Query {
                provider: Some(provider.to_owned()),
                source: (provider != "shm").then(|| "127.0.0.1".to_owned()),
                ..Query::default()
            };
            let found = library.find(&query).ok()?;
            found.into_iter().find(|info| info.provider() == provider)
        };
        Self::over(&library, &providers.into_iter().find_map(find).expect("the plugin's provider"))
    }

    /// On the first NIC of the virtual fabric, where the plugin has loaded it.
    pub(crate) fn on_virtual_fabric() -> Self {
        let library = Library::open(&[OsString::from("libfabric.so.1")]).expect("libfabric");
        let query = Query { provider: Some("vfabric".to_owned()), ..Query::default() };
        let found = library.find(&query).expect("the virtual fabric");
        Self::over(&library, found.first().expect("it has NICs"))
    }

    fn over(library: &Arc<Library>, info: &Info) -> Self {
        let options = NicOptions {
            data: None,
            control: Some(&[]),
            entries: 1024,
            one_queue: false,
            operations: OPERATIONS,
        };
        let mut nic = Nic::open(library, info, &options).expect("a NIC");
        let pages = Arc::new(Pages::map(LONGEST).expect("pages"));
        let region = nic.register(Arc::clone(&pages).into()).expect("a region");
        Self { region, pages, nic: RefCell::new(nic) }
    }

    /// Where an answer reaches it.
    pub(crate) fn name(&self) -> Vec<u8> {
        self.nic.borrow().control_name().to_vec()
    }

    /// The same as requests say it.
    pub(crate) fn address(&self) -> Address {
        Address::new(&self.name()).expect("it fits")
    }

    /// A rail of this fabric.
    pub(crate) fn rail(fabric: &[u8], data: Address, control: Address) -> Rail {
        Rail { fabric: Name::new(fabric).expect("short"), nic: 0, data, control: Some(control) }
    }

    /// A request that the listener of this handle has to take for a peer's.
    pub(crate) fn request(&self, handle: &Handle, rails: Vec<Rail>) -> Request {
        let handle = proto::Handle::decode(handle).expect("ours");
        Request {
            connection: ConnectionId(1 << 40),
            reply_to: self.address(),
            listener: handle.listener,
            listener_nonce: handle.nonce,
            nonce: 77,
            capabilities: CAPABILITIES,
            rails,
            mailbox: Ring { address: 0, keys: vec![1, 2] },
            window: Window::SINGLE,
            max_group: 1,
            eager_bytes: 128,
            bundle_bytes: 16,
            identity: Identity::default(),
        }
    }

    pub(crate) fn meet(&self, address: &[u8]) -> PeerAddress {
        self.nic.borrow_mut().join(address).expect("a valid address")
    }

    /// Sends `bytes`, while `meanwhile` drives whoever is to hear it. What becomes of them is not known: false if not even
    /// the post was accepted in `bound`.
    pub(crate) fn send(
        &self,
        to: PeerAddress,
        bytes: &[u8],
        bound: Duration,
        mut meanwhile: impl FnMut(),
    ) -> bool {
        self.pages.copy_in(0, bytes);
        let start = Instant::now();
        let (mut posted, mut turns) = (false, 0);
        // Time alone would count what other processes do with the CPU.
        while start.elapsed() < bound || turns < TURNS {
            turns += 1;
            if !posted {
                let local = self.region.local(0, bytes.len()).expect("within the pages");
                let sent = self.nic.borrow_mut().send(local, to, 0);
                match sent {
                    Ok(Post::Accepted) => posted = true,
                    Ok(Post::Again | Post::Full) => {}
                    Err(_) => return false,
                }
            }
            if self.poll() && posted {
                return true;
            }
            meanwhile();
        }
        posted
    }

    /// Makes room for an answer.
    pub(crate) fn listen(&self) {
        let local = self.region.local(HEARD, MAILBOX - HEARD).expect("within the pages");
        let posted = self.nic.borrow_mut().receive(local, 1).expect("fi_recv");
        assert_eq!(posted, Post::Accepted);
    }

    /// The answer, if it has come.
    pub(crate) fn heard(&self) -> Option<Vec<u8>> {
        self.poll();
        let mut bytes = vec![0; MAILBOX - HEARD];
        self.pages.copy_out(HEARD, &mut bytes);
        bytes.starts_with(b"IRRL").then_some(bytes)
    }

    /// Where it takes adverts: an address and a key.
    pub(crate) fn mailbox(&self) -> (u64, u64) {
        let address = self.region.target_address(self.pages.address() + MAILBOX as u64);
        (address.expect("within the pages"), self.region.key().to_wire())
    }

    /// Writes words to what a peer has lent, to the end of that.
    pub(crate) fn write(&self, to: PeerAddress, words: &[u64], address: u64, key: u64) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.pages.copy_in(0, &bytes);
        let remote = RemoteBytes { address, key: RemoteKey::from_wire(key) };
        let (start, mut posted) = (Instant::now(), false);
        loop {
            assert!(start.elapsed() < Duration::from_secs(60), "a write has no end");
            if !posted {
                let local = self.region.local(0, bytes.len()).expect("within the pages");
                let write = Write { local, remote, peer: to, delivery: Delivery::Default };
                let answer = self.nic.borrow_mut().write_control(&write, 0);
                posted = answer.expect("fi_write") == Post::Accepted;
            }
            if self.poll() && posted {
                return;
            }
        }
    }

    /// Whether an operation of ours has ended, well or not.
    pub(crate) fn poll(&self) -> bool {
        let mut nic = self.nic.borrow_mut();
        if nic.poll_control().is_empty() {
            return false;
        }
        let mut ended = false;
        while let Some(event) = nic.next_control() {
            match event {
                Event::Broken(error) => panic!("the stranger's queue: {error}"),
                _ => ended = true,
            }
        }
        ended
    }
}
