//! The communicators of a run: one of them may wait for the others, which go on meanwhile, as ranks do.

use std::thread;

use crate::support::calls::{Net, Object};
use crate::support::random::Random;
use crate::together::close_together;
use crate::world::End;

const COUNT: usize = 3;

pub(super) struct Ends {
    net: Net,
    ends: Vec<End>,
    /// Whether the fabric has faults.
    pub(super) may_fail: bool,
}

impl Ends {
    pub(super) fn open(net: Net, may_fail: bool) -> Self {
        Self { net, ends: (0..COUNT).map(|_| End::open_unsettled(net)).collect(), may_fail }
    }

    pub(super) fn any(&self, random: &mut Random) -> usize {
        random.below(self.ends.len())
    }

    pub(super) fn context(&self, end: usize) -> Object {
        self.ends[end].context
    }

    /// By listeners to which no peer connects.
    pub(super) fn poll(&self) {
        for end in &self.ends {
            let answer = self.net.accept(end.listener);
            assert!(answer == Ok(None) || self.may_fail, "accept: {answer:?}");
        }
    }

    /// A call that may wait for peers.
    pub(super) fn wait<T: Send>(&self, call: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let waiting = scope.spawn(call);
            while !waiting.is_finished() {
                self.poll();
            }
            waiting.join().expect("the call returns")
        })
    }

    /// Another communicator takes the place of one that finalizes. Returns what was open.
    pub(super) fn replace(&mut self, end: usize, random: &mut Random) -> [Object; 2] {
        let End { net, context, listener } = self.ends.remove(end);
        if random.one_in(2) {
            net.close_listen(listener).expect("closeListen");
        }
        self.wait(|| net.finalize(context)).expect("finalize");
        self.ends.insert(end, End::open_unsettled(net));
        [context, listener]
    }

    pub(super) fn close(self) {
        close_together(self.ends);
    }
}
