//! Connection messages and handles: what goes in comes out, and no bytes from a peer do harm.

#![expect(clippy::unwrap_used, reason = "a sample that cannot be made is a failed test")]
#![expect(clippy::cast_possible_truncation, reason = "random bits are cut to fit")]

use proto::codec::{Address, Name, VERSION, check_of};
use proto::handshake::{HandshakeError, Identity, Message, RefusalReason, Ring, Side, mix_nonces};
use proto::limits::{MAX_DATA_RAILS, MAX_MESSAGE_BYTES};
use proto::rails::{Pairing, Rail, RailPair};
use proto::{
    Begun, Bye, Capabilities, Cease, Ceased, CommId, ConnectionId, Handle, ImmediateWidth, Line,
    Refusal, Reply, Request, Window, Withdraw, Withdrawn,
};

fn capabilities() -> Capabilities {
    Capabilities {
        immediate: ImmediateWidth::Eight,
        true_lengths: true,
        self_read: true,
        proves_arrival: false,
        delivery_complete: true,
        virtual_addresses: true,
        rma_inject_bytes: 192,
        largest_write: 1 << 32,
    }
}

fn identity() -> Identity {
    Identity {
        host: Name::cut("node-0017"),
        process: 4711,
        provider: Name::cut("tcp;ofi_rxm"),
        libfabric_version: 0x0001_0011,
        provider_version: 2 << 16 | 5,
        settings: std::array::from_fn(|place| place as u8),
    }
}

fn rail(fabric: &str, nic: u16, control: bool) -> Rail {
    let address = |kind: u8| Address::new(&[kind; 64]).unwrap();
    Rail { fabric: Name::cut(fabric), nic, data: address(1), control: control.then(|| address(2)) }
}

fn request(rails: usize) -> Request {
    Request {
        connection: ConnectionId(0x1122_3344_5566_7788),
        reply_to: Address::new(b"192.0.2.1:4711").unwrap(),
        listener: 3,
        listener_nonce: 0xdead_beef,
        nonce: 99,
        capabilities: capabilities(),
        rails: (0..rails).map(|nic| rail("fabric", nic as u16, nic < 4)).collect(),
        mailbox: Ring { address: 0x7fff_0000_1000, keys: vec![1, u64::MAX, 3, 4] },
        window: Window::GROUPED,
        max_group: 8,
        eager_bytes: 128,
        bundle_bytes: 16,
        identity: identity(),
    }
}

fn reply() -> Reply {
    let pairs: Vec<_> = (0..3).map(|rail| RailPair { sender: rail, receiver: 2 - rail }).collect();
    Reply {
        connection: ConnectionId(5),
        comm: CommId::new(0x3fff).unwrap(),
        nonce: 7,
        capabilities: capabilities(),
        rails: (0..3).map(|nic| rail("fabric", nic, true)).collect(),
        pairing: Pairing { data: pairs.clone(), control: pairs[..1].to_vec() },
        fins: Ring { address: 64, keys: vec![8] },
        window: Window::SINGLE,
        fin_only: true,
        eager: Some(Ring { address: 4096, keys: vec![1, 2] }),
        bundles: Some(Ring { address: 8192, keys: vec![3, 4] }),
        identity: identity(),
    }
}

fn refusal() -> Refusal {
    let text = "the rails have no fabric in common: add one — or unset IRONRAIL_RAILS".to_owned();
    Refusal { connection: ConnectionId(5), reason: RefusalReason::Rails, text }
}

fn bye() -> Bye {
    Bye {
        connection: ConnectionId(1),
        comm: CommId::default(),
        nonce: 2,
        from: Side::Receiver,
        begun: Begun::NOTHING,
        eager_end: 3,
        done: Line::new(9),
    }
}

fn withdraw() -> Withdraw {
    let reply_to = Address::new(b"192.0.2.1:4711").unwrap();
    Withdraw {
        connection: ConnectionId(1),
        comm: CommId::default(),
        nonce: 2,
        done: Line::new(9),
        reply_to,
    }
}

fn withdrawn() -> Withdrawn {
    let begun = Begun { base: Line::new(0xfffe_fdfc), more: 0x8005 };
    let (connection, comm) = (ConnectionId(1), CommId::default());
    Withdrawn { connection, comm, nonce: 2, begun, eager_end: u32::MAX }
}

fn cease() -> Cease {
    Cease { connection: ConnectionId(1), comm: CommId::default(), nonce: 2 }
}

fn ceased() -> Ceased {
    Ceased { connection: ConnectionId(1), comm: CommId::default(), nonce: 2, eager_end: 77 }
}

fn samples() -> Vec<(Vec<u8>, Message)> {
    let request = request(16);
    vec![
        (request.encode().unwrap(), Message::Request(Box::new(request))),
        (reply().encode().unwrap(), Message::Reply(Box::new(reply()))),
        (refusal().encode().unwrap(), Message::Refusal(refusal())),
        (bye().encode().unwrap(), Message::Bye(bye())),
        (withdraw().encode().unwrap(), Message::Withdraw(withdraw())),
        (withdrawn().encode().unwrap(), Message::Withdrawn(withdrawn())),
        (cease().encode().unwrap(), Message::Cease(cease())),
        (ceased().encode().unwrap(), Message::Ceased(ceased())),
    ]
}

/// Puts the right length and check on a message that was tampered with.
fn reseal(bytes: &mut [u8]) {
    let len = u32::try_from(bytes.len()).unwrap();
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..16].fill(0);
    let check = check_of(bytes);
    bytes[12..16].copy_from_slice(&check.to_le_bytes());
}

fn field(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = u16::try_from(value.len()).unwrap();
    [&kind.to_le_bytes()[..], &len.to_le_bytes(), value].concat()
}

/// Splits a message into its envelope and its fields.
fn fields(bytes: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (envelope, mut rest) = bytes.split_at(16);
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let len = 4 + usize::from(u16::from_le_bytes([rest[2], rest[3]]));
        fields.push(rest[..len].to_vec());
        rest = &rest[len..];
    }
    (envelope.to_vec(), fields)
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn messages_come_out_as_they_went_in() {
    for (bytes, message) in samples() {
        assert!(bytes.len() <= MAX_MESSAGE_BYTES);
        assert_eq!(Message::decode(&bytes), Ok(message.clone()));
        let buffer = [&bytes[..], &[0xaa; 100]].concat();
        assert_eq!(Message::decode(&buffer), Ok(message), "a receive buffer is longer");
    }
}

#[test]
fn the_longest_request_fits_a_message() {
    let mut longest = request(MAX_DATA_RAILS);
    longest.reply_to = Address::new(&[9; 64]).unwrap();
    let name = "n".repeat(64);
    (longest.identity.host, longest.identity.provider) = (Name::cut(&name), Name::cut(&name));
    for rail in &mut longest.rails {
        rail.fabric = Name::cut(&name);
        rail.control = Some(rail.data);
    }
    let bytes = longest.encode().unwrap();
    assert_eq!(Message::decode(&bytes), Ok(Message::Request(Box::new(longest))));
}

#[test]
fn a_request_without_rails_or_with_too_many_is_not_made() {
    for rails in [0, MAX_DATA_RAILS + 1] {
        assert_eq!(request(rails).encode(), Err(HandshakeError::Value("number of rails")));
    }
}

#[test]
fn a_message_cut_short_anywhere_is_refused() {
    for (bytes, _) in samples() {
        for end in 0..bytes.len() {
            assert_eq!(Message::decode(&bytes[..end]), Err(HandshakeError::Short));
        }
        // Cut short by one who puts a right check on it.
        for end in 16..bytes.len() {
            let mut cut = bytes[..end].to_vec();
            reseal(&mut cut);
            assert!(Message::decode(&cut).is_err());
        }
    }
}

#[test]
fn every_single_wrong_bit_is_noticed() {
    for (bytes, _) in samples() {
        for bit in 0..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(Message::decode(&wrong).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn no_bytes_panic_the_decoder() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let samples = samples();
    for _ in 0..60_000 {
        let (bytes, _) = &samples[random(&mut state) as usize % samples.len()];
        let mut bytes = bytes.clone();
        for _ in 0..1 + random(&mut state) % 4 {
            let at = random(&mut state) as usize % bytes.len();
            bytes[at] = random(&mut state) as u8;
        }
        let len = 16 + random(&mut state) as usize % (bytes.len() - 15);
        if random(&mut state) & 1 == 0 {
            bytes.truncate(len);
        }
        // The magic and the version stay, so that the fields are reached.
        bytes[..6].copy_from_slice(&samples[0].0[..6]);
        reseal(&mut bytes);
        if let Ok(Message::Request(request)) = Message::decode(&bytes) {
            assert!(request.rails.len() <= MAX_DATA_RAILS);
            assert!(request.mailbox.keys.len() <= 4);
        }
    }
    for _ in 0..20_000 {
        let len = random(&mut state) as usize % 300;
        let bytes: Vec<u8> = (0..len).map(|_| random(&mut state) as u8).collect();
        assert!(Message::decode(&bytes).is_err());
    }
}

#[test]
fn unknown_fields_are_skipped_and_missing_ones_refused() {
    for (bytes, message) in samples() {
        let (envelope, fields) = fields(&bytes);
        for at in 0..=fields.len() {
            let mut more = fields.clone();
            more.insert(at, field(999, b"of a later version"));
            if envelope.len() + more.concat().len() <= MAX_MESSAGE_BYTES {
                let mut bytes = [envelope.clone(), more.concat()].concat();
                reseal(&mut bytes);
                assert_eq!(Message::decode(&bytes), Ok(message.clone()));
            }
        }
        for at in 0..fields.len() {
            let mut fewer = fields.clone();
            let removed = fewer.remove(at);
            let mut bytes = [envelope.clone(), fewer.concat()].concat();
            reseal(&mut bytes);
            // One rail of several may go, and what is said of short messages: the message is then another.
            let kind = u16::from_le_bytes([removed[0], removed[1]]);
            let optional = match message {
                Message::Ceased(_) => false,
                _ => [7, 27, 28, 29, 30, 31].contains(&kind),
            };
            let decoded = Message::decode(&bytes);
            assert!(optional || matches!(decoded, Err(HandshakeError::Missing(_))), "{removed:?}");
        }
        let repeats = fields.iter().filter(|field| field[..2] != [7, 0]);
        for repeated in repeats.filter(|field| bytes.len() + field.len() <= MAX_MESSAGE_BYTES) {
            let mut bytes = [bytes.clone(), repeated.clone()].concat();
            reseal(&mut bytes);
            assert!(matches!(Message::decode(&bytes), Err(HandshakeError::Repeated(_))));
        }
    }
}

#[test]
fn a_request_of_another_version_says_whom_to_refuse() {
    let mut bytes = request(2).encode().unwrap();
    bytes[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
    reseal(&mut bytes);
    let reply = Some((request(2).connection, request(2).reply_to));
    let theirs = VERSION + 1;
    assert_eq!(Message::decode(&bytes), Err(HandshakeError::Version { theirs, reply }));
}

#[test]
fn kinds_that_are_reserved_are_refused() {
    for kind in [0_u16, 5, 15, 20, 21, 65535] {
        let mut bytes = bye().encode().unwrap();
        bytes[6..8].copy_from_slice(&kind.to_le_bytes());
        reseal(&mut bytes);
        assert_eq!(Message::decode(&bytes), Err(HandshakeError::Kind(kind)));
    }
}

#[test]
fn a_handle_comes_out_as_it_went_in_and_its_scratch_is_free() {
    let handle = Handle {
        listener: 17,
        nonce: 0x1234_5678_9abc_def0,
        control: Address::new(&[3; 64]).unwrap(),
        address_format: 0xffff_0001,
    };
    let mut bytes = handle.encode();
    assert_eq!(Handle::scratch(&bytes), [0; 16]);
    assert_eq!(Handle::decode(&bytes), Ok(handle));
    Handle::set_scratch(&mut bytes, *b"where connect is");
    assert_eq!(Handle::decode(&bytes), Ok(handle));
    assert_eq!(Handle::scratch(&bytes), *b"where connect is");
    for bit in 0..112 * 8 {
        let mut wrong = bytes;
        wrong[bit / 8] ^= 1 << (bit % 8);
        assert!(Handle::decode(&wrong).is_err(), "bit {bit}");
    }
}

#[test]
fn a_handle_with_a_short_address_keeps_its_length() {
    for len in 0..=64 {
        let control = Address::new(&vec![7; len]).unwrap();
        let handle = Handle { listener: 0, nonce: 0, control, address_format: 0 };
        assert_eq!(Handle::decode(&handle.encode()), Ok(handle));
    }
}

#[test]
fn rails_pair_by_fabric_in_order_and_unequal_ends_use_what_they_share() {
    let ours = [rail("a", 0, true), rail("b", 1, false), rail("a", 2, false), rail("c", 3, true)];
    let theirs = [rail("b", 0, true), rail("a", 1, true), rail("a", 2, true)];
    let pairing = Pairing::of(&ours, &theirs).unwrap();
    let pairs: Vec<_> = pairing.data.iter().map(|pair| (pair.sender, pair.receiver)).collect();
    assert_eq!(pairs, [(0, 1), (1, 0), (2, 2)]);
    let pairs: Vec<_> = pairing.control.iter().map(|pair| (pair.sender, pair.receiver)).collect();
    assert_eq!(pairs, [(0, 1)]);
    assert!(pairing.fits(&ours, &theirs));
    assert!(!pairing.fits(&ours[..2], &theirs));
    assert!(!pairing.fits(&theirs, &ours));
    assert_eq!(Pairing::of(&ours[3..], &theirs), None);
    assert_eq!(Pairing::of(&ours[1..3], &theirs), None, "no control rail of ours");
}

#[test]
fn a_reply_that_pairs_a_rail_twice_is_refused() {
    let mut wrong = reply();
    wrong.pairing.data[1].receiver = wrong.pairing.data[0].receiver;
    let bytes = wrong.encode().unwrap();
    assert_eq!(Message::decode(&bytes), Err(HandshakeError::Value("rail pairs")));
}

#[test]
fn both_parts_of_the_nonce_matter() {
    let nonce = mix_nonces(3, 4);
    for bit in 0..64 {
        assert_ne!(mix_nonces(3 ^ 1 << bit, 4), nonce);
        assert_ne!(mix_nonces(3, 4 ^ 1 << bit), nonce);
    }
    assert_ne!(mix_nonces(4, 3), nonce);
}

#[test]
fn names_are_cut_between_characters() {
    let name = Name::cut(&"é".repeat(40));
    assert_eq!(name.to_text(), "é".repeat(32));
    let name = Name::cut(&format!("x{}", "é".repeat(40)));
    assert_eq!(name.as_bytes().len(), 63);
    let long = Refusal { text: "é".repeat(200), ..refusal() };
    let Ok(Message::Refusal(read)) = Message::decode(&long.encode().unwrap()) else {
        panic!("it is a refusal");
    };
    assert_eq!(read.text, "é".repeat(128));
}
