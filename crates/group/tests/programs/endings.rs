//! Messages that are refused, taken back, dropped, or waited for in vain at first; exchanges that are cancelled; calls of several threads.

use std::time::Duration;

use ironrail_group::check::sample;
use ironrail_group::error::GroupError;
use ironrail_group::group::Group;
use ironrail_group::loader::{DataType, Element, Op};
use ironrail_group::messages::{Any, From, Received, Receiving};
use ironrail_group::with_element;

use super::Step;
use super::random::{Random, poison};

/// A tag that no other step has.
fn tag(number: usize) -> u32 {
    1000 + u32::try_from(number).unwrap()
}

/// Some messages of each rank to the rank that is some ranks on, which may be itself.
struct Ring<T> {
    to: usize,
    from: usize,
    counts: Vec<usize>,
    data: fn(usize, usize, usize) -> T,
    number: usize,
}

impl<T: Element> Ring<T> {
    fn draw(group: &Group, common: &mut Random, number: usize, messages: usize) -> Self {
        let (rank, size) = (group.rank(), group.size());
        let shift = common.below(size);
        let (to, from) = ((rank + shift) % size, (rank + size - shift) % size);
        let counts = (0..messages).map(|_| 1 + common.count::<T>(2 << 20)).collect();
        let data = |rank, index, serial| sample::<T>(Op::Sum, rank, index, serial);
        Self { to, from, counts, data, number }
    }

    /// What a rank sends as its message of this place.
    fn of(&self, rank: usize, place: usize) -> Vec<T> {
        let serial = self.number * 16 + place;
        (0..self.counts[place]).map(|index| (self.data)(rank, index, serial)).collect()
    }

    /// Begins to send all of them. Some are dropped, and still go.
    fn send(&self, group: &Group, own: &mut Random) -> Vec<Box<dyn FnOnce()>> {
        let mut ends: Vec<Box<dyn FnOnce()>> = Vec::new();
        for place in 0..self.counts.len() {
            let data = self.of(group.rank(), place);
            if own.one_in(2) {
                let sending = group.isend(data, self.to, tag(self.number)).unwrap();
                ends.push(Box::new(move || drop(sending.wait().unwrap())));
            } else {
                let mut memory = group.buffer::<T>(data.len()).unwrap();
                memory.copy_from_slice(&data);
                let sending = group.isend(memory, self.to, tag(self.number)).unwrap();
                ends.push(Box::new(move || drop(sending.wait().unwrap())));
            }
        }
        ends.retain(|_| !own.one_in(4));
        ends
    }

    fn check(&self, came: &[T], place: usize) {
        assert!(came == self.of(self.from, place), "message {place} came as another");
    }

    fn received(&self, place: usize) -> Received {
        Received { source: self.from, tag: tag(self.number), count: self.counts[place] }
    }

    fn receive_late(&self, group: &Group, place: usize) {
        let receiving =
            group.irecv(vec![poison(); self.counts[place] + 1], self.from, tag(self.number));
        let (came, received) = receiving.unwrap().wait().unwrap();
        assert_eq!(received, self.received(place));
        self.check(&came[..received.count], place);
    }
}

fn pause(own: &mut Random) {
    (0..own.below(40)).for_each(|_| std::thread::yield_now());
}

/// Receives that are too short, or of another type, and one behind them that takes its message.
pub(super) fn refused(step: Step<'_>) {
    let Step { group, common, own, number } = step;
    with_element!(common.pick(&DataType::ALL), T => {
        let messages = 2 + common.below(3);
        let ring = Ring::<T>::draw(group, common, number, messages);
        let ends = ring.send(group, own);
        for place in 0..messages {
            pause(own);
            let (source, bytes) = (ring.from, ring.counts[place] * size_of::<T>());
            if place + 1 == messages {
                ring.receive_late(group, place);
            } else if common.one_in(2) && ring.counts[place] > 1 {
                let room = 1 + own.below(ring.counts[place] - 1);
                let mut receiving =
                    group.irecv(vec![poison::<T>(); room], Any, tag(number)).unwrap();
                let ended = ended(&mut receiving, own);
                let room = room * size_of::<T>();
                assert!(
                    matches!(&ended, Err(GroupError::TooLong { source: from, bytes: sent, room: had, .. })
                        if (*from, *sent, *had) == (source, bytes, room)),
                    "{ended:?}"
                );
            } else {
                let ended = if T::TYPE == DataType::U8 {
                    let memory = vec![0_i8; bytes];
                    ended(&mut group.irecv(memory, source, tag(number)).unwrap(), own)
                } else {
                    let memory = vec![0_u8; bytes];
                    ended(&mut group.irecv(memory, source, tag(number)).unwrap(), own)
                };
                assert!(
                    matches!(ended, Err(GroupError::OtherType { source: from, .. }) if from == source),
                    "{ended:?}"
                );
            }
        }
        ends.into_iter().for_each(|end| end());
    });
}

/// Tests a receive until it has ended.
fn ended<T: Element>(
    receiving: &mut Receiving<T, Vec<T>>,
    own: &mut Random,
) -> Result<(), GroupError> {
    loop {
        let limit = Duration::from_micros(own.pick(&[0, 1, 100, 3000]));
        if receiving.wait_timeout(limit)? {
            return Ok(());
        }
    }
}

/// Receives of which some are taken back: each message goes to the oldest one that is left.
pub(super) fn taken_back(step: Step<'_>) {
    let Step { group, common, own, number } = step;
    with_element!(common.pick(&DataType::ALL), T => {
        let messages = 1 + common.below(4);
        let ring = Ring::<T>::draw(group, common, number, messages);
        let longest = ring.counts.iter().copied().max().unwrap();
        let late = own.one_in(2);
        let mut ends = if late { Vec::new() } else { ring.send(group, own) };
        let receive = |own: &mut Random| {
            let from: From = if own.one_in(2) { Any.into() } else { ring.from.into() };
            group.irecv::<T, _>(vec![poison(); longest], from, tag(number)).unwrap()
        };
        let posted: Vec<_> = (0..messages).map(|_| receive(own)).collect();
        if late {
            ends = ring.send(group, own);
        }
        let mut left = Vec::new();
        for mut receiving in posted {
            pause(own);
            if own.one_in(3) {
                let _ = receiving.test().unwrap();
            }
            if !own.one_in(2) || !receiving.take_back() {
                left.push(receiving);
                continue;
            }
            let (memory, received) = receiving.wait().unwrap();
            assert_eq!(received.count, 0);
            assert!(memory.iter().all(|element| *element == poison::<T>()), "it was written");
        }
        while left.len() < messages {
            left.push(receive(own));
        }
        for (place, receiving) in left.into_iter().enumerate() {
            let (came, received) = receiving.wait().unwrap();
            assert_eq!(received, ring.received(place));
            ring.check(&came[..received.count], place);
        }
        ends.into_iter().for_each(|end| end());
    });
}

/// A receive that is dropped takes no message, or a whole one; what follows comes as it was sent.
pub(super) fn dropped(step: Step<'_>) {
    let Step { group, common, own, number } = step;
    with_element!(common.pick(&DataType::ALL), T => {
        let messages = 2 + common.below(2);
        let ring = Ring::<T>::draw(group, common, number, messages);
        let longest = ring.counts.iter().copied().max().unwrap();
        let ends = ring.send(group, own);
        let mut receiving =
            group.irecv(vec![poison::<T>(); longest], ring.from, tag(number)).unwrap();
        for _ in 0..own.below(30) {
            pause(own);
            if receiving.test().unwrap() {
                break;
            }
        }
        drop(receiving);
        let (came, _) = group.recv_vec::<T>(Any, tag(number)).unwrap();
        let first = (0..2).find(|place| came == ring.of(ring.from, *place));
        let first = first.expect("it is none of the first two");
        (first + 1..messages).for_each(|place| ring.receive_late(group, place));
        ends.into_iter().for_each(|end| end());
    });
}

/// Several threads of each rank send and receive at once.
pub(super) fn of_threads(step: Step<'_>) {
    let Step { group, common, own, number } = step;
    let rings: Vec<_> = (0..1 + common.below(4))
        .map(|thread| {
            let messages = 1 + common.below(4);
            (Ring::<u32>::draw(group, common, number + thread * 7, messages), own.next())
        })
        .collect();
    std::thread::scope(|threads| {
        for (thread, (ring, seed)) in rings.iter().enumerate() {
            let tag = 1 << 30 | u32::try_from(number * 8 + thread).unwrap();
            threads.spawn(move || {
                let mut own = Random::new(*seed);
                for place in 0..ring.counts.len() {
                    pause(&mut own);
                    let data = ring.of(group.rank(), place);
                    let mut came = vec![0; ring.counts[place]];
                    if own.one_in(2) || ring.to == group.rank() {
                        group.sendrecv(&data, ring.to, &mut came, ring.from, tag).unwrap();
                    } else {
                        let sending = group.isend(data, ring.to, tag).unwrap();
                        group.recv(&mut came, ring.from, tag).unwrap();
                        sending.wait().unwrap();
                    }
                    ring.check(&came, place);
                }
            });
        }
    });
}

/// Some ranks drop an exchange of all with all, each at a moment of its own.
pub(super) fn cancelled_exchange(step: Step<'_>) {
    let group = step.group;
    cancel_some(step);
    // A rank whose program ends would be lost to those that still insert.
    group.barrier().unwrap();
}

fn cancel_some(step: Step<'_>) {
    let Step { group, common, own, number } = step;
    let (rank, size) = (group.rank(), group.size());
    let others: Vec<usize> = (0..size).filter(|other| *other != rank).collect();
    let cancels: Vec<bool> = (0..size).map(|_| common.one_in(3)).collect();
    let counts: Vec<Vec<usize>> = (0..size)
        .map(|_| (0..common.below(3)).map(|_| common.count::<u16>(1 << 20)).collect())
        .collect();
    let all = |from: usize, to: usize| -> Vec<Vec<u16>> {
        let made = |(place, count): (usize, &usize)| {
            let serial = number * 64 + to * 4 + place;
            (0..*count).map(|index| sample(Op::Sum, from, index, serial)).collect()
        };
        counts[from].iter().enumerate().map(made).collect()
    };
    let exchange = group.exchange::<u16>(&others, &others).unwrap();
    let until = if cancels[rank] { own.below(size * 3 + 2) } else { usize::MAX };
    let mut at = 0;
    let mut goes_on = || {
        at += 1;
        at <= until
    };
    for to in &others {
        for (place, data) in all(rank, *to).into_iter().enumerate() {
            if !goes_on() {
                return;
            }
            let meta = if place % 2 == 1 { vec![7; 3 + place] } else { Vec::new() };
            exchange.insert(*to, meta, data).unwrap();
        }
    }
    if !goes_on() {
        return;
    }
    exchange.finish().unwrap();
    if cancels[rank] && own.one_in(2) {
        for _ in 0..own.below(20) {
            // Another rank may have cancelled it before.
            if exchange.test().is_err() {
                return;
            }
        }
        return;
    }
    match exchange.wait() {
        Ok(()) => {
            for from in others {
                let came = exchange.take(from).unwrap();
                let came: Vec<_> = came.into_iter().map(|message| message.data).collect();
                assert!(came == all(from, rank), "from rank {from}");
            }
        }
        Err(GroupError::Cancelled { rank: other }) => assert!(cancels[other], "{other}"),
        Err(error) => panic!("{error:?}"),
    }
}
