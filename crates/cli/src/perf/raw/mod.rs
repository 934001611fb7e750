//! Bare libfabric, used as the plugin uses it: the reference for the plugin's figures.

mod messages;
mod rendezvous;
mod writes;

use std::process;
use std::time::Duration;

use fabric::{FabricError, Info, Library, Nic, Query};
use ironrail_group::bootstrap::Bootstrap;
use ironrail_group::error::GroupError;
use ironrail_group::patience::Patience;

use super::arguments::{Benchmark, Options, Place, Raw};
use super::benchmarks::Shape;
use super::outcome::{Outcome, row};
use super::report::{Event, Moved, Ready};
use super::statistics::Stopwatch;
use super::writes::Posts;
use crate::output;

/// Runs this rank of two. `emit` is called on rank 0 only.
pub(super) fn run(
    raw: &Raw,
    options: &Options,
    bootstrap: &mut dyn Bootstrap,
    emit: &mut dyn FnMut(Event),
) -> Result<(), GroupError> {
    let info = find(&raw.place)?;
    let mut side: Box<dyn Side> = if raw.two_sided {
        Box::new(messages::Mail::open(raw, options, &info, bootstrap)?)
    } else if raw.rendezvous {
        Box::new(rendezvous::Pair::open(raw, options, &info, bootstrap)?)
    } else {
        Box::new(writes::Rail::open(raw, options, &info, bootstrap)?)
    };
    measure(raw, options, &info, &mut *side, bootstrap, emit)
        .inspect_err(|why| _ = bootstrap.give_up(why)) // The endpoint is still open.
}

/// What the waits of a [`Side`] need.
struct Waits<'a> {
    nic: &'a mut Nic,
    patience: &'a mut Patience,
    /// Messages that have arrived and are not counted.
    arrived: &'a mut usize,
}

/// One of the two ranks, with its endpoint. Rank 0 sends or serves.
trait Side {
    /// Prepares messages of one size.
    fn begin(&mut self, bytes: usize);
    /// Sends `messages` one way, one lap each.
    fn pour(&mut self, messages: usize, watch: &mut Stopwatch) -> Result<(), GroupError>;
    /// Receives them.
    fn take(&mut self, messages: usize, watch: &mut Stopwatch) -> Result<(), GroupError>;
    /// Sends each message and waits for the answer, or the other way round.
    fn rally(&mut self, messages: usize, watch: &mut Stopwatch) -> Result<(), GroupError>;
    /// Polls once.
    fn poll(&mut self) -> Result<(), GroupError>;
    /// The operations that were posted so far.
    fn posts(&self) -> fabric::Posts;
    fn waits(&mut self) -> Waits<'_>;

    /// Waits after a poll for what has not come yet, unless something has moved. If it takes too long, the cause may be an error that no operation
    /// has, which efa puts into the event queue.
    #[inline]
    fn pace(&mut self, moved: bool, what: &'static str) -> Result<(), GroupError> {
        let Waits { nic, patience, .. } = self.waits();
        if moved {
            patience.reset();
            return Ok(());
        }
        patience.idle(|| what.to_owned()).map_err(|late| match nic.endpoint_error() {
            Some(error) => GroupError::Contract(format!("libfabric: {error}")),
            None => late,
        })
    }

    /// Waits for a message, and counts it.
    #[inline]
    fn arrival(&mut self, what: &'static str) -> Result<(), GroupError> {
        self.waits().patience.reset();
        while *self.waits().arrived == 0 {
            self.poll()?;
            let moved = *self.waits().arrived > 0;
            self.pace(moved, what)?;
        }
        *self.waits().arrived -= 1;
        Ok(())
    }

    /// Final polls for operations that are still in the provider's own queue: the rendezvous that follows makes no progress.
    fn linger(&mut self) -> Result<(), GroupError> {
        (0..FINAL_POLLS).try_for_each(|_| self.poll())
    }
}

/// The completion queue's size. It is more than can be outstanding, as arrivals stay in the queue until they are polled.
const QUEUE_ENTRIES: usize = 4096;

const FINAL_POLLS: usize = 1000;

fn measure(
    raw: &Raw,
    options: &Options,
    info: &Info,
    side: &mut dyn Side,
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
        let library = info.library();
        emit(Event::Ready(Ready {
            network: format!("{} of libfabric {}", info.provider(), library.version()),
            table: 0,
            file: library.path().to_string_lossy().into_owned(),
            ranks: output::lines_of_ranks(&lines),
        }));
    }
    let benchmark = Benchmark::Raw(raw.clone());
    let mut laps = 0;
    for size in options.sizes() {
        // Whole elements, as in every other benchmark.
        let count = size / options.kind.bytes();
        let bytes = count * options.kind.bytes();
        let iterations = options.iterations(&benchmark, bytes);
        let warmups = options.warmups(&benchmark, iterations);
        let mut watch = Stopwatch::with_room(iterations.max(warmups));
        side.begin(bytes);
        bootstrap.barrier(wait)?;
        for messages in [warmups, iterations] {
            watch.start();
            match (raw.latency, first) {
                (true, _) => side.rally(messages, &mut watch)?,
                (false, true) => side.pour(messages, &mut watch)?,
                (false, false) => side.take(messages, &mut watch)?,
            }
            laps += messages;
        }
        side.linger()?;
        let times = watch.times();
        let times = if raw.latency { times.halved() } else { times };
        let all = Outcome { times, wrong: 0 }.of_all_ranks(bootstrap, wait)?;
        if first {
            let shape = Shape { bytes, count, bus_factor: 1.0 };
            emit(Event::Row(row(&benchmark, options, shape, iterations, &all)));
        }
    }
    if options.writes {
        let posts = all_posts(&side.posts(), bootstrap, wait)?;
        let messages = (if raw.latency { 2 * laps } else { laps }) as u64;
        if first {
            emit(Event::Moved(Moved { messages, posts: Some(posts) }));
        }
    }
    bootstrap.barrier(wait)
}

/// The posts of both ranks, added.
fn all_posts(
    own: &fabric::Posts,
    bootstrap: &mut dyn Bootstrap,
    wait: Duration,
) -> Result<Posts, GroupError> {
    let named = own.named();
    let bytes: Vec<u8> = named.iter().flat_map(|(_, count)| count.to_le_bytes()).collect();
    let mut all = Posts::default();
    for theirs in bootstrap.all_gather(&bytes, wait)? {
        for ((kind, _), count) in named.iter().zip(theirs.chunks_exact(8)) {
            let count = count.try_into().map(u64::from_le_bytes);
            all.add(kind, count.unwrap_or_default());
        }
    }
    Ok(all)
}

/// Providers that carry rails on any machine, best first.
const USUAL: [&str; 3] = ["tcp", "net", "tcp;ofi_rxm"];

fn find(place: &Place) -> Result<Info, GroupError> {
    let library = Library::open(&[place.libfabric()]).map_err(|error| {
        GroupError::Load(format!("{error}; --libfabric, or IRONRAIL_LIBFABRIC, names one"))
    })?;
    let asked = match place.provider() {
        Some(provider) => vec![provider],
        None => USUAL.to_vec(),
    };
    for provider in &asked {
        let query = Query {
            provider: Some((*provider).to_owned()),
            source: place.source().map(str::to_owned),
            ..Query::default()
        };
        let found = library.find(&query).map_err(broken)?;
        // A name may also match a layered provider: tcp finds tcp;ofi_rxm.
        if let Some(info) = found.into_iter().find(|info| info.provider() == *provider) {
            return Ok(info);
        }
    }
    Err(GroupError::Load(format!(
        "libfabric {} has none of {} at {}; fi_info lists what there is, --provider and --source choose",
        library.version(),
        asked.join(", "),
        place.source().unwrap_or("any address")
    )))
}

fn broken(error: FabricError) -> GroupError {
    GroupError::Contract(format!("libfabric: {error}"))
}

fn beyond() -> GroupError {
    GroupError::Usage("a message beyond its memory".to_owned())
}

#[cfg(test)]
#[path = "../../../tests/support/built.rs"]
mod built;

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;
    use std::thread;

    use clap::Parser;
    use ironrail_group::bootstrap::Remote;

    use super::super::{Perf, Task};
    use super::*;
    use crate::loopback;

    /// A process of its own, since libfabric reads the environment when it is loaded; the virtual fabric joins threads only.
    #[test]
    fn every_way_repeats_the_posts_that_are_refused() {
        if env::var_os("VFABRIC_EAGAIN").is_some() {
            return every_way_runs();
        }
        let provider = built::library("vfabric", "libvfabric_fi.so");
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "perf::raw::tests::every_way_repeats_the_posts_that_are_refused"]);
        command.env("FI_PROVIDER_PATH", provider.parent().unwrap()).env("FI_PROVIDER", "vfabric");
        command.env("VFABRIC_PROFILE", "tcp").env("VFABRIC_EAGAIN", "500");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("1 passed"), "{said}");
    }

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        perf: Perf,
    }

    fn every_way_runs() {
        for way in [
            "--two-sided",
            "--two-sided --unanswered",
            "--two-sided --latency",
            "--answered",
            "--latency",
            "--rendezvous",
            "--rendezvous --latency",
        ] {
            for messages in [1, 20] {
                let rest = "--provider vfabric --source none --timeout 5 -w 0 -b 8 -e 64";
                let line = format!("perf raw {way} -n {messages} {rest}");
                let line = Line::try_parse_from(line.split(' ')).unwrap();
                let Ok(Task::Run(Benchmark::Raw(raw), options)) = line.perf.task() else {
                    panic!("{way} is a way of raw");
                };
                let hub = loopback::hub(2, options.timeout()).unwrap();
                let rank = |rank| {
                    let mut place = Remote::join(hub.meeting(rank), options.timeout()).unwrap();
                    let mut rows = 0;
                    let mut count = |event| rows += usize::from(matches!(event, Event::Row(_)));
                    run(&raw, options, &mut place, &mut count).map(|()| rows)
                };
                let [first, second] = thread::scope(|scope| {
                    [0, 1]
                        .map(|number| scope.spawn(move || rank(number)))
                        .map(|rank| rank.join().unwrap())
                });
                let rows = |ran: Result<usize, GroupError>| ran.map_err(|error| error.to_string());
                assert_eq!((rows(first), rows(second)), (Ok(4), Ok(0)), "{way}, {messages}");
            }
        }
    }
}
