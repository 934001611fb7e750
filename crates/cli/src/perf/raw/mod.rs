//! Bare libfabric, as the plugin uses it and nothing else: writes with immediates, a window of them outstanding, places
//! rotating as in sendrecv, one queue polled in batches. What the plugin's numbers are held against.

use std::process;
use std::sync::Arc;
use std::time::Duration;

use fabric::{
    AddressVector, Batch, CompletionQueue, Contexts, CqPoll, Data, Delivery, Domain, Endpoint,
    Fabric, FabricError, Info, Library, Pages, PeerAddress, Post, Query, Region, RemoteBytes,
    RemoteKey,
};
use ironrail_group::bootstrap::Bootstrap;
use ironrail_group::error::GroupError;
use ironrail_group::patience::{Patience, spins_for};

use super::arguments::{Benchmark, Options, Place, Raw};
use super::benchmarks::Shape;
use super::outcome::{Outcome, row};
use super::report::{Event, Ready};
use super::slots::Slots;
use super::statistics::Stopwatch;

/// Runs this rank of two. `emit` is called on rank 0 only.
pub(super) fn run(
    raw: &Raw,
    options: &Options,
    bootstrap: &mut dyn Bootstrap,
    emit: &mut dyn FnMut(Event),
) -> Result<(), GroupError> {
    let wait = options.timeout();
    let (library, info) = find(&raw.place)?;
    let bytes = options.sizes().into_iter().map(|bytes| {
        let slots = Slots::of(bytes, raw.window, 1);
        slots.count * slots.send_stride
    });
    let mut rail = Rail::open(&library, &info, bytes.max().unwrap_or(1), bootstrap, wait)?;
    measure(raw, options, &library, &info, &mut rail, bootstrap, emit)
        .inspect_err(|why| _ = bootstrap.give_up(why)) // The rail is still open.
}

fn measure(
    raw: &Raw,
    options: &Options,
    library: &Library,
    info: &Info,
    rail: &mut Rail,
    bootstrap: &mut dyn Bootstrap,
    emit: &mut dyn FnMut(Event),
) -> Result<(), GroupError> {
    let wait = options.timeout();
    let line = format!(
        "Rank {:>2} Pid {:>6} provider {} domain {}",
        bootstrap.rank(),
        process::id(),
        info.provider(),
        info.domain_name()
    );
    let lines = bootstrap.all_gather(line.as_bytes(), wait)?;
    let first = bootstrap.rank() == 0;
    if first {
        emit(Event::Ready(Ready {
            network: format!("{} of libfabric {}", info.provider(), library.version()),
            table: 0,
            file: library.path().to_string_lossy().into_owned(),
            ranks: lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect(),
        }));
    }
    let benchmark = Benchmark::Raw(raw.clone());
    for bytes in options.sizes() {
        let iterations = options.iterations(&benchmark, bytes);
        let mut watch = Stopwatch::with_room(iterations.max(options.warmups));
        rail.slots = Slots::of(bytes, raw.window, 1);
        bootstrap.barrier(wait)?;
        for messages in [options.warmups, iterations] {
            watch.start();
            match (raw.latency, first) {
                (true, serves) => {
                    rail.rally(bytes, messages, serves, !raw.no_inject, || watch.lap())?
                }
                (false, true) => rail.pour(bytes, messages, raw.window, || watch.lap())?,
                (false, false) => rail.take(messages, || watch.lap())?,
            }
        }
        rail.linger()?;
        let times = watch.times();
        let times = if raw.latency { times.halved() } else { times };
        let all = Outcome { times, wrong: 0 }.of_all_ranks(bootstrap, wait)?;
        if first {
            let count = bytes / options.kind.bytes();
            let shape = Shape { bytes, count, bus_factor: 1.0 };
            let mut row = row(&benchmark, options, shape, iterations, &all);
            row.wrong = None;
            emit(Event::Row(row));
        }
    }
    bootstrap.barrier(wait)
}

/// Providers that carry rails on any machine, best first.
const USUAL: [&str; 3] = ["tcp", "net", "tcp;ofi_rxm"];

fn find(place: &Place) -> Result<(Arc<Library>, Info), GroupError> {
    let library = Library::open(&[&place.libfabric]).map_err(|error| {
        GroupError::Load(format!("no libfabric: {error}; --libfabric names one"))
    })?;
    let asked = match &place.provider {
        Some(provider) => vec![&**provider],
        None => USUAL.to_vec(),
    };
    for provider in &asked {
        let query = Query {
            provider: Some((*provider).to_owned()),
            source: place.source().map(str::to_owned),
            ..Query::default()
        };
        let found = library.find(&query).map_err(broken)?;
        // A name may also find what is layered over it: tcp finds tcp;ofi_rxm.
        if let Some(info) = found.into_iter().find(|info| info.provider() == *provider) {
            return Ok((library, info));
        }
    }
    Err(GroupError::Load(format!(
        "libfabric {} has none of {} at {}; fi_info lists what there is, --provider and --source choose",
        library.version(),
        asked.join(", "),
        place.source().unwrap_or("any address")
    )))
}

/// An endpoint, the memory it writes from and is written to, and its one peer.
struct Rail {
    endpoint: Arc<Endpoint<Data>>,
    queue: Arc<CompletionQueue>,
    source: Region<Data>,
    _target: Region<Data>,
    contexts: Contexts,
    peer: PeerAddress,
    /// The peer's target.
    remote_base: u64,
    remote_key: RemoteKey<Data>,
    slots: Slots,
    batch: Batch,
    patience: Patience,
    /// Writes of ours that have ended, and writes of the peer's that have arrived, and were not yet counted.
    ended: usize,
    arrived: usize,
}

/// More than can be outstanding: arrivals wait in the queue until they are polled.
const QUEUE_ENTRIES: usize = 4096;
/// A write has a context while it is outstanding; 32 are the most.
const CONTEXTS: usize = 64;

const LAST_TURNS: usize = 1000;

impl Rail {
    fn open(
        library: &Arc<Library>,
        info: &Info,
        bytes: usize,
        bootstrap: &mut dyn Bootstrap,
        wait: Duration,
    ) -> Result<Self, GroupError> {
        let fabric = Fabric::open(library, info).map_err(broken)?;
        let domain = Domain::open(&fabric, info).map_err(broken)?;
        let queue = CompletionQueue::open(&domain, QUEUE_ENTRIES).map_err(broken)?;
        let addresses = AddressVector::open(&domain).map_err(broken)?;
        let endpoint = Endpoint::<Data>::open(&domain, info, &queue, &addresses).map_err(broken)?;
        let register = || {
            let pages = Pages::map(bytes)
                .map_err(|error| GroupError::System { what: "mapping memory", error })?;
            pages.fill(0, pages.len(), 1); // Every page is there before the clock runs.
            Region::register_pages(&endpoint, Arc::new(pages)).map_err(broken)
        };
        let (source, target) = (register()?, register()?);
        let mut card = target.remote_base().to_le_bytes().to_vec();
        card.extend(target.key().to_wire().to_le_bytes());
        card.extend(endpoint.name().map_err(broken)?);
        let cards = bootstrap.all_gather(&card, wait)?;
        let theirs = &cards[1 - bootstrap.rank()];
        let word = |index: usize| -> Option<u64> {
            Some(u64::from_le_bytes(theirs.get(index * 8..index * 8 + 8)?.try_into().ok()?))
        };
        let (Some(remote_base), Some(key), Some(name)) = (word(0), word(1), theirs.get(16..))
        else {
            return Err(GroupError::Bootstrap("the peer sent an address that is none".to_owned()));
        };
        Ok(Self {
            peer: addresses.insert(name).map_err(broken)?,
            endpoint,
            queue,
            source,
            _target: target,
            contexts: Contexts::new(CONTEXTS),
            remote_base,
            remote_key: RemoteKey::from_wire(key),
            slots: Slots::default(),
            batch: Batch::new(),
            patience: Patience::new(wait, spins_for(2)),
            ended: 0,
            arrived: 0,
        })
    }

    /// Keeps `window` writes outstanding until all have ended.
    fn pour(
        &mut self,
        bytes: usize,
        messages: usize,
        window: usize,
        mut lap: impl FnMut(),
    ) -> Result<(), GroupError> {
        let (mut posted, mut over) = (0, 0);
        self.patience.reset();
        while over < messages {
            let mut moved = false;
            while posted < messages && posted - over < window && self.write(bytes, posted)? {
                posted += 1;
                moved = true;
            }
            self.poll()?;
            for _ in 0..std::mem::take(&mut self.ended) {
                over += 1;
                lap();
                moved = true;
            }
            self.pace(moved, "a write to end")?;
        }
        Ok(())
    }

    /// Counts arrivals.
    fn take(&mut self, messages: usize, mut lap: impl FnMut()) -> Result<(), GroupError> {
        let mut over = 0;
        self.patience.reset();
        while over < messages {
            self.poll()?;
            let moved = self.arrived > 0;
            // What belongs to the next round stays for it.
            let now = self.arrived.min(messages - over);
            self.arrived -= now;
            for _ in 0..now {
                over += 1;
                lap();
            }
            self.pace(moved, "a write to arrive")?;
        }
        Ok(())
    }

    /// Writes and waits for the answer, or the other way round.
    fn rally(
        &mut self,
        bytes: usize,
        messages: usize,
        serves: bool,
        inject: bool,
        mut lap: impl FnMut(),
    ) -> Result<(), GroupError> {
        let inject = inject && bytes <= self.endpoint.inject_bytes();
        let (mut posted, mut over) = (0, 0);
        for number in 0..messages {
            if !serves {
                self.arrival()?;
            }
            // The last one tells its end, so that it is not left behind in a queue that nobody pushes any more.
            let inject = inject && number + 1 < messages;
            self.patience.reset();
            loop {
                over += std::mem::take(&mut self.ended);
                // A context is free again when its write has ended.
                let posted_now = if inject {
                    self.inject(bytes, number)?
                } else {
                    posted - over < CONTEXTS && self.write(bytes, posted)?
                };
                if posted_now {
                    posted += usize::from(!inject);
                    break;
                }
                self.poll()?;
                self.pace(false, "room for a write")?;
            }
            if serves {
                self.arrival()?;
            }
            lap();
        }
        self.patience.reset();
        while over < posted {
            self.poll()?;
            over += std::mem::take(&mut self.ended);
            self.pace(false, "a write to end")?;
        }
        Ok(())
    }

    /// Turns for what a provider still has in a queue of its own: the rendezvous that follows makes no progress.
    fn linger(&mut self) -> Result<(), GroupError> {
        (0..LAST_TURNS).try_for_each(|_| self.poll())
    }

    fn arrival(&mut self) -> Result<(), GroupError> {
        self.patience.reset();
        while self.arrived == 0 {
            self.poll()?;
            self.pace(self.arrived > 0, "a write to arrive")?;
        }
        self.arrived -= 1;
        Ok(())
    }

    fn write(&self, bytes: usize, number: usize) -> Result<bool, GroupError> {
        let (local, remote) = self.place(bytes, number)?;
        let context = self.contexts.at(number % CONTEXTS);
        let immediate = number as u64 & u64::from(u32::MAX);
        let post = self.endpoint.write_with_immediate(
            local,
            remote,
            self.peer,
            immediate,
            Delivery::Default,
            context,
        );
        Ok(post.map_err(broken)? == Post::Accepted)
    }

    fn inject(&self, bytes: usize, number: usize) -> Result<bool, GroupError> {
        let (local, remote) = self.place(bytes, number)?;
        let local = self.source.host_bytes(local.address(), bytes);
        let local =
            local.ok_or_else(|| GroupError::Usage("a message beyond its memory".to_owned()))?;
        let immediate = number as u64 & u64::from(u32::MAX);
        let post = self.endpoint.inject_write_with_immediate(local, remote, self.peer, immediate);
        Ok(post.map_err(broken)? == Post::Accepted)
    }

    fn place(
        &self,
        bytes: usize,
        number: usize,
    ) -> Result<(fabric::LocalBytes<'_, Data>, RemoteBytes<Data>), GroupError> {
        let offset = number % self.slots.count * self.slots.send_stride;
        let local = self.source.local(offset, bytes);
        let local =
            local.ok_or_else(|| GroupError::Usage("a message beyond its memory".to_owned()))?;
        Ok((local, RemoteBytes { address: self.remote_base + offset as u64, key: self.remote_key }))
    }

    #[inline]
    fn poll(&mut self) -> Result<(), GroupError> {
        match self.queue.read(&mut self.batch) {
            CqPoll::Empty => {}
            CqPoll::Completions(completions) => {
                let arrived =
                    completions.iter().filter(|completion| completion.is_remote_write()).count();
                self.arrived += arrived;
                self.ended += completions.len() - arrived;
            }
            CqPoll::Failed(error) => {
                return Err(GroupError::Contract(format!("a write failed: {error}")));
            }
            CqPoll::Broken(error) => return Err(broken(error)),
        }
        Ok(())
    }

    #[inline]
    fn pace(&mut self, moved: bool, what: &'static str) -> Result<(), GroupError> {
        if moved {
            self.patience.reset();
            return Ok(());
        }
        self.patience.idle(|| what.to_owned())
    }
}

fn broken(error: FabricError) -> GroupError {
    GroupError::Contract(format!("libfabric: {error}"))
}
