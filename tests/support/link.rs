//! Connections of the plugin under test, and checked data over them. Every wait has a bound.

use std::fs;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use super::calls::{Answer, Buffer, Handle, Net, Object};
use super::stage::{Cast, Part};

/// A connection in each direction: to a peer, or to this process.
pub(crate) struct Link {
    net: Net,
    pub(crate) send: Object,
    pub(crate) receive: Object,
    pub(crate) out: Memory,
    pub(crate) input: Memory,
    /// Messages so far, counted equally at both ends.
    count: usize,
}

/// A registered buffer of a link, divided into slots.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) buffer: Buffer,
    pub(crate) region: Object,
}

/// The other end while a link is made: lines to and from it.
pub(crate) trait Voice {
    fn send_line(&mut self, line: &str);
    fn listen(&mut self) -> Option<String>;
}

impl Voice for &Part {
    fn send_line(&mut self, line: &str) {
        self.say(line);
    }

    fn listen(&mut self) -> Option<String> {
        self.try_receive()
    }
}

impl Voice for Cast {
    fn send_line(&mut self, line: &str) {
        self.say(line);
    }

    fn listen(&mut self) -> Option<String> {
        self.try_receive()
    }
}

/// Longer than any wait here that succeeds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a slot: the longest message.
pub(crate) const SLOT: usize = 1 << 18;
/// Outstanding at once, as in NCCL.
const OUTSTANDING: usize = 8;

impl Link {
    /// A link to this process.
    pub(crate) fn to_self(net: Net, context: Object) -> Self {
        let (handle, listener) = net.listen(context, 0).expect("listen");
        Self::complete(net, context, handle, listener)
    }

    /// A link to a peer that calls this as well.
    pub(crate) fn to_peer(net: Net, context: Object, peer: &mut impl Voice) -> Self {
        let (handle, listener) = net.listen(context, 0).expect("listen");
        peer.send_line(&to_text(&handle));
        let mut theirs = None;
        wait("a handle", || {
            theirs = peer.listen();
            theirs.is_some()
        });
        Self::complete(net, context, from_text(&theirs.expect("just received")), listener)
    }

    fn complete(net: Net, context: Object, mut handle: Handle, listener: Object) -> Self {
        let (mut send, mut receive) = (None, None);
        wait("connect and accept", || {
            send = send.or_else(|| net.connect(context, 0, &mut handle).expect("connect"));
            receive = receive.or_else(|| net.accept(listener).expect("accept"));
            send.is_some() && receive.is_some()
        });
        net.close_listen(listener).expect("close");
        Self::of(net, send.expect("connected"), receive.expect("accepted"))
    }

    /// A link of these comms, with registered buffers.
    pub(crate) fn of(net: Net, send: Object, receive: Object) -> Self {
        let (out, input) = (Memory::new(net, send), Memory::new(net, receive));
        Self { net, send, receive, out, input, count: 0 }
    }

    /// Moves `count` messages of `len` bytes in each direction, every byte checked; the peer calls this as well.
    pub(crate) fn exchange(&mut self, count: usize, len: usize) -> Answer<()> {
        let Self { net, send, receive, out, input, count: first } = *self;
        let (mut sending, mut sent, mut receiving, mut received) = (0, 0, 0, 0);
        let (mut sends, mut receives) = ([None; OUTSTANDING], [None; OUTSTANDING]);
        let start = Instant::now();
        while sent < count || received < count {
            if receiving < count && receiving - received < OUTSTANDING {
                let place = &mut receives[receiving % OUTSTANDING];
                *place = net.irecv(receive, input.slot(receiving), SLOT, 0, input.region)?;
                receiving += usize::from(place.is_some());
            }
            if sending < count && sending - sent < OUTSTANDING {
                out.fill(sending, first + sending, len);
                let place = &mut sends[sending % OUTSTANDING];
                *place = net.isend(send, out.slot(sending), len, 0, out.region)?;
                sending += usize::from(place.is_some());
            }
            if let Some(request) = sends[sent % OUTSTANDING].filter(|_| sent < sending) {
                sent += usize::from(net.test(request)?.is_some());
            }
            if let Some(request) = receives[received % OUTSTANDING].filter(|_| received < receiving)
                && let Some(size) = net.test(request)?
            {
                assert_eq!(size, len, "message {}", first + received);
                input.check(received, first + received, len);
                received += 1;
            }
            assert!(start.elapsed() < PATIENCE, "sent {sent}, received {received} of {count}");
            thread::yield_now();
        }
        self.count += count;
        Ok(())
    }

    /// Moves short messages, long ones and empty ones.
    pub(crate) fn works(&mut self) {
        for len in [0, 8, 5000, SLOT - 7] {
            self.exchange(2 * OUTSTANDING, len).expect("the link works");
        }
    }

    /// Deregisters and closes, as NCCL does.
    pub(crate) fn close(self) {
        self.net.deregister(self.send, self.out.region).expect("deregMr");
        self.net.deregister(self.receive, self.input.region).expect("deregMr");
        self.net.close_send(self.send).expect("closeSend");
        self.net.close_recv(self.receive).expect("closeRecv");
    }
}

impl Memory {
    pub(crate) fn new(net: Net, comm: Object) -> Self {
        let buffer = Buffer::new(OUTSTANDING * SLOT);
        Self { buffer, region: net.register(comm, buffer).expect("regMr") }
    }

    pub(crate) fn slot(&self, number: usize) -> usize {
        self.buffer.address() + number % OUTSTANDING * SLOT
    }

    fn fill(&self, slot: usize, message: usize, len: usize) {
        self.buffer.write(slot % OUTSTANDING * SLOT, pattern(message, len));
    }

    fn check(&self, slot: usize, message: usize, len: usize) {
        let found = self.buffer.read(slot % OUTSTANDING * SLOT, len);
        assert!(found == pattern(message, len), "message {message} of {len} bytes is damaged");
    }
}

/// The content of message `message`: a part of one long text, since generating it would take most of a test's time.
fn pattern(message: usize, len: usize) -> &'static [u8] {
    static TEXT: OnceLock<Vec<u8>> = OnceLock::new();
    let byte = |at: usize| (at ^ at >> 8 ^ at >> 16).to_le_bytes()[0];
    let text = TEXT.get_or_init(|| (0..SLOT + SHIFTS).map(byte).collect());
    &text[message.wrapping_mul(37) % SHIFTS..][..len]
}

/// The number of different contents.
const SHIFTS: usize = 251;

/// Repeats `until` until it is true, for at most `PATIENCE`.
pub(crate) fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let start = Instant::now();
    while !until() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        thread::yield_now();
    }
}

pub(crate) fn to_text(handle: &Handle) -> String {
    handle.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn from_text(text: &str) -> Handle {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("a digit");
    std::array::from_fn(byte)
}

/// Open file descriptors of this process.
pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("proc is mounted").count()
}
