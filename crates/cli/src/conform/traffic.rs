//! Messages in flight: each flow is one direction of a connection, advanced step by step, with every byte checked.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use gpu::Devices;
use net_loader::raw::{
    Arena, Before, Receive, ReceiveComm, Region, Request, SendComm, Tested, Wrong,
};

use super::case::{Case, Idle, Outcome, Stop, fail, hold};

/// A message and its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) bytes: usize,
    /// The receive's size.
    pub(super) room: usize,
    pub(super) tag: i32,
    /// Offsets from an aligned address, at both ends.
    pub(super) shifts: (usize, usize),
}

impl Message {
    pub(super) fn of(bytes: usize) -> Self {
        Self { bytes, room: bytes, tag: 0, shifts: (0, 0) }
    }

    pub(super) fn in_room(self, room: usize) -> Self {
        Self { room, ..self }
    }

    pub(super) fn tagged(self, tag: i32) -> Self {
        Self { tag, ..self }
    }

    pub(super) fn shifted(self, out: usize, into: usize) -> Self {
        Self { shifts: (out, into), ..self }
    }
}

/// How the calls are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    /// Requests outstanding at once.
    pub(super) window: usize,
    /// The content of *request before the call.
    pub(super) before: Before,
    /// The memory that `test` writes to is filled with garbage.
    pub(super) poisoned: bool,
    /// `test` gets null for sizes.
    pub(super) bare: bool,
    /// Profiler handles are an array of nulls instead of null.
    pub(super) parents: bool,
    /// All requests are tested, the newest first.
    pub(super) newest_first: bool,
    /// Where the buffers are.
    pub(super) memory: Memory,
}

/// The kind of memory, and how it is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    Host,
    /// A GPU's, by its address.
    Gpu(i32),
    /// A GPU's, by its dmabuf.
    Dmabuf(i32),
}

impl Memory {
    /// Skips if there is not enough memory.
    pub(super) fn allocate(self, len: usize) -> Outcome<Arena> {
        let (Self::Gpu(device) | Self::Dmabuf(device)) = self else { return arena(len) };
        let devices = gpus()?;
        Arena::on_device(&devices, device, len)
            .map_err(|error| Stop::Skip(format!("GPU {device} has no {len} bytes: {error}")))
    }

    /// Registers a whole arena on either kind of comm.
    pub(super) fn register(self, comm: &impl Registers, memory: Arena) -> Outcome<Region> {
        match self {
            Self::Host | Self::Gpu(_) => Ok(comm.register(memory)?),
            Self::Dmabuf(_) => {
                let dmabuf = memory
                    .dmabuf()
                    .map_err(|error| Stop::Skip(format!("there is no dmabuf: {error}")))?;
                Ok(comm.register_dmabuf(memory, dmabuf)?)
            }
        }
    }

    /// Whether received bytes need a flush to be visible.
    pub(super) fn is_flushed(self) -> bool {
        self != Self::Host
    }
}

/// The GPUs of this machine; skips with the reason if there are none.
pub(super) fn gpus() -> Outcome<Devices> {
    Devices::open().map_err(|why| Stop::Skip(format!("no GPU: {why}")))
}

/// Either kind of comm.
pub(super) trait Registers {
    fn register(&self, memory: Arena) -> Result<Region, Wrong>;
    fn register_dmabuf(&self, memory: Arena, dmabuf: OwnedFd) -> Result<Region, Wrong>;
}

impl Registers for SendComm {
    fn register(&self, memory: Arena) -> Result<Region, Wrong> {
        self.register(memory, 0, memory.len())
    }

    fn register_dmabuf(&self, memory: Arena, dmabuf: OwnedFd) -> Result<Region, Wrong> {
        self.register_dmabuf(memory, dmabuf)
    }
}

impl Registers for ReceiveComm {
    fn register(&self, memory: Arena) -> Result<Region, Wrong> {
        self.register(memory, 0, memory.len())
    }

    fn register_dmabuf(&self, memory: Arena, dmabuf: OwnedFd) -> Result<Region, Wrong> {
        self.register_dmabuf(memory, dmabuf)
    }
}

impl Manner {
    /// As NCCL's proxies do: eight steps, the oldest request tested.
    pub(super) const LIKE_NCCL: Self = Self {
        window: 8,
        before: Before::Null,
        poisoned: false,
        bare: false,
        parents: true,
        newest_first: false,
        memory: Memory::Host,
    };
}

/// Traffic that is advanced step by step.
pub(super) trait Flow {
    /// Makes a step. Returns whether anything moved.
    fn step(&mut self) -> Outcome<bool>;
    fn is_finished(&self) -> bool;
    fn says(&self) -> String;
}

/// Advances all flows until they are done.
pub(super) fn drive(case: &Case, what: &str, flows: &mut [&mut dyn Flow]) -> Outcome {
    case.stage(what);
    let mut idle = Idle::default();
    while flows.iter().any(|flow| !flow.is_finished()) {
        let mut moved = false;
        for flow in flows.iter_mut().filter(|flow| !flow.is_finished()) {
            moved |= flow.step()?;
        }
        if moved {
            idle.end();
        } else {
            case.in_time(|| {
                let flows: Vec<String> = flows.iter().map(|flow| flow.says()).collect();
                format!("{what}: {}", flows.join("; "))
            })?;
            idle.pass();
        }
    }
    Ok(())
}

/// Calls `post`, which returns the number of outstanding requests, until a window is full. A call may return null for a while, so it is
/// repeated often and long enough.
pub(super) fn fill(
    case: &Case,
    call: &str,
    window: usize,
    mut post: impl FnMut() -> Outcome<usize>,
) -> Outcome {
    case.stage(&format!("post {window} by {call}, testing none"));
    let begun = Instant::now();
    for tries in 0.. {
        let outstanding = post()?;
        if outstanding >= window {
            return Ok(());
        }
        hold!(
            tries < TRIES || begun.elapsed() < PATIENCE,
            "{call} takes {outstanding} requests and not {window}: the next one got null {TRIES} times"
        );
        case.in_time(|| format!("{outstanding} of {window} posted by {call}"))?;
        thread::yield_now();
    }
    Ok(())
}

/// How often, and how long, a call that may return null is repeated.
const TRIES: usize = 3000;
const PATIENCE: Duration = Duration::from_millis(1500);

/// Sends messages.
#[derive(Debug)]
pub(super) struct Outgoing<'a> {
    comm: &'a SendComm,
    region: Region,
    slots: Slots,
    messages: Vec<Message>,
    manner: Manner,
    salt: usize,
    next: usize,
    /// The slot that holds the next message already.
    filled: Option<usize>,
    done: usize,
    outstanding: VecDeque<(Request, usize)>,
}

impl<'a> Outgoing<'a> {
    pub(super) fn new(
        comm: &'a SendComm,
        salt: usize,
        messages: &[Message],
        manner: Manner,
    ) -> Outcome<Self> {
        let largest = messages.iter().map(|message| message.bytes + message.shifts.0).max();
        let slots = Slots::new(largest.unwrap_or(0), manner)?;
        let region = manner.memory.register(comm, slots.arena)?;
        Ok(Self {
            comm,
            region,
            slots,
            messages: messages.to_vec(),
            manner,
            salt,
            next: 0,
            filled: None,
            done: 0,
            outstanding: VecDeque::new(),
        })
    }

    /// The number of accepted messages.
    pub(super) fn posted(&self) -> usize {
        self.next
    }

    /// Posts a full window, and tests none, so that all are outstanding together. Calls `meanwhile` between attempts.
    pub(super) fn fill(&mut self, case: &Case, mut meanwhile: impl FnMut() -> Outcome) -> Outcome {
        let window = self.manner.window.min(self.messages.len());
        fill(case, "isend", window, || {
            self.post()?;
            meanwhile()?;
            Ok(self.outstanding.len())
        })
    }

    pub(super) fn done(&self) -> usize {
        self.done
    }

    /// Posts one isend, if there is a message and room for it. Returns whether the plugin accepted it.
    pub(super) fn post(&mut self) -> Outcome<bool> {
        let Some(message) = self.messages.get(self.next).copied() else { return Ok(false) };
        let Some(slot) = self.filled.or_else(|| self.slots.next()) else { return Ok(false) };
        let at = self.slots.at(slot) + message.shifts.0;
        if self.filled.is_none() {
            self.slots.arena.write(at, &pattern(self.salt, self.next, message.bytes));
            self.filled = Some(slot);
        }
        let place = (self.slots.arena, at, message.bytes);
        let before = match self.manner.before {
            Before::Optional => Before::Stale,
            before => before,
        };
        let Some(request) = self.comm.isend(place, message.tag, &self.region, before)? else {
            return Ok(false);
        };
        self.slots.take(slot);
        self.outstanding.push_back((request, slot));
        self.next += 1;
        self.filled = None;
        Ok(true)
    }

    /// Tests as the manner says. Returns whether a request was done.
    pub(super) fn poll(&mut self) -> Outcome<bool> {
        let Some(place) = poll(&mut self.outstanding, self.manner)? else { return Ok(false) };
        let ((_, slot), tested) = place;
        let second = (1..tested.sizes.len()).any(|place| tested.wrote(place));
        hold!(
            !self.manner.poisoned || !second,
            "send {}: test wrote a second size, where NCCL has room for one",
            self.done
        );
        // The caller may reuse the buffer, as NCCL does.
        self.slots.spoil(slot);
        self.done += 1;
        Ok(true)
    }

    pub(super) fn end(self) -> Outcome {
        Ok(self.region.deregister()?)
    }

    /// For behaviours that end with requests in flight.
    pub(super) fn into_region(self) -> Region {
        self.region
    }

    /// The same, with the memory.
    pub(super) fn into_parts(self) -> (Region, Arena) {
        (self.region, self.slots.arena)
    }
}

impl Flow for Outgoing<'_> {
    fn step(&mut self) -> Outcome<bool> {
        let posted = self.post()?;
        Ok(self.poll()? || posted)
    }

    fn is_finished(&self) -> bool {
        self.done == self.messages.len()
    }

    fn says(&self) -> String {
        format!("{} of {} sends done, {} posted", self.done, self.messages.len(), self.next)
    }
}

/// Receives messages and checks them.
#[derive(Debug)]
pub(super) struct Incoming<'a> {
    comm: &'a ReceiveComm,
    region: Region,
    slots: Slots,
    messages: Vec<Message>,
    manner: Manner,
    salt: usize,
    next: usize,
    /// The slot that is cleared for the next message.
    cleared: Option<usize>,
    done: usize,
    outstanding: VecDeque<(Request, (usize, usize))>,
    /// A flush in progress, and the message that it is for; nothing else is polled meanwhile.
    flush: Option<(Request, (usize, usize))>,
}

impl<'a> Incoming<'a> {
    pub(super) fn new(
        comm: &'a ReceiveComm,
        salt: usize,
        messages: &[Message],
        manner: Manner,
    ) -> Outcome<Self> {
        let largest = messages.iter().map(|message| message.room + message.shifts.1).max();
        let slots = Slots::new(largest.unwrap_or(0), manner)?;
        let region = manner.memory.register(comm, slots.arena)?;
        Ok(Self {
            comm,
            region,
            slots,
            messages: messages.to_vec(),
            manner,
            salt,
            next: 0,
            cleared: None,
            done: 0,
            outstanding: VecDeque::new(),
            flush: None,
        })
    }

    pub(super) fn posted(&self) -> usize {
        self.next
    }

    /// As [`Outgoing::fill`].
    pub(super) fn fill(&mut self, case: &Case) -> Outcome {
        let window = self.manner.window.min(self.messages.len());
        fill(case, "irecv", window, || {
            self.post()?;
            Ok(self.outstanding.len())
        })
    }

    pub(super) fn post(&mut self) -> Outcome<bool> {
        let Some(message) = self.messages.get(self.next).copied() else { return Ok(false) };
        let Some(slot) = self.cleared.or_else(|| self.slots.next()) else { return Ok(false) };
        let at = self.slots.at(slot) + message.shifts.1;
        if self.cleared.is_none() {
            clear(self.slots.arena, at, message.room);
            self.cleared = Some(slot);
        }
        let part = Receive {
            arena: self.slots.arena,
            at,
            len: message.room,
            tag: message.tag,
            region: &self.region,
        };
        let posted = self.comm.irecv(&[part], self.manner.before, self.manner.parents)?;
        let Some(request) = posted else { return Ok(false) };
        self.slots.take(slot);
        self.outstanding.push_back((request, (slot, self.next)));
        self.next += 1;
        self.cleared = None;
        Ok(true)
    }

    pub(super) fn poll(&mut self) -> Outcome<bool> {
        if let Some((request, place)) = &mut self.flush {
            let place = *place;
            if !request.test_over(self.manner.poisoned, true)?.done {
                return Ok(false);
            }
            self.flush = None;
            return self.see(place);
        }
        let Some(found) = poll(&mut self.outstanding, self.manner)? else { return Ok(false) };
        let ((_, (slot, number)), tested) = found;
        let message = self.messages[number];
        if !self.manner.bare {
            check_sizes(number, &tested, &[message.bytes], self.manner.poisoned)?;
        }
        if self.manner.memory.is_flushed() && message.bytes > 0 {
            let at = self.slots.at(slot) + message.shifts.1;
            let (arena, len, tag) = (self.slots.arena, message.bytes, message.tag);
            let part = Receive { arena, at, len, tag, region: &self.region };
            let request = self.comm.iflush(&[part], self.manner.before)?;
            if let Some(request) = request {
                self.flush = Some((request, (slot, number)));
                return Ok(true);
            }
        }
        self.see((slot, number))
    }

    /// Checks a received message, and frees its slot.
    fn see(&mut self, (slot, number): (usize, usize)) -> Outcome<bool> {
        let message = self.messages[number];
        let at = self.slots.at(slot) + message.shifts.1;
        check(self.slots.arena, at, &pattern(self.salt, number, message.bytes), message.room)
            .map_err(|why| Stop::Fail(format!("message {number}: {why}")))?;
        self.slots.spoil(slot);
        self.done += 1;
        Ok(true)
    }

    pub(super) fn end(self) -> Outcome {
        Ok(self.region.deregister()?)
    }

    pub(super) fn into_region(self) -> Region {
        self.region
    }

    pub(super) fn into_parts(self) -> (Region, Arena) {
        (self.region, self.slots.arena)
    }

    /// Whether the buffers of completed receives still have the content that overwrote them.
    pub(super) fn is_spoilt(&self) -> bool {
        let free = (0..self.slots.taken.len()).filter(|slot| !self.slots.taken[*slot]);
        let mut found =
            free.map(|slot| self.slots.arena.read(self.slots.at(slot), self.slots.largest));
        found.all(|bytes| first_other_than(&bytes, SPOILT).is_none())
    }
}

impl Flow for Incoming<'_> {
    fn step(&mut self) -> Outcome<bool> {
        let posted = self.post()?;
        Ok(self.poll()? || posted)
    }

    fn is_finished(&self) -> bool {
        self.done == self.messages.len()
    }

    fn says(&self) -> String {
        format!("{} of {} receives done, {} posted", self.done, self.messages.len(), self.next)
    }
}

/// Checks the sizes that the plugin reported for a receive.
pub(super) fn check_sizes(
    number: usize,
    tested: &Tested,
    expected: &[usize],
    poisoned: bool,
) -> Outcome {
    for (place, bytes) in expected.iter().enumerate() {
        let said = tested.sizes[place];
        hold!(
            !poisoned || tested.wrote(place),
            "receive {number}: test left size {place} as it was"
        );
        hold!(
            usize::try_from(said) == Ok(*bytes),
            "receive {number}: test says that message {place} has {said} bytes, it has {bytes}"
        );
    }
    let past = (expected.len()..tested.sizes.len()).find(|place| poisoned && tested.wrote(*place));
    match past {
        None => Ok(()),
        Some(place) => fail(format_args!(
            "receive {number}: test wrote size {place} of a receive of {}",
            expected.len()
        )),
    }
}

/// Tests the oldest request, or all from the newest; removes one that is done.
fn poll<T>(
    outstanding: &mut VecDeque<(Request, T)>,
    manner: Manner,
) -> Outcome<Option<((Request, T), Tested)>> {
    let count = if manner.newest_first { outstanding.len() } else { outstanding.len().min(1) };
    for place in (0..count).rev() {
        let tested = outstanding[place].0.test_over(manner.poisoned, manner.bare)?;
        if tested.done {
            return Ok(outstanding.remove(place).map(|found| (found, tested)));
        }
    }
    Ok(None)
}

/// The buffers of a window, each between guards.
#[derive(Debug)]
struct Slots {
    arena: Arena,
    stride: usize,
    largest: usize,
    taken: Vec<bool>,
}

impl Slots {
    fn new(largest: usize, manner: Manner) -> Outcome<Self> {
        let stride = (largest + 2 * GUARD_BYTES).next_multiple_of(64);
        let arena = manner.memory.allocate(stride * manner.window)?;
        arena.fill(0, arena.len(), SPOILT);
        Ok(Self { arena, stride, largest, taken: vec![false; manner.window] })
    }

    /// The slot for the next message.
    fn next(&self) -> Option<usize> {
        self.taken.iter().position(|taken| !taken)
    }

    fn take(&mut self, slot: usize) {
        self.taken[slot] = true;
    }

    /// Frees a slot, and overwrites it.
    fn spoil(&mut self, slot: usize) {
        self.arena.fill(self.at(slot), self.largest, SPOILT);
        self.taken[slot] = false;
    }

    fn at(&self, slot: usize) -> usize {
        slot * self.stride + GUARD_BYTES
    }
}

pub(super) fn arena(len: usize) -> Outcome<Arena> {
    Arena::new(len).ok_or_else(|| Stop::Skip(format!("there are no {len} bytes of memory")))
}

/// Poisons the receive's memory, and writes the guards around it.
pub(super) fn clear(arena: Arena, at: usize, room: usize) {
    arena.fill(at - GUARD_BYTES, GUARD_BYTES, GUARD);
    arena.fill(at, room, POISON);
    arena.fill(at + room, GUARD_BYTES, GUARD);
}

/// Checks that the message is as sent, that poison fills the rest of the receive, and that the guards are intact.
pub(super) fn check(arena: Arena, at: usize, expected: &[u8], room: usize) -> Result<(), String> {
    let all = arena.read(at - GUARD_BYTES, room + 2 * GUARD_BYTES);
    let (before, rest) = all.split_at(GUARD_BYTES);
    let (found, after) = rest.split_at(room);
    if first_other_than(before, GUARD).or_else(|| first_other_than(after, GUARD)).is_some() {
        let guards = before.iter().chain(after).filter(|byte| **byte != GUARD).count();
        return Err(format!("{guards} bytes outside its receive of {room} bytes are overwritten"));
    }
    let (data, tail) = found.split_at(expected.len().min(room));
    if data != &expected[..data.len()] {
        return Err(wrong(data, expected));
    }
    match first_other_than(tail, POISON) {
        None => Ok(()),
        Some(place) => Err(format!(
            "byte {} of the receive is written, past the message's {} bytes",
            data.len() + place,
            expected.len()
        )),
    }
}

/// Describes how the bytes differ, and from which message they come if that is known.
fn wrong(data: &[u8], expected: &[u8]) -> String {
    let places: Vec<usize> =
        (0..data.len()).filter(|place| data[*place] != expected[*place]).collect();
    let all = |byte: u8| places.iter().all(|place| data[*place] == byte);
    let known = if all(SPOILT) {
        ": they are what the sender wrote there after its send was done"
    } else if all(POISON) {
        ": nothing has come there"
    } else {
        ""
    };
    let first = places.first().copied().unwrap_or(0);
    let (count, len) = (places.len(), expected.len());
    format!("{count} of its {len} bytes are wrong, the first at {first}{known}")
}

/// Content that identifies a message, its sender and each place: noise, starting at an offset of each message's own. Its period is a length
/// that no stripe, slot or message has. It is copied, since a debug build generates noise slowly.
pub(super) fn pattern(salt: usize, number: usize, len: usize) -> Vec<u8> {
    let own = (salt as u64 + 1) << 48 ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (own ^ own >> 31).wrapping_mul(0x5851_f42d_4c95_7f2d);
    let noise = noise();
    let mut at = usize::try_from((mixed ^ mixed >> 29) % noise.len() as u64).unwrap_or(0);
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let part = (len - bytes.len()).min(noise.len() - at);
        bytes.extend_from_slice(&noise[at..at + part]);
        at = 0;
    }
    bytes
}

/// Noise; its length is a prime number.
fn noise() -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    NOISE.get_or_init(|| {
        let mut bytes = Vec::with_capacity(NOISE_BYTES + 8);
        let mut state = 0x1405_7b7e_f767_814f_u64;
        while bytes.len() < NOISE_BYTES {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            bytes.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
        }
        bytes.truncate(NOISE_BYTES);
        bytes
    })
}

const NOISE_BYTES: usize = 262_147;

/// The first byte that differs from `byte`. Whole blocks are compared at once, which is fast in a debug build too.
pub(super) fn first_other_than(bytes: &[u8], byte: u8) -> Option<usize> {
    let block = [byte; 4096];
    let differs = |part: &[u8]| part != &block[..part.len()];
    let at = bytes.chunks(block.len()).position(differs)? * block.len();
    bytes[at..].iter().position(|found| *found != byte).map(|place| at + place)
}

pub(super) const GUARD_BYTES: usize = 256;
const GUARD: u8 = 0xee;
const POISON: u8 = 0xa5;
const SPOILT: u8 = 0x3c;

#[cfg(test)]
mod tests {
    use super::*;

    fn landed(bytes: &[u8], room: usize) -> Result<(), String> {
        let arena = arena(4096).unwrap();
        clear(arena, 1024, room);
        arena.write(1024, bytes);
        check(arena, 1024, &pattern(1, 2, 100), room)
    }

    #[test]
    fn a_whole_message_with_intact_guards_is_right() {
        assert_eq!(landed(&pattern(1, 2, 100), 120), Ok(()));
    }

    #[test]
    fn a_wrong_byte_a_written_rest_and_an_overwritten_guard_are_named() {
        let mut bytes = pattern(1, 2, 100);
        bytes[7] ^= 1;
        assert!(landed(&bytes, 100).unwrap_err().contains("the first at 7"));
        let mut bytes = pattern(1, 2, 100);
        bytes.push(0);
        assert!(landed(&bytes, 120).unwrap_err().contains("byte 100 of the receive"));
        assert!(landed(&bytes, 100).unwrap_err().contains("1 bytes outside"));
    }

    #[test]
    fn the_first_other_byte_is_found_at_every_position() {
        let mut bytes = vec![7; 10_000];
        assert_eq!(first_other_than(&bytes, 7), None);
        for at in [9999, 4096, 4095, 0] {
            bytes[at] = 8;
            assert_eq!(first_other_than(&bytes, 7), Some(at));
        }
        assert_eq!(first_other_than(&[], 7), None);
    }

    #[test]
    fn patterns_differ_by_sender_number_and_place() {
        let all = [pattern(0, 0, 64), pattern(1, 0, 64), pattern(0, 1, 64), pattern(1, 1, 64)];
        for (place, one) in all.iter().enumerate() {
            assert!(all.iter().skip(place + 1).all(|other| one[..8] != other[..8]));
            assert_ne!(one[..8], one[8..16]);
        }
        let long = pattern(0, 0, 3 << 20);
        for stripe in [4096, 65_536, 262_144, 1 << 20] {
            assert_ne!(long[..64], long[stripe..stripe + 64]);
        }
    }
}
