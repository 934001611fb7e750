//! HELLO: its encoding, and which senders it is accepted from.

use super::*;
use crate::capabilities::ImmediateWidth;
use crate::codec::Address;
use crate::setup::proof::Mixing;

const US: EndpointId = EndpointId([1; 16]);
const PEER: EndpointId = EndpointId([2; 16]);
const SECRET: Secret = Secret([3; 16]);
const LISTENER: ListenerId = ListenerId(77);

fn hello(rails: usize) -> Hello {
    let rail = |at: usize| Rail {
        fabric: Name::new(&[low8(at as u64); 64]).unwrap(),
        nic: 7,
        data: Address::new(&[4; 48]).unwrap(),
        control: at.is_multiple_of(2).then(|| Address::new(&[5; 48]).unwrap()),
    };
    Hello {
        from: PEER,
        to: US,
        nonce: 11,
        echo: 0,
        capabilities: Capabilities {
            immediate: ImmediateWidth::Eight,
            true_lengths: true,
            self_read: true,
            proves_arrival: false,
            messages: false,
            arrival_times: true,
            delivery_complete: true,
            virtual_addresses: true,
            largest_write: 1 << 30,
        },
        offers: Offers { ring: Ring::LONG, inline_bytes_max: 4096, shared_from: 1 << 40 },
        rails: (0..rails).map(rail).collect(),
        host: Host {
            host: Name::cut("a"),
            process: 5,
            pid_namespace: Some(4_026_532_281),
            provider: Name::cut("tcp"),
            ..Host::default()
        },
        entries: Entries::default(),
        channel: codec::Bounded::new(&[6; 192]).unwrap(),
    }
}

fn proven(echo: u64) -> Hello {
    let mut hello = Hello { echo, ..hello(1) };
    assert!(hello.add_entry(LISTENER, Role::Connects, &SECRET, &Mixing));
    hello
}

fn has_effect(hello: &Hello, our_nonce: Option<u64>) -> bool {
    let secret_of =
        |listener, role| (listener == LISTENER && role == Role::Connects).then_some(SECRET);
    hello.is_proven(&US, our_nonce, secret_of, &Mixing)
}

#[test]
fn a_hello_is_read_as_it_was_written() {
    for rails in 1..=MAX_DATA_RAILS {
        let mut hello = hello(rails);
        for listener in 0..rails {
            let listener = ListenerId(u32::try_from(listener).unwrap());
            hello.add_entry(listener, Role::Listens, &SECRET, &Mixing);
        }
        let bytes = hello.encode().unwrap();
        assert_eq!(Hello::decode(&bytes), Ok(hello));
    }
}

#[test]
fn the_longest_hello_fits_a_message() {
    let mut hello = hello(MAX_DATA_RAILS);
    for listener in 0..MAX_ENTRIES {
        let listener = ListenerId(u32::try_from(listener).unwrap());
        assert!(hello.add_entry(listener, Role::Connects, &SECRET, &Mixing));
    }
    assert!(!hello.add_entry(LISTENER, Role::Connects, &SECRET, &Mixing));
    for rail in &mut hello.rails {
        rail.control = Some(Address::new(&[5; 48]).unwrap());
    }
    let full = Name::new(&[b'x'; 64]).unwrap();
    (hello.host.host, hello.host.provider) = (full, full);
    assert!(hello.host.pid_namespace.is_some());
    hello.channel = codec::Bounded::new(&[6; MAX_CHANNEL_BYTES]).unwrap();
    assert!(hello.encode().unwrap().len() <= MAX_HELLO_BYTES);
}

#[test]
fn a_hello_that_was_cut_or_damaged_is_refused() {
    let bytes = proven(0).encode().unwrap();
    for len in 0..bytes.len() {
        assert!(Hello::decode(&bytes[..len]).is_err(), "{len}");
    }
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Hello::decode(&damaged).is_err(), "bit {bit}");
    }
}

#[test]
fn every_field_but_the_pid_namespace_is_needed_and_none_may_come_twice() {
    let bytes = proven(0).encode().unwrap();
    let fields: Vec<_> =
        Reader::new(&bytes[codec::ENVELOPE_BYTES..]).map(|field| field.unwrap()).collect();
    let with = |skipped: Option<usize>, twice: Option<usize>| {
        let mut writer = Writer::default();
        writer.field(999, &[1, 2, 3]);
        for (at, field) in fields.iter().enumerate() {
            let times = usize::from(skipped != Some(at)) + usize::from(twice == Some(at));
            (0..times).for_each(|_| writer.field(field.kind, field.value));
        }
        Hello::decode(&writer.seal_as(VERSION, HELLO).unwrap())
    };
    assert_eq!(with(None, None), Ok(proven(0)), "unknown types are skipped");
    for (at, field) in fields.iter().enumerate() {
        let repeats = field.kind == RAIL || field.kind == ENTRY;
        let is_optional = field.kind == ENTRY || field.kind == PID_NAMESPACE;
        assert_eq!(with(Some(at), None).is_ok(), is_optional, "field {}", field.kind);
        assert_eq!(with(None, Some(at)).is_ok(), repeats, "field {}", field.kind);
    }
}

#[test]
fn a_hello_of_a_release_without_the_pid_namespace_has_none() {
    let mut before = proven(0);
    before.host.pid_namespace = None;
    let bytes = before.encode().unwrap();
    let mut fields = Reader::new(&bytes[codec::ENVELOPE_BYTES..]).map(|field| field.unwrap());
    assert!(fields.all(|field| field.kind != PID_NAMESPACE));
    assert_eq!(Hello::decode(&bytes), Ok(before));
}

#[test]
fn too_many_rails_or_entries_are_refused() {
    for (kind, most) in [(RAIL, MAX_DATA_RAILS), (ENTRY, MAX_ENTRIES)] {
        let bytes = proven(0).encode().unwrap();
        let mut writer = Writer::default();
        for field in Reader::new(&bytes[codec::ENVELOPE_BYTES..]).map(|field| field.unwrap()) {
            let times = if field.kind == kind { most + 1 } else { 1 };
            (0..times).for_each(|_| writer.field(field.kind, field.value));
        }
        let decoded = Hello::decode(&writer.seal_as(VERSION, HELLO).unwrap());
        assert!(matches!(decoded, Err(HandshakeError::Value(_))), "{decoded:?}");
    }
}

#[test]
fn another_version_or_kind_is_named() {
    let sealed = |version, kind| Writer::default().seal_as(version, kind).unwrap();
    let version = HandshakeError::Version { theirs: 3 };
    assert_eq!(Hello::decode(&sealed(3, HELLO)), Err(version));
    assert_eq!(Hello::decode(&sealed(VERSION, 1)), Err(HandshakeError::Kind(1)));
}

#[test]
fn a_proven_hello_has_effect_and_no_other() {
    assert!(has_effect(&proven(0), None));
    assert!(has_effect(&proven(0), Some(9)), "the first may cross ours");
    assert!(has_effect(&proven(9), Some(9)));
    assert!(!has_effect(&proven(9), Some(8)), "it echoes an earlier nonce");
    assert!(!has_effect(&proven(9), None));
    assert!(!has_effect(&hello(1), None), "no entry proves it");
    let mut elsewhere = Hello { to: EndpointId([9; 16]), ..hello(1) };
    assert!(elsewhere.add_entry(LISTENER, Role::Connects, &SECRET, &Mixing));
    assert!(!has_effect(&elsewhere, None), "it is meant for another endpoint");
    let right = proven(9);
    let entry = right.entries.as_slice()[0];
    let with = |entry: Entry| {
        let mut entries = Entries::default();
        entries.push(entry);
        Hello { entries, ..right.clone() }
    };
    for wrong in [
        Hello { from: EndpointId([9; 16]), ..right.clone() },
        Hello { to: EndpointId([9; 16]), ..right.clone() },
        Hello { nonce: 12, ..right.clone() },
        Hello { nonce: 0, ..right.clone() },
        Hello { echo: 0, ..right.clone() },
        with(Entry { listener: ListenerId(78), ..entry }),
        with(Entry { role: Some(Role::Listens), ..entry }),
        with(Entry { role: None, ..entry }),
        with(Entry { proof: Proof([entry.proof.0[0], entry.proof.0[1] ^ 1]), ..entry }),
    ] {
        assert!(!has_effect(&wrong, Some(9)), "{wrong:?}");
    }
    let mut many = proven(9);
    many.add_entry(ListenerId(5), Role::Connects, &Secret([8; 16]), &Mixing);
    assert!(has_effect(&many, Some(9)), "one entry is enough");
}
