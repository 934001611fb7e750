//! Messages among all ranks, also to themselves, sent and received in any order and in every form.

use ironrail_group::check::sample;
use ironrail_group::group::Group;
use ironrail_group::loader::{DataType, Element, Op};
use ironrail_group::memory::Target;
use ironrail_group::messages::{Any, Received};
use ironrail_group::with_element;

use super::random::{Memory, Random, check, poison};
use super::support::WAIT;
use super::{Step, collectives};

pub(super) fn among_all(mut step: Step<'_>) {
    with_element!(step.common.pick(&DataType::ALL), T => {
        let traffic = Traffic::<T>::draw(&mut step);
        if step.common.one_in(4) {
            traffic.in_a_block(step.own);
        } else {
            let begun = traffic.begin(step.own);
            traffic.end(begun, step.own);
        }
    });
}

/// The messages begin before the collective and end after it.
pub(super) fn around_a_collective(mut step: Step<'_>) {
    with_element!(step.common.pick(&DataType::ALL), T => {
        let traffic = Traffic::<T>::draw(&mut step);
        let begun = traffic.begin(step.own);
        collectives::any(step.reborrow());
        traffic.end(begun, step.own);
    });
}

/// Each sends to the rank that is some ranks on, which may be itself.
pub(super) fn ring(step: Step<'_>) {
    let Step { group, common, own, number } = step;
    let (rank, size) = (group.rank(), group.size());
    with_element!(common.pick(&DataType::ALL), T => {
        let (shift, tag) = (common.below(size), common.pick(&[0, 1, 2]));
        let (to, from) = ((rank + shift) % size, (rank + size - shift) % size);
        let counts: Vec<usize> = (0..size).map(|_| common.count::<T>(1 << 20)).collect();
        let data = |rank: usize| (0..counts[rank]).map(move |i| sample::<T>(Op::Sum, rank, i, number));
        let sent = Memory::filled(group, own, data(rank));
        let mut into = Memory::new(group, own, counts[from]);
        let received = group.sendrecv(&sent, to, &mut into, from, tag).unwrap();
        assert_eq!(received, Received { source: from, tag, count: counts[from] });
        check(&into, data(from));
        check(&sent, data(rank));
    });
}

/// All others send to one rank, which receives them as they come.
pub(super) fn to_anybody(step: Step<'_>) {
    let Step { group, common, own, number } = step;
    let (rank, size) = (group.rank(), group.size());
    // Later messages have another tag: they may come before the last of these.
    let (to, tag) = (common.below(size), 1000 + u32::try_from(number).unwrap());
    let counts: Vec<usize> = (0..size).map(|_| common.count::<u32>(1 << 20)).collect();
    let data =
        |rank: usize| (0..counts[rank]).map(move |i| sample::<u32>(Op::Sum, rank, i, number));
    if rank != to {
        let sent = Memory::filled(group, own, data(rank));
        return group.send(&sent, to, tag).unwrap();
    }
    let mut missing: Vec<usize> = (0..size).filter(|rank| *rank != to).collect();
    while !missing.is_empty() {
        let (source, came) = if own.one_in(2) {
            let (came, received) = group.recv_vec::<u32>(Any, tag).unwrap();
            assert_eq!(received.count, came.len());
            (received.source, came)
        } else {
            let coming = group.probe(Any, tag).unwrap();
            let mut came = vec![0; coming.bytes / size_of::<u32>()];
            let received = group.recv(&mut came, coming.source, tag).unwrap();
            let count = came.len();
            assert_eq!(received, Received { source: coming.source, tag, count });
            (coming.source, came)
        };
        assert!(came.len() == counts[source] && came.into_iter().eq(data(source)));
        let place = missing.iter().position(|rank| *rank == source);
        missing.swap_remove(place.expect("one message of each rank"));
    }
}

#[derive(Clone, Copy, Debug)]
struct Message {
    from: usize,
    to: usize,
    tag: u32,
    count: usize,
    /// The data differs with it.
    serial: usize,
}

/// Messages of elements of one type.
struct Traffic<'a, T> {
    group: &'a Group,
    all: Vec<Message>,
    data: fn(Message, usize) -> T,
}

/// What a rank does for a message, by its index.
#[derive(Clone, Copy, Debug)]
enum Action {
    Send(usize),
    Receive(usize),
}

/// Waits for something that has begun, and checks it.
type Ending<'a> = Box<dyn FnOnce(&mut Random) + 'a>;

struct Begun<'a> {
    /// Received by calls that wait.
    late: Vec<Message>,
    ends: Vec<Ending<'a>>,
}

impl<'a, T: Element> Traffic<'a, T> {
    fn draw(step: &mut Step<'a>) -> Self {
        let (group, number) = (step.group, step.number);
        let common = &mut *step.common;
        let size = group.size();
        let all = (0..1 + common.below(16)).map(|index| Message {
            from: common.below(size),
            to: common.below(size),
            tag: common.pick(&[0, 1, 2]),
            count: common.count::<T>(1 << 20),
            serial: number * 16 + index,
        });
        let data = |message: Message, index| sample(Op::Sum, message.from, index, message.serial);
        Self { group, all: all.collect(), data }
    }

    fn data(&self, message: Message) -> impl ExactSizeIterator<Item = T> + use<T> {
        let data = self.data;
        (0..message.count).map(move |index| data(message, index))
    }

    /// What this rank does, in any order but for messages of one sender to one rank with one tag.
    fn actions(&self, own: &mut Random) -> Vec<Action> {
        let rank = self.group.rank();
        let of = |(index, message): (usize, &Message)| {
            let sends = (message.from == rank).then_some(Action::Send(index));
            sends.into_iter().chain((message.to == rank).then_some(Action::Receive(index)))
        };
        let mut actions: Vec<Action> = self.all.iter().enumerate().flat_map(of).collect();
        own.shuffle(&mut actions);
        let stream = |action: Action| match action {
            Action::Send(index) => (true, self.all[index].to, self.all[index].tag),
            Action::Receive(index) => (false, self.all[index].from, self.all[index].tag),
        };
        let number = |action: Action| match action {
            Action::Send(index) | Action::Receive(index) => index,
        };
        for place in 0..actions.len() {
            let same = (place..actions.len())
                .filter(|other| stream(actions[*other]) == stream(actions[place]));
            let next = same.min_by_key(|other| number(actions[*other]));
            actions.swap(place, next.unwrap());
        }
        actions
    }

    fn in_a_block(&self, own: &mut Random) {
        let actions = self.actions(own);
        let mut memory: Vec<Memory<T>> = Vec::new();
        for action in &actions {
            memory.push(match *action {
                Action::Send(index) => Memory::filled(self.group, own, self.data(self.all[index])),
                Action::Receive(index) => Memory::new(self.group, own, self.all[index].count),
            });
        }
        let block = self.group.group(|block| {
            for (action, memory) in actions.iter().zip(&mut memory) {
                match *action {
                    Action::Send(index) => {
                        block.send(memory, self.all[index].to, self.all[index].tag)?
                    }
                    Action::Receive(index) => {
                        block.recv(memory, self.all[index].from, self.all[index].tag)?;
                    }
                }
            }
            Ok(())
        });
        block.unwrap();
        for (action, memory) in actions.iter().zip(&memory) {
            let (Action::Send(index) | Action::Receive(index)) = *action;
            check(memory, self.data(self.all[index]));
        }
    }

    fn begin(&self, own: &mut Random) -> Begun<'_> {
        let rank = self.group.rank();
        let late_streams = own.next();
        // A rank cannot wait for a message of its own.
        let is_late = |message: Message| {
            message.from != rank
                && late_streams >> (message.from * 3 + message.tag as usize) & 1 == 1
        };
        let mut begun = Begun { late: Vec::new(), ends: Vec::new() };
        for action in self.actions(own) {
            match action {
                Action::Send(index) => {
                    let end = self.begin_send(self.all[index]);
                    begun.ends.push(end);
                }
                Action::Receive(index) if is_late(self.all[index]) => {
                    begun.late.push(self.all[index]);
                }
                Action::Receive(index) => {
                    let message = self.all[index];
                    let room = message.count + own.below(3);
                    begun.ends.push(if own.one_in(2) || room == 0 {
                        self.begin_receive(message, vec![poison(); room])
                    } else {
                        let mut memory = self.group.buffer(room).unwrap();
                        memory.fill(poison());
                        self.begin_receive(message, memory)
                    });
                }
            }
        }
        begun
    }

    fn begin_send(&self, message: Message) -> Ending<'_> {
        let data: Vec<T> = self.data(message).collect();
        let mut sending = self.group.isend(data, message.to, message.tag).unwrap();
        Box::new(move |own| {
            match own.below(4) {
                // It still sends.
                0 => return,
                1 => assert!(sending.wait_timeout(WAIT).unwrap()),
                2 => drop(sending.test().unwrap()),
                _ => {}
            }
            assert!(sending.wait().unwrap().into_iter().eq(self.data(message)));
        })
    }

    fn begin_receive(
        &self,
        message: Message,
        memory: impl Target<T> + Send + 'static,
    ) -> Ending<'_> {
        let Message { from, tag, count, .. } = message;
        let mut receiving = self.group.irecv(memory, from, tag).unwrap();
        Box::new(move |own| {
            match own.below(3) {
                0 => assert!(receiving.wait_timeout(WAIT).unwrap()),
                1 => drop(receiving.test().unwrap()),
                _ => {}
            }
            let (memory, received) = receiving.wait().unwrap();
            assert_eq!(received, Received { source: from, tag, count });
            let (came, rest) = memory.elements().split_at(count);
            assert!(came.iter().copied().eq(self.data(message)), "{message:?} came as another");
            assert!(rest.iter().all(|element| *element == poison()), "{message:?} wrote too far");
        })
    }

    fn end(&self, begun: Begun<'_>, own: &mut Random) {
        let Begun { late, mut ends } = begun;
        // First: a send may end only when its message is received, and the other rank may wait for one of these.
        for message in late {
            let (group, Message { from, tag, count, .. }) = (self.group, message);
            let came = if own.one_in(2) {
                let (came, received) = group.recv_vec::<T>(from, tag).unwrap();
                assert_eq!(received, Received { source: from, tag, count });
                came
            } else {
                let mut came = vec![poison(); count];
                let received = group.recv(&mut came, from, tag).unwrap();
                assert_eq!(received, Received { source: from, tag, count });
                came
            };
            assert!(came.into_iter().eq(self.data(message)), "{message:?} came as another");
        }
        own.shuffle(&mut ends);
        ends.into_iter().for_each(|end| end(own));
    }
}
