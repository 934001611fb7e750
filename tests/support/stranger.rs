//! A program that sends to a plugin's control endpoint by libfabric without being a plugin.

use std::cell::RefCell;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{
    Control, Delivery, Event, Info, Library, Nic, NicOptions, Pages, PeerAddress, Post, Query,
    Region, RemoteBytes, RemoteKey, Write,
};
use proto::codec::{Address, Bounded, Name};
use proto::frame::{Inline, Open};
use proto::letter::{self, Body, LETTER_WORDS, Letter, RailNumbers};
use proto::memory::Lease;
use proto::packet::{HEADER_WORDS, Header, Ring, START_BYTES, check};
use proto::rails::Rail;
use proto::setup::{
    EndpointId, Entries, Features, Handle as WireHandle, Hello, Host, Message, Nonces, Offers,
    Proof, Prove, Role, Secret, open_words,
};
use proto::{Capabilities, ImmediateWidth, Line};
use proto::{
    Epoch, Frame, Generation, InboxMemory, Name as ConnectionName, Nonce, PacketNumber, Slot,
};
use siphasher::sip128::{Hasher128, SipHasher24};

use super::calls::Handle;

/// A control endpoint of its own.
pub(crate) struct Stranger {
    region: Region<Control>,
    pages: Arc<Pages>,
    nic: RefCell<Nic>,
}

/// The capabilities that it announces.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    immediate: ImmediateWidth::Eight,
    true_lengths: false,
    self_read: true,
    proves_arrival: false,
    messages: false,
    arrival_times: true,
    delivery_complete: true,
    virtual_addresses: false,
    largest_write: 1 << 30,
};

/// The longest message of a stranger.
pub(crate) const LONGEST: usize = 1 << 16;
/// The offset in its pages of received answers, and of its inbox.
const RECEIVED: usize = 32 << 10;
const INBOX: usize = 48 << 10;
/// How long it waits for an answer before it repeats its request.
const AGAIN: Duration = Duration::from_millis(100);
/// The length of its inbox, and so of the one lent to it.
const RING: Ring = Ring::SHORT;
/// The least number of attempts.
const ATTEMPTS_MIN: usize = 1000;
/// Operations that it may have in flight: sends to a dead peer never complete.
const OPERATIONS: u16 = 1024;

impl Stranger {
    /// With the library and the provider that the plugin uses.
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
        Self::over(&providers.into_iter().find_map(find).expect("the plugin's provider"))
    }

    /// On the first NIC of the virtual fabric, if the plugin has loaded it.
    pub(crate) fn on_virtual_fabric() -> Self {
        let library = Library::open(&[OsString::from("libfabric.so.1")]).expect("libfabric");
        let query = Query { provider: Some("vfabric".to_owned()), ..Query::default() };
        let found = library.find(&query).expect("the virtual fabric");
        Self::over(found.first().expect("it has NICs"))
    }

    fn over(info: &Info) -> Self {
        let options = NicOptions {
            control: Some(&[]),
            entries: 1024,
            operations: OPERATIONS,
            ..NicOptions::default()
        };
        let mut nic = Nic::open(info, &options).expect("a NIC");
        let pages = Arc::new(Pages::map(LONGEST).expect("pages"));
        let region = nic.register(Arc::clone(&pages).into()).expect("a region");
        Self { region, pages, nic: RefCell::new(nic) }
    }

    /// Its address for answers.
    pub(crate) fn name(&self) -> Vec<u8> {
        self.nic.borrow().control_name().to_vec()
    }

    /// The same in the form of requests.
    pub(crate) fn address(&self) -> Address {
        Address::new(&self.name()).expect("it fits")
    }

    /// A rail of this fabric.
    pub(crate) fn rail(fabric: &[u8], data: Address, control: Address) -> Rail {
        Rail { fabric: Name::new(fabric).expect("short"), nic: 0, data, control: Some(control) }
    }

    /// A HELLO that the plugin with this handle must accept as a peer's: it proves knowledge of the handle.
    pub(crate) fn hello(&self, handle: &Handle, rails: Vec<Rail>) -> Hello {
        let handle = wire_handle(handle);
        let mut hello = Hello {
            from: EndpointId([0x33; 16]),
            to: handle.endpoint,
            nonce: NONCE,
            echo: 0,
            capabilities: CAPABILITIES,
            offers: Offers { ring: RING, inline_bytes_max: 4096, shared_from: 1 << 17 },
            rails,
            host: Host { host: Name::cut("nowhere"), process: 1, ..Host::default() },
            entries: Entries::default(),
            channel: Bounded::default(),
        };
        prove(&mut hello, &handle);
        hello
    }

    pub(crate) fn meet(&self, address: &[u8]) -> PeerAddress {
        self.nic.borrow_mut().add_peer::<Control>(address).expect("a valid address")
    }

    /// Sends `bytes`, while `meanwhile` drives the receiver. Whether they arrive is not known: false if not even the post was accepted
    /// within `bound`.
    pub(crate) fn send(
        &self,
        to: PeerAddress,
        bytes: &[u8],
        bound: Duration,
        mut meanwhile: impl FnMut(),
    ) -> bool {
        self.pages.copy_in(0, bytes);
        let start = Instant::now();
        let (mut posted, mut attempts) = (false, 0);
        // A bound by time alone would depend on other processes' use of the CPU.
        while start.elapsed() < bound || attempts < ATTEMPTS_MIN {
            attempts += 1;
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

    /// Posts a receive for a message.
    pub(crate) fn listen(&self) {
        self.pages.copy_in(RECEIVED, &[0; 8]);
        let local = self.region.local(RECEIVED, INBOX - RECEIVED).expect("within the pages");
        let posted = self.nic.borrow_mut().receive(local, 1).expect("fi_recv");
        assert_eq!(posted, Post::Accepted);
    }

    /// The message, if it has arrived.
    pub(crate) fn received(&self) -> Option<Message> {
        self.poll();
        let mut bytes = vec![0; INBOX - RECEIVED];
        self.pages.copy_out(RECEIVED, &mut bytes);
        let begun = bytes.starts_with(b"IRRL");
        // A message that has not completely arrived has no valid checksum.
        begun.then(|| Message::decode(&bytes).ok()).flatten()
    }

    /// The description of its inbox, for the peer.
    fn lease(&self) -> Lease {
        let address = self.region.target_address(self.pages.address() + INBOX as u64);
        let (address, key) = (address.expect("within the pages"), self.region.key().to_wire());
        Lease { epoch: Epoch(1), nonce: Nonce(0x5eed), rail: 0, address, key }
    }

    /// Becomes a peer: both have sent HELLO, and have lent an inbox. `meanwhile` drives the other side.
    pub(crate) fn join(
        self,
        to: PeerAddress,
        handle: &Handle,
        hello: &Hello,
        mut meanwhile: impl FnMut(),
    ) -> Peer {
        let (bound, handle) = (Duration::from_secs(60), wire_handle(handle));
        self.listen();
        let bytes = hello.encode().expect("it fits");
        let start = Instant::now();
        let mut said = None::<Instant>;
        let theirs = loop {
            assert!(start.elapsed() < bound, "no HELLO comes back");
            // The first ones are dropped while the device is not probed yet.
            if said.is_none_or(|said| said.elapsed() > AGAIN) {
                let taken = self.send(to, &bytes, bound, &mut meanwhile);
                assert!(taken, "the first HELLO is not accepted");
                said = Some(Instant::now());
            }
            meanwhile();
            match self.received() {
                Some(Message::Hello(theirs)) if !theirs.channel.as_bytes().is_empty() => {
                    break theirs;
                }
                Some(_) => self.listen(),
                None => {}
            }
        };
        let lent = letter_of(theirs.channel.as_bytes());
        let Body::Hello(letter::Hello { lease, key, .. }) = lent.body else {
            panic!("no inbox in {lent:?}");
        };
        let body = Body::Hello(letter::Hello {
            lease: self.lease(),
            key: 0x7e11,
            consumed: PacketNumber::new(0),
            echo: lease.epoch,
            requests_echo: true,
        });
        let words =
            Letter { key, rails: RailNumbers::default(), body }.encode().map(u64::to_le_bytes);
        let mut answer = Hello {
            echo: theirs.nonce,
            channel: Bounded::new(words.as_flattened()).expect("it fits"),
            entries: Entries::default(),
            ..hello.clone()
        };
        prove(&mut answer, &handle);
        self.listen();
        let bytes = answer.encode().expect("it fits");
        assert!(self.send(to, &bytes, bound, &mut meanwhile), "the second HELLO is not accepted");
        let nonces = Nonces { prover: hello.nonce, verifier: theirs.nonce };
        let (written, read) = (Place::default(), Place::default());
        Peer {
            stranger: self,
            host: theirs.host,
            to,
            handle,
            nonces,
            lease,
            written,
            read,
            theirs: None,
        }
    }

    /// Writes words to the end of what a peer has lent.
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

    /// Whether an operation has completed, in any way.
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

/// A stranger with a channel to an endpoint of the plugin, which writes anything into its inbox.
pub(crate) struct Peer {
    pub(crate) stranger: Stranger,
    /// The plugin's process, as its HELLO describes it.
    pub(crate) host: Host,
    to: PeerAddress,
    handle: WireHandle,
    nonces: Nonces,
    /// What the plugin has lent.
    lease: Lease,
    written: Place,
    read: Place,
    /// The plugin's name of the connection.
    theirs: Option<ConnectionName>,
}

/// The state of a ring: the last packet, and where the next one begins. No test reaches the end of a ring.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    number: u32,
    at: u32,
}

impl Place {
    /// The number of the next packet.
    fn next(self) -> PacketNumber {
        PacketNumber::new(self.number + 1)
    }

    fn pass(&mut self, bytes: u32) {
        self.number += 1;
        self.at += bytes.next_multiple_of(START_BYTES);
        assert!(self.at + RING.packet_bytes_max() <= RING.bytes(), "the ring is used up");
    }
}

impl Peer {
    /// Its name of its only connection.
    pub(crate) fn own_name() -> ConnectionName {
        ConnectionName { slot: Slot::new(3).expect("in range"), generation: Generation::new(1) }
    }

    /// An OPEN that the listener of its handle must accept.
    pub(crate) fn open(&self) -> Frame {
        let (from, listener) = (Self::own_name(), self.handle.listener);
        let features = Features::default().bits();
        let words = open_words(self.nonces, listener, from, features);
        let proof = Mac.prove(&self.handle.secret, &words).0;
        Frame::Open(Open { from, listener, features, proof })
    }

    /// Sets the name that OPENED contained.
    pub(crate) fn is_called(&mut self, name: ConnectionName) {
        self.theirs = Some(name);
    }

    /// The name for frames to its connection.
    pub(crate) fn to(&self) -> ConnectionName {
        self.theirs.expect("OPENED has come")
    }

    /// A message without an advert.
    pub(crate) fn inline(&self, line: u32, payload: &[u64]) -> Vec<u64> {
        let inline = Inline {
            to: self.to(),
            line: Line::new(line),
            advertised: false,
            tag: 0,
            base: Line::new(line),
            len: u16::try_from(size_of_val(payload)).expect("short"),
        };
        [words_of(Frame::Inline(inline)), payload.to_vec()].concat()
    }

    /// Writes a packet of these words, which acknowledges what was read.
    pub(crate) fn packet(&mut self, body: &[u64]) {
        let acknowledged = PacketNumber::new(self.read.number);
        self.packet_that_acknowledges(acknowledged, body);
    }

    pub(crate) fn packet_that_acknowledges(&mut self, acknowledged: PacketNumber, body: &[u64]) {
        let len = HEADER_WORDS + body.len();
        let bytes = u32::try_from(8 * len).expect("short");
        let header = Header { number: self.written.next(), bytes, acknowledged, pad: false };
        let [first, second] = header.words();
        let mut words = [&[0, first, second], body].concat();
        let eight = |word: usize| std::array::from_fn(|at| words[word + at]);
        words[0] = check(self.lease.nonce, [first, second], len, |word| words[word], eight);
        self.write_at(self.written.at, &words);
        self.written.pass(bytes);
    }

    pub(crate) fn frame(&mut self, frame: Frame) {
        self.packet(&words_of(frame));
    }

    /// Writes at any place of the inbox lent to it.
    pub(crate) fn write_at(&self, at: u32, words: &[u64]) {
        let address = self.lease.address + u64::from(at);
        self.stranger.write(self.to, words, address, self.lease.key);
    }

    /// Overwrites all of that inbox and the cell behind it with zeros.
    pub(crate) fn wipe(&self) {
        let zeros = [0; 512];
        for at in (0..RING.bytes()).step_by(size_of_val(&zeros)) {
            self.write_at(at, &zeros);
        }
        self.write_at(RING.bytes(), &[0]);
    }

    /// The offset of the next packet.
    pub(crate) fn next_at(&self) -> u32 {
        self.written.at
    }

    pub(crate) fn next_number(&self) -> u32 {
        self.written.number + 1
    }

    /// Leaves out a packet: its number is never written, and the next one is in its place.
    pub(crate) fn skip(&mut self) {
        self.written.number += 1;
    }

    /// The first frame of the next packet that has arrived.
    pub(crate) fn next_frame(&mut self) -> Option<Frame> {
        self.stranger.poll();
        let mut bytes = vec![0; RING.bytes() as usize];
        self.stranger.pages.copy_out(INBOX, &mut bytes);
        let (words, _) = bytes.as_chunks::<8>();
        let inbox = Snapshot(words.iter().map(|word| u64::from_le_bytes(*word)).collect());
        let nonce = self.stranger.lease().nonce;
        let header = Header::validate(&inbox, RING, self.read.at, self.read.next(), nonce)?;
        let start = self.read.at as usize / 8;
        self.read.pass(header.bytes);
        let frames = &inbox.0[start + HEADER_WORDS..start + header.written_words()];
        Some(Frame::decode(frames).expect("the plugin writes frames"))
    }
}

/// The words of a frame.
pub(crate) fn words_of(frame: Frame) -> Vec<u64> {
    let mut words = Vec::new();
    frame.encode(|word| words.push(word));
    words
}

/// An inbox at one moment.
struct Snapshot(Vec<u64>);

impl InboxMemory for Snapshot {
    fn load(&self, word: usize) -> u64 {
        self.0[word]
    }

    fn store(&mut self, word: usize, value: u64) {
        self.0[word] = value;
    }
}

/// The content of the plugin's handle.
pub(crate) fn wire_handle(handle: &Handle) -> WireHandle {
    WireHandle::decode(handle).expect("ours")
}

/// Adds the proof that the sender has the handle. Everything else must be set already.
pub(crate) fn prove(hello: &mut Hello, handle: &WireHandle) {
    prove_as(hello, handle, Role::Connects);
}

/// The same in another role.
pub(crate) fn prove_as(hello: &mut Hello, handle: &WireHandle, role: Role) {
    hello.add_entry(handle.listener, role, &handle.secret, &Mac);
}

fn letter_of(bytes: &[u8]) -> Letter {
    let mut words = [0; LETTER_WORDS];
    let (chunks, _) = bytes.as_chunks::<8>();
    for (word, chunk) in words.iter_mut().zip(chunks) {
        *word = u64::from_le_bytes(*chunk);
    }
    Letter::decode(&words).expect("the plugin writes letters")
}

/// The MAC of docs/protocol.md: SipHash-2-4 with 128 bits of output, keyed by the secret.
struct Mac;

impl Prove for Mac {
    fn prove(&self, secret: &Secret, words: &[u64]) -> Proof {
        let mut hasher = SipHasher24::new_with_key(&secret.0);
        for word in words {
            std::hash::Hasher::write(&mut hasher, &word.to_le_bytes());
        }
        let sum = hasher.finish128();
        Proof([sum.h1, sum.h2])
    }
}

/// Its random number.
const NONCE: u64 = 77;
