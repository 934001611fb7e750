//! A rank: joins the communicator, then for each size warms up, measures and checks, out of place and in place.

use std::process;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use gpu::{DeviceMemory, Devices};
use ironrail_group::bootstrap::{Bootstrap, Meeting, Remote};
use ironrail_group::check::{self, POISON};
use ironrail_group::error::GroupError;
use ironrail_group::loader::{Buffer, Op};
use ironrail_group::with_element;
use nccl::{Communicator, Nccl, NcclError, Range, UNIQUE_ID_BYTES};

use super::Options;
use super::collective::{At, InPlace, Shape, kind};
use super::report::{Event, Ready, Row, Side};
use crate::answers::say;
use crate::output;

/// Runs this process's rank. Returns whether it succeeded; wrong data is reported in the rows.
pub(super) fn part(options: &Options, meeting: Meeting) -> Result<bool, GroupError> {
    let rank = meeting.rank;
    let mut place = Remote::join(meeting, options.timeout())?;
    match run(options, &mut place) {
        Ok(()) => {
            place.leave();
            Ok(true)
        }
        // The launcher prints the error, in order with those of other ranks.
        Err(error) if place.give_up(&error) => Ok(false),
        Err(error) => Err(error.of_rank(rank)),
    }
}

fn run(options: &Options, place: &mut Remote) -> Result<(), GroupError> {
    let (rank, wait) = (place.rank(), options.timeout());
    let (devices, nccl) = open(options)?;
    let count = usize::try_from(devices.count()).unwrap_or(0).max(1);
    let device = i32::try_from(options.device.unwrap_or(rank % count)).unwrap_or(i32::MAX);
    let id = if rank == 0 { nccl.unique_id().map_err(failed)?.to_vec() } else { Vec::new() };
    let ids = place.all_gather(&id, wait)?;
    let id: [u8; UNIQUE_ID_BYTES] = ids[0].as_slice().try_into().map_err(|_| {
        GroupError::Bootstrap(format!("rank 0 sent an id of {} bytes", ids[0].len()))
    })?;
    let joining = Watch::over("ncclCommInitRank", wait);
    let communicator =
        Communicator::init(&nccl, &devices, device, id, rank, place.size()).map_err(failed)?;
    joining.end();
    introduce(&nccl, &devices, device, place, wait)?;
    let shape = options.test.shape(options.last() / options.kind.bytes(), place.size());
    let bytes = shape.input.max(shape.output) * options.kind.bytes() + GUARD_BYTES;
    let allocate = || devices.allocate(device, bytes).map_err(|why| failed(why.into()));
    let mut work = Work {
        options,
        communicator,
        send: allocate()?,
        receive: allocate()?,
        host: Buffer::new(bytes)?,
    };
    let measured = work.measure_all(place);
    let leaving = Watch::over("ncclCommDestroy", wait);
    drop(work);
    leaving.end();
    measured
}

/// Opens the driver and NCCL.
pub(super) fn open(options: &Options) -> Result<(Devices, Arc<Nccl>), GroupError> {
    let devices = Devices::open().map_err(|why| {
        GroupError::Load(format!(
            "{why}: NCCL runs on GPUs, which `nvidia-smi` lists where there are some"
        ))
    })?;
    let nccl = Nccl::open(options.nccl.as_deref()).map_err(failed)?;
    Ok((devices, nccl))
}

/// Guard bytes behind every output, which must not change.
const GUARD_BYTES: usize = 4096;

fn introduce(
    nccl: &Nccl,
    devices: &Devices,
    device: i32,
    place: &mut Remote,
    wait: Duration,
) -> Result<(), GroupError> {
    let name = devices.name(device).unwrap_or_else(|| "unnamed".to_owned());
    let line =
        format!("Rank {:>2} Pid {:>6} device {device} [{name}]", place.rank(), process::id());
    let lines = place.all_gather(line.as_bytes(), wait)?;
    if place.rank() == 0 {
        say(&Event::Ready(Ready {
            nccl: nccl.version().map_err(failed)?,
            file: nccl.file().to_owned(),
            driver: devices.driver_version(),
            ranks: output::lines_of_ranks(&lines),
        }));
    }
    Ok(())
}

struct Work<'o> {
    options: &'o Options,
    communicator: Communicator, // Destroyed before the memory is freed.
    send: DeviceMemory,
    receive: DeviceMemory,
    /// Where data is generated and checked.
    host: Buffer,
}

impl Work<'_> {
    fn measure_all(&mut self, place: &mut Remote) -> Result<(), GroupError> {
        for size in self.options.sizes() {
            let row = self.measure(size, place)?;
            if place.rank() == 0 {
                say(&Event::Row(row));
            }
        }
        place.barrier(self.options.timeout())
    }

    fn measure(&mut self, size: usize, place: &mut Remote) -> Result<Row, GroupError> {
        let (test, kind) = (self.options.test, self.options.kind);
        let shape = test.shape(size / kind.bytes(), place.size());
        let out_of_place = self.side(shape, None, place)?;
        let in_place = match test.in_place(place.rank(), shape) {
            Some(ranges) => Some(self.side(shape, Some(ranges), place)?),
            None => None,
        };
        Ok(Row {
            bytes: shape.whole * kind.bytes(),
            count: shape.count,
            kind: kind.name().to_owned(),
            operation: test.operation().to_owned(),
            out_of_place,
            in_place,
        })
    }

    /// Measures one half of a row: out of place, or in place by `ranges`.
    fn side(
        &mut self,
        shape: Shape,
        ranges: Option<InPlace>,
        place: &mut Remote,
    ) -> Result<Side, GroupError> {
        let (options, wait) = (self.options, self.options.timeout());
        place.barrier(wait)?;
        self.go(shape, ranges, options.warmups)?;
        let took = self.go(shape, ranges, options.iterations)?;
        let mut wrong = 0;
        for iteration in 0..options.check {
            let at = At { rank: place.rank(), ranks: place.size(), count: shape.count, iteration };
            wrong += self.check(shape, ranges, at)?;
        }
        let iterations = u32::try_from(options.iterations).unwrap_or(u32::MAX).max(1);
        let own_us = took.as_secs_f64() * 1e6 / f64::from(iterations);
        let mut part = own_us.to_le_bytes().to_vec();
        part.extend(wrong.to_le_bytes());
        let parts = place.all_gather(&part, wait)?;
        let (mut sum_us, mut wrong) = (0.0, 0_u64);
        for part in &parts {
            let (time, count) = part.split_first_chunk::<8>().ok_or_else(|| strange(part))?;
            sum_us += f64::from_le_bytes(*time);
            let count = u64::from_le_bytes(count.try_into().map_err(|_| strange(part))?);
            wrong = wrong.saturating_add(count);
        }
        // nccl-tests too reports the average over ranks.
        #[allow(clippy::cast_precision_loss, reason = "a few ranks")]
        let time_us = sum_us / place.size() as f64;
        let bytes = shape.whole * options.kind.bytes();
        let factor = options.test.bus_factor(place.size());
        Ok(Side::new(time_us, bytes, factor, (options.check > 0).then_some(wrong)))
    }

    fn go(
        &mut self,
        shape: Shape,
        ranges: Option<InPlace>,
        times: usize,
    ) -> Result<Duration, GroupError> {
        let options = self.options;
        let width = options.kind.bytes();
        let (send, receive) = match ranges {
            None => {
                (Range { memory: &self.send, start: 0 }, Range { memory: &self.receive, start: 0 })
            }
            Some(InPlace { input, output }) => (
                Range { memory: &self.receive, start: input * width },
                Range { memory: &self.receive, start: output * width },
            ),
        };
        let (collective, wait) = (options.test.collective(), options.timeout());
        let kind = kind(options.kind)
            .ok_or_else(|| GroupError::Usage(format!("NCCL has no type {}", options.kind)))?;
        // `run` bounds the wait between them itself, and reports what NCCL says of it.
        let running = Watch::over("a collective, or ncclCommAbort after it,", 2 * wait);
        let ran =
            self.communicator.run(collective, kind, shape.count, (send, receive), times, wait);
        running.end();
        ran.map_err(failed)
    }

    /// Runs once on fresh data. Returns the number of wrong elements, guard bytes included.
    fn check(&mut self, shape: Shape, ranges: Option<InPlace>, at: At) -> Result<u64, GroupError> {
        let kind = self.options.kind;
        let width = kind.bytes();
        let whole = self.host.len();
        check::poison(&mut self.host)?;
        write(&self.receive, 0, self.host.slice::<u8>(0..whole)?)?;
        let terms = (kind, Op::Sum, self.options.test.terms(at.ranks));
        check::fill_for(&mut self.host, terms, 0, shape.input, at.rank, at.iteration)?;
        let input = self.host.slice::<u8>(0..shape.input * width)?;
        match ranges {
            None => write(&self.send, 0, input)?,
            Some(InPlace { input: start, .. }) => write(&self.receive, start * width, input)?,
        }
        self.go(shape, ranges, 1)?;
        let start = ranges.map_or(0, |ranges| ranges.output) * width;
        let len = shape.output * width;
        let found = self.receive.read(start, len + GUARD_BYTES.min(whole - start - len));
        let found = found.map_err(|why| failed(why.into()))?;
        self.host.slice_mut::<u8>(0..found.len())?.copy_from_slice(&found);
        // In place, the bytes behind a part of the output may be the rest of the input.
        let guarded = ranges.is_none() || shape.output >= shape.input;
        let behind = if guarded { &found[len..] } else { &[] };
        let touched = behind.iter().filter(|byte| **byte != POISON).count() as u64;
        let test = self.options.test;
        let wrong = with_element!(kind, T => test.count_wrong(self.host.slice::<T>(0..len)?, at));
        Ok(wrong + touched)
    }
}

fn write(memory: &DeviceMemory, at: usize, bytes: &[u8]) -> Result<(), GroupError> {
    memory.write(at, bytes).map_err(|why| failed(why.into()))
}

fn failed(why: NcclError) -> GroupError {
    match why {
        NcclError::Unavailable { .. } => GroupError::Load(why.to_string()),
        why => GroupError::Contract(why.to_string()),
    }
}

fn strange(part: &[u8]) -> GroupError {
    GroupError::Bootstrap(format!("a rank sent {} bytes for its times", part.len()))
}

/// Ends the process when a call of NCCL does not return: NCCL bounds none of its calls.
struct Watch(Sender<()>);

impl Watch {
    fn over(call: &'static str, limit: Duration) -> Self {
        let (send, ended) = mpsc::channel();
        let watch = move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                output::print_error(format_args!(
                    "{call} has not returned for {:.0} s",
                    limit.as_secs_f64()
                ));
                process::exit(STUCK);
            }
        };
        let _ = thread::Builder::new().name("watch".to_owned()).spawn(watch);
        Self(send)
    }

    fn end(self) {
        let _ = self.0.send(());
    }
}

const STUCK: i32 = 1;
