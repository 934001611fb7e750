//! Two sides in one process over a real provider, and bounded waits.

use std::env;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{
    AddressVector, Batch, Completion, CompletionError, CompletionQueue, Contexts, Control, CqPoll,
    Data, Domain, Endpoint, Fabric, Info, Library, Pages, PeerAddress, Post, Query, Region,
    RemoteBytes,
};

/// A provider as the tests ask for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Provider {
    pub(crate) name: &'static str,
    /// Where to start from, so that nothing leaves the machine.
    pub(crate) source: Option<&'static str>,
}

pub(crate) const LOOPBACK: Option<&str> = Some("127.0.0.1");
/// Every wait ends by then; the slowest provider (sockets) needs milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const BYTES: usize = 1 << 20;

/// The library under test: FABRIC_TEST_LIBRARY, else the system's. Without one, the test says so and passes.
pub(crate) fn library() -> Option<Arc<Library>> {
    let named = env::var_os("FABRIC_TEST_LIBRARY");
    match Library::open(&[named.unwrap_or_else(|| "libfabric.so.1".into())]) {
        Ok(library) => Some(library),
        Err(error) => {
            say(&format!("SKIPPED: {error}"));
            None
        }
    }
}

/// Writes past the test runner's capture: what was skipped or measured must be seen.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

pub(crate) fn info(library: &Library, provider: Provider, basic_regions: bool) -> Option<Info> {
    let query = Query {
        provider: Some(provider.name.to_owned()),
        source: provider.source.map(str::to_owned),
        basic_regions,
        ..Query::default()
    };
    let found = library.find(&query).expect("an answer, if only an empty one");
    found.into_iter().find(|info| info.provider() == provider.name)
}

/// One end: a data rail, a control rail, their queue, and memory registered on both.
pub(crate) struct Side {
    pub(crate) data: Arc<Endpoint<Data>>,
    pub(crate) control: Arc<Endpoint<Control>>,
    pub(crate) data_region: Region<Data>,
    pub(crate) control_region: Region<Control>,
    pub(crate) data_pages: Arc<Pages>,
    pub(crate) control_pages: Arc<Pages>,
    pub(crate) contexts: Contexts,
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) addresses: Arc<AddressVector>,
    pub(crate) data_peer: Option<PeerAddress>,
    pub(crate) control_peer: Option<PeerAddress>,
}

impl Side {
    pub(crate) fn open(library: &Arc<Library>, info: &Info) -> Self {
        let fabric = Fabric::open(library, info).expect("a fabric");
        let domain = Domain::open(&fabric, info).expect("a domain");
        let queue = CompletionQueue::open(&domain, 1024).expect("a queue");
        let addresses = AddressVector::open(&domain).expect("an address vector");
        let data =
            Endpoint::<Data>::open(&domain, info, &queue, &addresses).expect("a data endpoint");
        let control = Endpoint::<Control>::open(&domain, info, &queue, &addresses)
            .expect("a control endpoint");
        let data_pages = Arc::new(Pages::map(BYTES).expect("pages"));
        let control_pages = Arc::new(Pages::map(BYTES).expect("pages"));
        let data_region =
            Region::register_pages(&data, Arc::clone(&data_pages)).expect("a data region");
        let control_region =
            Region::register_pages(&control, Arc::clone(&control_pages)).expect("a control region");
        Self {
            data,
            control,
            data_region,
            control_region,
            data_pages,
            control_pages,
            contexts: Contexts::new(64),
            queue,
            addresses,
            data_peer: None,
            control_peer: None,
        }
    }

    pub(crate) fn meet(&mut self, other: &Self) {
        let data = other.data.name().expect("a name");
        let control = other.control.name().expect("a name");
        self.data_peer = Some(self.addresses.insert(&data).expect("a valid address"));
        self.control_peer = Some(self.addresses.insert(&control).expect("a valid address"));
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

    pub(crate) fn poll(&self) -> Result<Vec<Completion>, CompletionError> {
        let mut batch = Batch::new();
        match self.queue.read(&mut batch) {
            CqPoll::Empty => Ok(Vec::new()),
            CqPoll::Completions(completions) => Ok(completions.to_vec()),
            CqPoll::Failed(error) => Err(error),
            CqPoll::Broken(error) => panic!("{error}"),
        }
    }
}

/// Two sides that know each other, and what their queues have told so far.
pub(crate) struct Pair {
    pub(crate) near: Side,
    pub(crate) far: Side,
    pub(crate) near_told: Vec<Completion>,
    pub(crate) far_told: Vec<Completion>,
}

impl Pair {
    /// None, with a line that says what was missing, where the provider is not to be had.
    pub(crate) fn open(provider: Provider, basic_regions: bool) -> Option<Self> {
        let library = library()?;
        let Some(info) = info(&library, provider, basic_regions) else {
            say(&format!(
                "SKIPPED: libfabric {} has no provider {}",
                library.version(),
                provider.name
            ));
            return None;
        };
        let mut near = Side::open(&library, &info);
        let mut far = Side::open(&library, &info);
        near.meet(&far);
        far.meet(&near);
        Some(Self { near, far, near_told: Vec::new(), far_told: Vec::new() })
    }

    pub(crate) fn progress(&mut self) {
        self.near_told.extend(self.near.poll().unwrap_or_else(|error| panic!("near: {error}")));
        self.far_told.extend(self.far.poll().unwrap_or_else(|error| panic!("far: {error}")));
    }

    /// Repeats a post until there is room.
    pub(crate) fn post(
        &mut self,
        mut post: impl FnMut(&Side, &Side) -> Result<Post, fabric::FabricError>,
    ) {
        let start = Instant::now();
        loop {
            match post(&self.near, &self.far) {
                Ok(Post::Accepted) => return,
                Ok(Post::Again) => self.progress(),
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

    /// Waits for the completion of the near side's operation at context `index`.
    pub(crate) fn wait_near(&mut self, index: usize) {
        let context = self.near.contexts.at(index);
        self.wait("an operation of ours", |pair| {
            pair.near_told.iter().any(|told| {
                !told.is_remote_write()
                    && pair.near.contexts.index_of(told.context()) == Some(index)
                    && pair.near.contexts.at(index) == context
            })
        });
        self.near_told.retain(|told| self.near.contexts.index_of(told.context()) != Some(index));
    }

    /// Waits for a peer's write at the far side, and takes it.
    pub(crate) fn wait_arrival(&mut self) -> Completion {
        self.wait("an arrival", |pair| pair.far_told.iter().any(Completion::is_remote_write));
        let index =
            self.far_told.iter().position(Completion::is_remote_write).expect("it was just there");
        self.far_told.remove(index)
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
