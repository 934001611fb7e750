//! Messages between each pair of ranks: the child of each rank, and its results.
//!
//! All pairs connect at once, as NCCL's do; a pair that fails is recorded, and does not affect the others.

use std::io::BufRead;
use std::time::{Duration, Instant};

use ironrail_group::bootstrap::{Bootstrap, Meeting, Remote};
use ironrail_group::channel::{ReceiveChannel, SendChannel};
use ironrail_group::check::{self, Expected};
use ironrail_group::error::GroupError;
use ironrail_group::loader::{
    Buffer, DataType, Handle, Library, ListenComm, Net, ReceiveComm, Region, SendComm,
};

use super::machine::{Pair, Transfer};

/// Long enough to be striped over rails, short enough for a thousand peers.
const BYTES: usize = 150_000;

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
    let devices = net.devices()?;
    if devices == 0 {
        return Err(GroupError::Load("the plugin has no device".to_owned()));
    }
    let (rank, size) = (place.rank(), place.size());
    let device = rank % devices;
    let mut peers = Vec::new();
    let mut handles = Vec::new();
    for peer in 0..size {
        // One for each peer: a listener's handle is good for one connection.
        let (listener, handle) = net.listen(device)?;
        handles.extend(handle.0);
        peers.push(Peer {
            rank: peer,
            listener,
            target: handle,
            send: None,
            receive: None,
            failure: None,
        });
    }
    let all = place.all_gather(&handles, wait)?;
    for peer in &mut peers {
        let bytes = handles.len() / size;
        let own = all[peer.rank].get(rank * bytes..(rank + 1) * bytes);
        let own = own.and_then(|own| own.try_into().ok());
        peer.target = Handle(own.ok_or_else(|| {
            GroupError::Bootstrap(format!("rank {} sent handles of another size", peer.rank))
        })?);
    }
    peers.remove(rank);
    connect(&net, device, &mut peers, wait);
    // A rank that fails early must not leave while others still exchange messages with it. What was exchanged is a result though one of
    // them has ended meanwhile.
    Ok(talk(rank, peers, wait, || _ = place.barrier(wait * 2)))
}

struct Peer {
    rank: usize,
    listener: ListenComm,
    target: Handle,
    send: Option<SendComm>,
    receive: Option<ReceiveComm>,
    failure: Option<String>,
}

impl Peer {
    fn try_once(&mut self, net: &std::sync::Arc<Net>, device: usize) -> Result<(), GroupError> {
        if self.send.is_none() {
            self.send = net.connect(device, &mut self.target)?;
        }
        if self.receive.is_none() {
            self.receive = self.listener.accept()?;
        }
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.send.is_some() && self.receive.is_some()
    }
}

/// Polls connect and accept until all are open or have failed, or nothing has happened for `wait`.
fn connect(net: &std::sync::Arc<Net>, device: usize, peers: &mut [Peer], wait: Duration) {
    let mut deadline = Instant::now() + wait;
    let mut before = 0;
    loop {
        let mut open = 0;
        for peer in peers.iter_mut().filter(|peer| peer.failure.is_none()) {
            if !peer.is_open()
                && let Err(error) = peer.try_once(net, device)
            {
                peer.failure = Some(error.to_string());
            }
            open += usize::from(peer.send.is_some()) + usize::from(peer.receive.is_some());
        }
        let waiting = |peer: &Peer| peer.failure.is_none() && !peer.is_open();
        if !peers.iter().any(waiting) {
            return;
        }
        if open > before {
            (before, deadline) = (open, Instant::now() + wait);
        }
        if Instant::now() > deadline {
            for peer in peers.iter_mut().filter(|peer| waiting(peer)) {
                let what = if peer.send.is_none() {
                    "it has not accepted"
                } else {
                    "it has not connected"
                };
                peer.failure = Some(format!("{what} for {:.1} s", wait.as_secs_f64()));
            }
            return;
        }
        std::thread::yield_now();
    }
}

/// A connection each way, and its memory. Field order: regions are dropped before their buffers and comms.
struct Talk {
    regions: (Region, Region),
    input: Buffer,
    output: Buffer,
    send: SendChannel,
    receive: ReceiveChannel,
    peer: usize,
    posted: (bool, bool),
    done: (bool, bool),
    failure: Option<String>,
    _listener: ListenComm,
}

impl Talk {
    fn new(rank: usize, peer: Peer) -> Result<Self, (usize, String)> {
        let of = peer.rank;
        let whole = |peer: Peer| {
            let contract = || GroupError::Contract("connected without comms".to_owned());
            let tag = |rank: usize| i32::try_from(rank).unwrap_or(i32::MAX);
            let send = SendChannel::new(peer.send.ok_or_else(contract)?, of, tag(rank));
            let receive = ReceiveChannel::new(peer.receive.ok_or_else(contract)?, of, tag(of));
            let (mut input, mut output) = (Buffer::new(BYTES)?, Buffer::new(BYTES)?);
            check::fill(&mut input, DataType::U8, 0, BYTES, rank, of)?;
            check::poison(&mut output)?;
            let regions = (send.register(&input)?, receive.register(&output)?);
            let (posted, done) = ((false, false), (false, false));
            let _listener = peer.listener;
            Ok(Self {
                regions,
                input,
                output,
                send,
                receive,
                peer: of,
                posted,
                done,
                failure: None,
                _listener,
            })
        };
        if let Some(failure) = peer.failure {
            return Err((of, failure));
        }
        whole(peer).map_err(|error: GroupError| (of, error.to_string()))
    }

    fn step(&mut self) -> Result<bool, GroupError> {
        let before = (self.posted, self.done);
        if !self.posted.1 {
            self.posted.1 = self.receive.receive(&mut self.output, 0..BYTES, &self.regions.1)?;
        }
        if !self.posted.0 {
            self.posted.0 = self.send.send(&self.input, 0..BYTES, &self.regions.0)?;
        }
        if let Some(bytes) = self.receive.poll()? {
            if bytes != BYTES {
                let why = format!("a message of {BYTES} bytes came as one of {bytes}");
                return Err(GroupError::Contract(why));
            }
            self.done.1 = true;
        }
        self.done.0 |= self.send.poll()?;
        Ok(before != (self.posted, self.done))
    }

    fn is_over(&self) -> bool {
        self.failure.is_some() || self.done == (true, true)
    }
}

/// Exchanges a message each way with every peer, all at once, and compares the data.
fn talk(rank: usize, peers: Vec<Peer>, wait: Duration, meet: impl FnOnce()) -> Vec<Pair> {
    let mut pairs = Vec::new();
    let mut talks = Vec::new();
    for peer in peers {
        match Talk::new(rank, peer) {
            Ok(talk) => talks.push(talk),
            Err((from, failure)) => {
                pairs.push(Pair { from, to: rank, transfer: None, failure: Some(failure) });
            }
        }
    }
    let mut deadline = Instant::now() + wait;
    while talks.iter().any(|talk| !talk.is_over()) {
        let mut moved = false;
        for talk in talks.iter_mut().filter(|talk| !talk.is_over()) {
            match talk.step() {
                Ok(more) => moved |= more,
                Err(error) => talk.failure = Some(error.to_string()),
            }
        }
        if moved {
            deadline = Instant::now() + wait;
        } else if Instant::now() > deadline {
            for talk in talks.iter_mut().filter(|talk| !talk.is_over()) {
                talk.failure = Some(format!("nothing moved for {:.1} s", wait.as_secs_f64()));
            }
        } else {
            std::thread::yield_now();
        }
    }
    for talk in &talks {
        let expected = Expected::Input { rank: talk.peer };
        let wrong = check::count_wrong(&talk.output, DataType::U8, 0, BYTES, expected, rank);
        let transfer = match (&talk.failure, wrong) {
            (None, Ok(wrong)) => Some(Transfer { messages: 1, bytes: BYTES as u64, wrong }),
            _ => None,
        };
        pairs.push(Pair { from: talk.peer, to: rank, transfer, failure: talk.failure.clone() });
    }
    // Close only once no peer is still receiving.
    meet();
    pairs
}
