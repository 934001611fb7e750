//! Messages between each pair of ranks: the child of each rank, and its results.
//!
//! Device k of a rank connects to device k of each other one, as NCCL's rails do. All pairs of some devices connect at once; a message that
//! fails is recorded, and does not affect the others.

use std::io::BufRead;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ironrail_group::bootstrap::{Bootstrap, Meeting, Remote};
use ironrail_group::channel::{ReceiveChannel, SendChannel};
use ironrail_group::check::{self, Expected};
use ironrail_group::error::GroupError;
use ironrail_group::loader::{
    Buffer, DataType, Handle, Library, ListenComm, Net, ReceiveComm, Region, SendComm,
};

use super::machine::{Pair, Transfer, are_apart};

/// Long enough to be striped over rails, short enough for a thousand peers.
const BYTES: usize = 150_000;
/// Connections that a rank has at once in each direction: one device at least is tried with all peers.
const AT_ONCE: usize = 256;

/// The ranges of devices that are tried together.
pub(super) fn batches(ranks: usize, devices: usize) -> impl Iterator<Item = Range<usize>> {
    let at_once = (AT_ONCE / ranks.max(1)).max(1);
    (0..devices).step_by(at_once).map(move |first| first..devices.min(first + at_once))
}

/// Runs one rank: the first line of standard input has the address of the rendezvous.
pub(super) fn run(net: &str, wait: Duration) -> Result<Vec<Pair>, GroupError> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|error| GroupError::System { what: "reading where the ranks meet", error })?;
    let meeting: Meeting = line.trim().parse()?;
    let mut place = Remote::join(meeting, wait)?;
    let pairs = over(net, &mut place, wait).inspect_err(|why| _ = place.give_up(why));
    place.leave();
    pairs
}

fn over(net: &str, place: &mut Remote, wait: Duration) -> Result<Vec<Pair>, GroupError> {
    let library = Library::open(net, None)?;
    let net = Net::init(&library, place.identity())?;
    let plane = |device| Ok(net.properties(device)?.plane);
    let planes: Vec<_> = (0..net.devices()?).map(plane).collect::<Result<_, GroupError>>()?;
    if planes.is_empty() {
        return Err(GroupError::Load("the plugin has no device".to_owned()));
    }
    let planes = all_planes(place, &planes, wait)?;
    let most = planes.iter().map(Vec::len).max().unwrap_or(0);
    let mut pairs = Vec::new();
    let mut broken = None;
    for devices in batches(planes.len(), most) {
        let mut lines = Vec::new();
        for (device, peer, is_apart) in connections(&planes, place.rank(), devices) {
            let untried = Pair { from: peer, to: place.rank(), device, ..Pair::default() };
            match &broken {
                _ if is_apart => pairs.push(untried),
                Some(_) => pairs.push(Pair { failure: broken.clone(), ..untried }),
                None => lines.push(Line::new(&net, device, peer)),
            }
        }
        if broken.is_none() {
            let mut found = Vec::new();
            broken = batch(&net, place, lines, wait, &mut found).err().map(|why| why.to_string());
            pairs.append(&mut found);
        }
    }
    Ok(pairs)
}

/// The planes of the devices of each rank.
fn all_planes(
    place: &mut Remote,
    own: &[Option<i16>],
    wait: Duration,
) -> Result<Vec<Vec<Option<i16>>>, GroupError> {
    // -1 stands for no plane, as in NCCL's properties.
    let part: Vec<_> = own.iter().flat_map(|plane| plane.unwrap_or(-1).to_le_bytes()).collect();
    let all = place.all_gather(&part, wait)?;
    let plane = |bytes: &[u8; 2]| Some(i16::from_le_bytes(*bytes)).filter(|plane| *plane != -1);
    Ok(all.iter().map(|part| part.as_chunks().0.iter().map(plane).collect()).collect())
}

/// The devices and peers of a rank, and whether the devices of both are on different networks.
fn connections(
    planes: &[Vec<Option<i16>>],
    rank: usize,
    devices: Range<usize>,
) -> impl Iterator<Item = (usize, usize, bool)> {
    let peers = move || planes.iter().enumerate().filter(move |(peer, _)| *peer != rank);
    let own = planes[rank].iter().enumerate().take(devices.end).skip(devices.start);
    own.flat_map(move |(device, own)| {
        peers().filter_map(move |(peer, theirs)| {
            Some((device, peer, are_apart(*own, *theirs.get(device)?)))
        })
    })
}

/// Connects, and exchanges messages. If a rank ends meanwhile, so that the ranks cannot meet any more, the messages so far are the result.
fn batch(
    net: &Arc<Net>,
    place: &mut Remote,
    mut lines: Vec<Line>,
    wait: Duration,
    pairs: &mut Vec<Pair>,
) -> Result<(), GroupError> {
    let rank = place.rank();
    let met = exchange_handles(place, &mut lines, wait);
    if let Err(why) = &met {
        lines.iter_mut().for_each(|line| line.fail(why));
    }
    connect(net, &mut lines, wait);
    // Twice the wait: a rank waits for its connections for as long, if one of them is never open, and sends only then.
    let met = met.and_then(|()| place.barrier(wait * 2));
    let mut talks: Vec<_> = lines.into_iter().map(|line| Talk::new(rank, line)).collect();
    talk(&mut talks, wait);
    // A rank that fails early must not leave while others still exchange messages with it.
    let met = met.and_then(|()| place.barrier(wait * 2));
    pairs.extend(talks.iter().flat_map(|talk| talk.pairs(rank)));
    met
}

/// Exchanges a handle for each connection: a listener's handle serves one connection.
fn exchange_handles(
    place: &mut Remote,
    lines: &mut [Line],
    wait: Duration,
) -> Result<(), GroupError> {
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
    let mut part = Vec::new();
    for line in lines.iter() {
        if let Some((_, handle)) = &line.listener {
            part.extend(number(line.device));
            part.extend(number(line.peer));
            part.extend(handle.0);
        }
    }
    let rank = number(place.rank());
    let all = place.all_gather(&part, wait)?;
    for line in lines {
        let head = [number(line.device), rank].concat();
        let mut theirs = all[line.peer].chunks_exact(head.len() + line.target.0.len());
        match theirs.find_map(|one| one.strip_prefix(head.as_slice())) {
            Some(handle) => line.target.0.copy_from_slice(handle),
            None => {
                line.send = Opening::Failed(format!("rank {} does not listen there", line.peer));
            }
        }
    }
    Ok(())
}

/// A comm that is being opened.
enum Opening<T> {
    Waits,
    Open(T),
    Failed(String),
}

impl<T> Opening<T> {
    fn waits(&self) -> bool {
        matches!(self, Self::Waits)
    }

    /// One attempt. True: it has succeeded.
    fn attempt(&mut self, open: impl FnOnce() -> Result<Option<T>, GroupError>) -> bool {
        if self.waits() {
            match open() {
                Ok(None) => {}
                Ok(Some(comm)) => {
                    *self = Self::Open(comm);
                    return true;
                }
                Err(error) => *self = Self::Failed(error.to_string()),
            }
        }
        false
    }

    fn end_waiting(&mut self, why: impl FnOnce() -> String) {
        if self.waits() {
            *self = Self::Failed(why());
        }
    }
}

/// The connections of a device with a peer's, one each way.
struct Line {
    device: usize,
    peer: usize,
    listener: Option<(ListenComm, Handle)>,
    target: Handle,
    send: Opening<SendComm>,
    receive: Opening<ReceiveComm>,
}

impl Line {
    fn new(net: &Arc<Net>, device: usize, peer: usize) -> Self {
        let (listener, receive) = match net.listen(device) {
            Ok(listener) => (Some(listener), Opening::Waits),
            Err(error) => (None, Opening::Failed(error.to_string())),
        };
        let (target, send) = (Handle([0; size_of::<Handle>()]), Opening::Waits);
        Self { device, peer, listener, target, send, receive }
    }

    fn fail(&mut self, why: &GroupError) {
        self.send.end_waiting(|| why.to_string());
        self.receive.end_waiting(|| why.to_string());
    }

    fn waits(&self) -> bool {
        self.send.waits() || self.receive.waits()
    }

    /// One attempt for all comms. Returns whether any has been opened.
    fn attempt(&mut self, net: &Arc<Net>) -> bool {
        let Self { device, listener, target, send, receive, .. } = self;
        let sends = send.attempt(|| net.connect(*device, target));
        let Some((listener, _)) = listener else { return sends };
        receive.attempt(|| listener.accept()) || sends
    }
}

/// Polls connect and accept until all comms are open or have failed, or none has been opened for `wait`.
fn connect(net: &Arc<Net>, lines: &mut [Line], wait: Duration) {
    let mut deadline = Instant::now() + wait;
    while lines.iter().any(Line::waits) {
        let mut moved = false;
        for line in lines.iter_mut() {
            moved |= line.attempt(net);
        }
        if moved {
            deadline = Instant::now() + wait;
        } else if Instant::now() > deadline {
            for line in lines.iter_mut() {
                let why = |what| move || format!("{what} for {:.1} s", wait.as_secs_f64());
                line.send.end_waiting(why("it has not accepted"));
                line.receive.end_waiting(why("it has not connected"));
            }
        } else {
            std::thread::yield_now();
        }
    }
}

/// A message in one direction.
trait Message {
    /// Makes progress. Returns whether anything has moved.
    fn step(&mut self) -> Result<bool, GroupError>;
    fn is_done(&self) -> bool;
}

/// Field order: the region is dropped before its buffer and comm.
struct Sending {
    region: Region,
    input: Buffer,
    channel: SendChannel,
    posted: bool,
    done: bool,
}

impl Message for Sending {
    fn step(&mut self) -> Result<bool, GroupError> {
        let before = (self.posted, self.done);
        if !self.posted {
            self.posted = self.channel.send(&self.input, 0..BYTES, &self.region)?;
        }
        self.done |= self.channel.poll()?;
        Ok(before != (self.posted, self.done))
    }

    fn is_done(&self) -> bool {
        self.done
    }
}

/// Field order: the region is dropped before its buffer and comm.
struct Receiving {
    region: Region,
    output: Buffer,
    channel: ReceiveChannel,
    posted: bool,
    done: bool,
}

impl Message for Receiving {
    fn step(&mut self) -> Result<bool, GroupError> {
        let before = (self.posted, self.done);
        if !self.posted {
            self.posted = self.channel.receive(&mut self.output, 0..BYTES, &self.region)?;
        }
        if let Some(bytes) = self.channel.poll()? {
            if bytes != BYTES {
                let why = format!("a message of {BYTES} bytes arrived with a length of {bytes}");
                return Err(GroupError::Contract(why));
            }
            self.done = true;
        }
        Ok(before != (self.posted, self.done))
    }

    fn is_done(&self) -> bool {
        self.done
    }
}

/// A message, and how it has ended. It is kept after its end, since closing its comm would end the peer's message too.
struct Way<T> {
    message: Option<T>,
    end: Option<Result<(), String>>,
}

impl<T: Message> Way<T> {
    fn over<C>(opening: Opening<C>, begin: impl FnOnce(C) -> Result<T, GroupError>) -> Self {
        let begun = match opening {
            Opening::Open(comm) => begin(comm).map_err(|error| error.to_string()),
            Opening::Failed(why) => Err(why),
            Opening::Waits => Err("connected without comms".to_owned()),
        };
        match begun {
            Ok(message) => Self { message: Some(message), end: None },
            Err(why) => Self { message: None, end: Some(Err(why)) },
        }
    }

    fn step(&mut self) -> bool {
        let Some(message) = self.message.as_mut().filter(|_| self.end.is_none()) else {
            return false;
        };
        match message.step() {
            Ok(moved) => {
                self.end = message.is_done().then_some(Ok(()));
                moved
            }
            Err(error) => {
                self.end = Some(Err(error.to_string()));
                true
            }
        }
    }

    fn failure(&self) -> Option<String> {
        self.end.clone()?.err()
    }
}

/// The messages of a device and a peer's, one each way.
struct Talk {
    device: usize,
    peer: usize,
    sending: Way<Sending>,
    receiving: Way<Receiving>,
    _listener: Option<(ListenComm, Handle)>,
}

impl Talk {
    fn new(rank: usize, line: Line) -> Self {
        let Line { device, peer, listener, send, receive, .. } = line;
        let tag = |rank: usize| i32::try_from(rank).unwrap_or(i32::MAX);
        let sending = Way::over(send, |comm| {
            let channel = SendChannel::new(comm, peer, tag(rank));
            let mut input = Buffer::new(BYTES)?;
            check::fill(&mut input, DataType::U8, 0, BYTES, rank, content(device, peer))?;
            Ok(Sending {
                region: channel.register(&input)?,
                input,
                channel,
                posted: false,
                done: false,
            })
        });
        let receiving = Way::over(receive, |comm| {
            let channel = ReceiveChannel::new(comm, peer, tag(peer));
            let mut output = Buffer::new(BYTES)?;
            check::poison(&mut output)?;
            Ok(Receiving {
                region: channel.register(&output)?,
                output,
                channel,
                posted: false,
                done: false,
            })
        });
        Self { device, peer, sending, receiving, _listener: listener }
    }

    fn is_over(&self) -> bool {
        self.sending.end.is_some() && self.receiving.end.is_some()
    }

    fn received(&self, rank: usize) -> Result<Transfer, String> {
        if let Some(why) = self.receiving.failure() {
            return Err(why);
        }
        let whole = self.receiving.message.as_ref().ok_or("connected without comms")?;
        let (expected, content) = (Expected::Input { rank: self.peer }, content(self.device, rank));
        let wrong = check::count_wrong(&whole.output, DataType::U8, 0, BYTES, expected, content);
        let wrong = wrong.map_err(|error| error.to_string())?;
        Ok(Transfer { messages: 1, bytes: BYTES as u64, wrong })
    }

    /// The result of the received message, and the failure of the sent one, if it has failed.
    fn pairs(&self, rank: usize) -> impl Iterator<Item = Pair> {
        let (device, peer) = (self.device, self.peer);
        let received = self.received(rank);
        let (transfer, failure) = (received.as_ref().ok().copied(), received.err());
        let sent = Pair {
            from: rank,
            to: peer,
            device,
            failure: self.sending.failure(),
            ..Pair::default()
        };
        std::iter::once(Pair { from: peer, to: rank, device, transfer, failure })
            .chain(Some(sent).filter(Pair::is_tried))
    }
}

/// A number for the content of a message to a rank; the numbers of two devices differ.
fn content(device: usize, to: usize) -> usize {
    to + device * AT_ONCE
}

/// Exchanges all messages at once.
fn talk(talks: &mut [Talk], wait: Duration) {
    let mut deadline = Instant::now() + wait;
    while talks.iter().any(|talk| !talk.is_over()) {
        let mut moved = false;
        for talk in talks.iter_mut() {
            moved |= talk.sending.step();
            moved |= talk.receiving.step();
        }
        if moved {
            deadline = Instant::now() + wait;
        } else if Instant::now() > deadline {
            let silent = || Err(format!("nothing moved for {:.1} s", wait.as_secs_f64()));
            for talk in talks.iter_mut() {
                talk.sending.end.get_or_insert_with(silent);
                talk.receiving.end.get_or_insert_with(silent);
            }
        } else {
            std::thread::yield_now();
        }
    }
}
