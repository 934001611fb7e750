//! The encoding of frames.

use super::*;

fn name_of(slot: usize, generation: u8) -> Name {
    Name { slot: Slot::new(slot).unwrap(), generation: Generation::new(generation) }
}

fn words_of(frame: &Frame) -> Vec<u64> {
    let mut words = Vec::new();
    frame.encode(|word| words.push(word));
    words
}

/// Frames of every kind, with the lowest and the highest value of every field.
fn examples() -> Vec<Frame> {
    let mut frames = vec![Frame::End];
    for (to, number, word) in [
        (name_of(0, 0), 0, 0),
        (name_of(0x3fff, 63), u32::MAX, u64::MAX),
        (name_of(0x2aaa, 21), 77, 5 << 33),
    ] {
        let line = Line::new(number);
        let bit = number & 1 != 0;
        for count in 1..=MAX_DATA_RAILS {
            let keys = Keys::new(&vec![word; count]).unwrap();
            for flag in [[true, false, false], [false, true, false], [false, false, true]] {
                let [cut, host, ends_group] = flag;
                let tag = number.cast_signed();
                let (address, len) = (word, word / 3);
                frames.push(Frame::Advert(Advert {
                    to,
                    line,
                    tag,
                    address,
                    len,
                    cut,
                    host,
                    ends_group,
                    keys,
                }));
            }
            frames.push(Frame::Close(Close { to, lines: line, parts: keys }));
        }
        for len in [0, 1, 8, 4096] {
            let (base, tag) = (Line::new(!number), number.cast_signed());
            frames.push(Frame::Inline(Inline { to, line, advertised: bit, tag, base, len }));
        }
        frames.push(Frame::Done { to, lines: line });
        for status in [FinStatus::Delivered, FinStatus::TooLong, FinStatus::Failed] {
            let rails = RailSet::new(low16(word));
            frames.push(Frame::Fin(Fin { to, line, len: word, rails, status }));
        }
        frames.push(Frame::Withdraw(Lines { to, first: line, set: word }));
        frames.push(Frame::Withdrawn(Lines { to, first: line, set: word }));
        for state in [
            RailState::Down(RailPosts { parts: number, uncounted: bit }),
            RailState::Fenced,
            RailState::Seen { round: low8(word) },
            RailState::Held { to, line, parts: word },
            RailState::Listed { to, lines: line, seen: number },
            RailState::Key { to, line, key: word },
        ] {
            frames.push(Frame::Rail(RailNote { rail: 15, state }));
        }
        for rails in [1, 2, 16] {
            let landed =
                |rail| Landed { rail, count: number, micros_ago: low32(word) & Landed::MICROS_MAX };
            let now = Moment::from_nanos(word / 1000);
            frames.push(Frame::Arrived(Arrived::new(now, (0..rails).map(landed)).unwrap()));
        }
        for bytes in [0, 1, 8, 28, 64] {
            frames.push(Frame::Offer(Offer {
                rail: low8(word) & 15,
                round: low8(word),
                channel: low16(word),
                target: word,
                key: !word,
                address: Address::new(&[0xa5; 64][..bytes]).unwrap(),
            }));
        }
        let listener = ListenerId(number);
        frames.push(Frame::Open(Open {
            from: to,
            listener,
            features: number,
            proof: [word, !word],
        }));
        frames.push(Frame::Opened(Opened {
            to,
            from: name_of(3, 9),
            features: number,
            inline_bytes_max: 4096,
            window: 255,
            group_max: 8,
        }));
        for why in
            [Refusal::Version, Refusal::Proof, Refusal::Feature, Refusal::Closed, Refusal::Busy]
        {
            frames.push(Frame::Refused(Refused { to, why, detail: word }));
        }
    }
    frames
}

#[test]
fn a_frame_is_read_as_it_was_written() {
    for frame in examples() {
        let words = words_of(&frame);
        assert_eq!(words.len(), frame.words(), "{frame:?}");
        assert_eq!(Frame::words_of(words[0]), Ok(words.len()));
        assert!(words.len() <= FRAME_WORDS_MAX);
        assert_eq!(Frame::decode(&words), Ok(frame));
        let mut longer = words.clone();
        longer.push(u64::MAX);
        assert_eq!(Frame::decode(&longer), Ok(frame), "words after the frame do not belong to it");
    }
}

#[test]
fn a_frame_that_is_cut_off_is_short() {
    for frame in examples() {
        let words = words_of(&frame);
        for len in 0..words.len() {
            assert_eq!(Frame::decode(&words[..len]), Err(Malformed::Short), "{frame:?} {len}");
        }
    }
}

#[test]
fn every_bit_of_a_frame_has_a_meaning_or_makes_it_invalid() {
    for frame in examples() {
        let words = words_of(&frame);
        for index in 0..words.len() {
            for bit in 0..64 {
                let mut changed = words.clone();
                changed[index] ^= 1 << bit;
                // The changed frame may be longer, and include the words that follow.
                changed.resize(FRAME_WORDS_MAX, 0);
                let Ok(other) = Frame::decode(&changed) else { continue };
                assert_ne!(other, frame, "word {index}, bit {bit}");
                let again = words_of(&other);
                assert_eq!(again, changed[..again.len()]);
            }
        }
    }
}

#[test]
fn kinds_that_do_not_exist_are_no_frames() {
    for kind in [0, 15] {
        assert_eq!(Frame::decode(&[kind, 0, 0, 0]), Err(Malformed::Kind));
        assert_eq!(Frame::words_of(kind), Err(Malformed::Kind));
    }
}

#[test]
fn numbers_beyond_their_bounds_are_no_frames() {
    let to = name_of(1, 1);
    let line = Line::FIRST;
    let longest = Inline { to, line, advertised: false, tag: 0, base: line, len: 4096 };
    let mut words = words_of(&Frame::Inline(longest));
    words[1] += 1;
    assert_eq!(Frame::decode(&words), Err(Malformed::Value));
    for status in 3..16 {
        let words = [u64::from(FIN) | status << FLAGS_SHIFT, 0, 0];
        assert_eq!(Frame::decode(&words), Err(Malformed::Value));
    }
    let beyond = [u64::from(OFFER) | 65 << OFFER_BYTES_SHIFT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(Frame::decode(&beyond), Err(Malformed::Value));
    for state in 6..16 {
        let words = [u64::from(RAIL) | state << FLAGS_SHIFT, 0];
        assert_eq!(Frame::decode(&words), Err(Malformed::Value));
    }
    for why in [0, 6, u64::from(u32::MAX)] {
        let words = [u64::from(REFUSED) | why << NUMBER_SHIFT, 0];
        assert_eq!(Frame::decode(&words), Err(Malformed::Value));
    }
    let opened = [u64::from(OPENED), 4097 << NUMBER_SHIFT];
    assert_eq!(Frame::decode(&opened), Err(Malformed::Value));
}

#[test]
fn keys_are_one_to_sixteen() {
    assert_eq!(Keys::new(&[]), None);
    assert_eq!(Keys::new(&[0; 17]), None);
    assert_eq!(Keys::new(&[7, 8]).unwrap().as_slice(), [7, 8]);
}

#[test]
fn a_report_of_arrivals_names_each_rail_once_in_ascending_order() {
    for (one, other) in (0..16).flat_map(|one| (0..16).map(move |other| (one, other))) {
        let landed = [one, other].map(|rail| Landed { rail, count: 0, micros_ago: 0 });
        let report = Arrived::new(Moment::from_nanos(0), landed.into_iter()).unwrap();
        let frame = Frame::Arrived(report);
        let expected = if one < other { Ok(frame) } else { Err(Malformed::Value) };
        assert_eq!(Frame::decode(&words_of(&frame)), expected, "{one} {other}");
    }
}
