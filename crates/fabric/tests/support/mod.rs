//! Two sides in one process over a real provider, and bounded waits.

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{CompletionError, Event, Nic, NicOptions, PeerAddress, Post, Region, RemoteBytes};
use fabric::{Control, Data, FabricError, Info, Library, Pages, Query};
use harness::{Need, second_libfabric};

/// A provider under test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Provider {
    pub(crate) name: &'static str,
    /// The source address, so that no packet leaves the machine.
    pub(crate) source: Option<&'static str>,
    /// Tagged messages in place of one-sided access.
    pub(crate) messages: bool,
}

pub(crate) const LOOPBACK: Option<&str> = Some("127.0.0.1");
/// Every wait ends by then; the slowest provider (sockets) needs milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const BYTES: usize = 1 << 20;

/// Names the library under test, where that is not the system's.
pub(crate) const LIBRARY: &str = "FABRIC_TEST_LIBRARY";

/// The library under test.
pub(crate) fn library() -> Result<Arc<Library>, String> {
    let named = env::var_os(LIBRARY);
    Library::open(&[named.unwrap_or_else(|| "libfabric.so.1".into())])
        .map_err(|error| format!("libfabric ({error})"))
}

/// Whether a test over this provider can run: in this process, or in one with [`other_library`].
pub(crate) fn offers(provider: Provider, basic_regions: bool) -> Need {
    if other_library(provider).is_some() {
        return Ok(());
    }
    let library = library()?;
    match info(&library, provider, basic_regions) {
        Some(_) => Ok(()),
        None => {
            Err(format!("a libfabric {} with the provider {}", library.version(), provider.name))
        }
    }
}

/// The second library, for native tcp, which 1.17 calls `net`: unless a library is named.
pub(crate) fn other_library(provider: Provider) -> Option<PathBuf> {
    let elsewhere = provider.name == "tcp" && env::var_os(LIBRARY).is_none();
    elsewhere.then(second_libfabric)?.ok()
}

/// Prints a line of results.
pub(crate) fn print_line(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

pub(crate) fn info(
    library: &Arc<Library>,
    provider: Provider,
    basic_regions: bool,
) -> Option<Info> {
    let query = Query {
        provider: Some(provider.name.to_owned()),
        source: provider.source.map(str::to_owned),
        basic_regions,
        messages: provider.messages,
        ..Query::default()
    };
    let found = library.find(&query).expect("an answer, if only an empty one");
    found.into_iter().find(|info| info.provider() == provider.name)
}

/// One end: a NIC with both rails, and memory registered on both.
pub(crate) struct Side {
    pub(crate) nic: Nic,
    pub(crate) data_region: Region<Data>,
    pub(crate) control_region: Region<Control>,
    pub(crate) data_pages: Arc<Pages>,
    pub(crate) control_pages: Arc<Pages>,
    pub(crate) data_peer: Option<PeerAddress>,
    pub(crate) control_peer: Option<PeerAddress>,
}

/// An event from a side's queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueueEvent {
    Arrived { immediate: u64, len: usize },
    Ended { token: u64, len: usize },
}

/// Operations that a side may have in flight.
pub(crate) const OPERATIONS: u16 = 64;

impl Side {
    pub(crate) fn open(info: &Info, injects_control: bool) -> Self {
        let options = NicOptions {
            data: Some(&[]),
            control: Some(&[]),
            injects_control,
            entries: 1024,
            operations: OPERATIONS,
            ..NicOptions::default()
        };
        let mut nic = Nic::open(info, &options).expect("a NIC");
        let data_pages = Arc::new(Pages::map(BYTES).expect("pages"));
        let control_pages = Arc::new(Pages::map(BYTES).expect("pages"));
        let data_region = nic.register(Arc::clone(&data_pages).into()).expect("a data region");
        let control_region =
            nic.register(Arc::clone(&control_pages).into()).expect("a control region");
        Self {
            nic,
            data_region,
            control_region,
            data_pages,
            control_pages,
            data_peer: None,
            control_peer: None,
        }
    }

    pub(crate) fn meet(&mut self, other: &Self) {
        self.data_peer =
            Some(self.nic.add_peer::<Data>(other.nic.data_name()).expect("a valid address"));
        self.control_peer =
            Some(self.nic.add_peer::<Control>(other.nic.control_name()).expect("a valid address"));
    }

    pub(crate) fn data_peer(&self) -> PeerAddress {
        self.data_peer.expect("they met")
    }

    pub(crate) fn control_peer(&self) -> PeerAddress {
        self.control_peer.expect("they met")
    }

    /// The byte at `offset` of the data region, as a peer names it.
    pub(crate) fn data_at(&self, offset: usize) -> RemoteBytes<Data> {
        RemoteBytes {
            address: self.data_region.remote_base() + offset as u64,
            key: self.data_region.key(),
        }
    }

    /// The same of the control region.
    pub(crate) fn control_at(&self, offset: usize) -> RemoteBytes<Control> {
        RemoteBytes {
            address: self.control_region.remote_base() + offset as u64,
            key: self.control_region.key(),
        }
    }

    pub(crate) fn poll(&mut self) -> Result<Vec<QueueEvent>, CompletionError> {
        let mut events = Vec::new();
        for of_data in [true, false] {
            let polled = if of_data { self.nic.poll_data() } else { self.nic.poll_control() };
            while !polled.is_empty() {
                let event = if of_data { self.nic.next_data() } else { self.nic.next_control() };
                match event {
                    None => break,
                    Some(Event::Arrived { immediate, len }) => {
                        events.push(QueueEvent::Arrived { immediate, len });
                    }
                    Some(Event::Ended { token, len, .. }) => {
                        events.push(QueueEvent::Ended { token, len })
                    }
                    Some(Event::Failed(failed)) => return Err(failed.error),
                    Some(Event::Broken(error)) => panic!("{error}"),
                }
            }
        }
        Ok(events)
    }
}

/// Two sides that have each other's addresses, and the events of their queues so far.
pub(crate) struct Pair {
    pub(crate) near: Side,
    pub(crate) far: Side,
    pub(crate) near_events: Vec<QueueEvent>,
    pub(crate) far_events: Vec<QueueEvent>,
}

impl Pair {
    pub(crate) fn open(provider: Provider, basic_regions: bool) -> Self {
        Self::of(provider, basic_regions, false)
    }

    /// With control rails that inject short writes.
    pub(crate) fn open_injecting(provider: Provider, basic_regions: bool) -> Self {
        Self::of(provider, basic_regions, true)
    }

    fn of(provider: Provider, basic_regions: bool, injects_control: bool) -> Self {
        let library = library().expect("the test runs only where there is one");
        let info = info(&library, provider, basic_regions);
        let info = info.expect("the test runs only where the provider is");
        let mut near = Side::open(&info, injects_control);
        let mut far = Side::open(&info, injects_control);
        near.meet(&far);
        far.meet(&near);
        Self { near, far, near_events: Vec::new(), far_events: Vec::new() }
    }

    pub(crate) fn progress(&mut self) {
        self.near_events.extend(self.near.poll().unwrap_or_else(|error| panic!("near: {error}")));
        self.far_events.extend(self.far.poll().unwrap_or_else(|error| panic!("far: {error}")));
    }

    /// Repeats a post until there is room.
    pub(crate) fn post(
        &mut self,
        mut post: impl FnMut(&mut Side, &mut Side) -> Result<Post, FabricError>,
    ) {
        let start = Instant::now();
        loop {
            match post(&mut self.near, &mut self.far) {
                Ok(Post::Accepted) => return,
                Ok(Post::Again | Post::Full) => self.progress(),
                Err(error) => panic!("{error}"),
            }
            assert!(start.elapsed() < PATIENCE, "no room for a post in {PATIENCE:?}");
        }
    }

    pub(crate) fn wait(&mut self, what: &str, mut until: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !until(self) {
            self.progress();
            assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        }
    }

    /// Waits for the completion of the near side's operation with this token.
    pub(crate) fn wait_near(&mut self, wanted: u64) {
        let its = |event: &QueueEvent| matches!(event, QueueEvent::Ended { token, .. } if *token == wanted);
        self.wait("an operation of ours", |pair| pair.near_events.iter().any(its));
        self.near_events.retain(|event| !its(event));
    }

    /// Waits for a peer's write at the far side. Returns its immediate and length.
    pub(crate) fn wait_arrival(&mut self) -> (u64, usize) {
        let is_arrival = |event: &QueueEvent| matches!(event, QueueEvent::Arrived { .. });
        self.wait("an arrival", |pair| pair.far_events.iter().any(is_arrival));
        let index = self.far_events.iter().position(is_arrival).expect("it was just there");
        match self.far_events.remove(index) {
            QueueEvent::Arrived { immediate, len } => (immediate, len),
            QueueEvent::Ended { .. } => unreachable!("an arrival was asked for"),
        }
    }
}

/// Bytes that differ at every offset, and from seed to seed.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at * 31 + (at >> 8) + seed).to_le_bytes()[0];
    (0..len).map(byte).collect()
}

pub(crate) fn bytes_of(pages: &Pages, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    pages.copy_out(offset, &mut bytes);
    bytes
}
