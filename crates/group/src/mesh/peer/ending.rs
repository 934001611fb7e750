//! The end of a peer: what it has sent before it left still comes, and what never comes is given up.

use super::{Failing, Peer, Way};
use crate::mesh::header::Route;
use crate::mesh::lane::Lane;
use crate::mesh::long::Long;
use crate::mesh::long_parts::PartReceiver;
use crate::mesh::matching::{Matching, OpId};
use crate::mesh::opening::Opening;
use crate::mesh::pair::Pair;
use crate::mesh::registry::Registry;

impl Peer {
    /// The peer leaves. Messages that it has sent still come.
    pub(in super::super) fn leaves(&mut self) {
        let small = self.receiver.leaves();
        let long = self.long.each_mut().map(Long::leaves);
        let parts = self.part_receivers.each_mut().map(PartReceiver::leaves);
        let failed_ahead = match self.failing {
            Some(Failing::In(Way::Small)) => small,
            Some(Failing::In(Way::Long(route))) => long[route as usize],
            Some(Failing::In(Way::Part(route))) => parts[route as usize],
            _ => false,
        };
        if failed_ahead {
            self.failing = Some(Failing::Ahead);
        }
    }

    /// The peer has left, and the connection of the last error has ended because of that. Returns false if that connection is not known.
    pub(in super::super) fn left(&mut self) -> bool {
        match self.failing.take() {
            Some(Failing::In(way)) => self.silent[way.index()] = true,
            Some(Failing::Out) => self.is_closed = true,
            Some(Failing::Opening | Failing::Ahead) => {}
            None => return false,
        }
        true
    }

    /// This rank has left, and a connection with the peer has ended. Returns whether the peer may still receive something by the others.
    pub(in super::super) fn loses_connection(&mut self) -> bool {
        self.left() && !self.silent[Way::Small.index()] && !self.is_closed
    }

    pub(in super::super) fn comms(&self) -> &[usize] {
        &self.comms
    }

    /// The operations that have not ended, when the peer's connections close.
    pub(in super::super) fn into_operations(mut self) -> Vec<OpId> {
        let mut operations: Vec<OpId> = self.sender.clear().collect();
        operations.extend(self.long.iter().flat_map(Long::operations));
        operations
    }

    /// Whether nothing more can be sent to the peer, which has left.
    #[inline]
    pub(in super::super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Closes connections by which nothing moves any more, if memory of callers may be posted there, and ends their operations.
    #[cold]
    pub(in super::super) fn close_ended(
        &mut self,
        registry: &mut Registry,
        matching: &mut Matching,
    ) {
        for route in Route::ALL {
            if self.silent[Way::Long(route).index()] {
                self.long[route as usize].close_receive(registry);
            }
        }
        if self.is_closed {
            self.sender.clear().for_each(|op| matching.lose(op, self.rank));
            self.long.iter_mut().for_each(|long| long.close_send(registry, matching));
            self.part_senders.iter_mut().for_each(|sender| sender.close(registry));
        }
    }

    /// Whether the peer has left, and its lanes are needed no more, except pairs with a user and long parts that are due. The peer takes the end
    /// of its connection of small messages for that of all, so none ends before its farewell may be answered.
    #[inline]
    pub(in super::super) fn may_retire(&self) -> bool {
        self.is_silent()
            && self.is_read()
            && (self.has_lanes || self.is_over())
            && !self.needs_connections()
    }

    /// Whether no pair has a user on this rank, and no long part comes any more.
    #[cold]
    pub(in super::super) fn is_over(&self) -> bool {
        self.has_no_user() && Route::ALL.into_iter().all(|route| self.has_all_parts(route))
    }

    /// Takes all lanes out of the peer except the pairs and the long parts that are due, which a later collective of this rank takes.
    pub(in super::super) fn take_lanes(&mut self, own: usize) -> Self {
        let mut rest = Self {
            openings: [const { Opening::Open }; Way::ALL.len()],
            pairs: std::mem::take(&mut self.pairs),
            silent: [true; Way::ALL.len()],
            is_closed: true,
            has_lanes: false,
            ..Self::new(self.rank, own, self.device)
        };
        for route in Route::ALL {
            if self.has_all_parts(route) {
                continue;
            }
            let (way, route) = (Way::Part(route).index(), route as usize);
            std::mem::swap(&mut rest.part_receivers[route], &mut self.part_receivers[route]);
            std::mem::swap(&mut rest.openings[way], &mut self.openings[way]);
            rest.is_opening |= rest.openings[way].is_requested();
            rest.comms.extend(rest.part_receivers[route].number());
            rest.silent[way] = false;
            (rest.has_left, rest.last_part) = (self.has_left, self.last_part);
        }
        self.comms.retain(|number| !rest.comms.contains(number));
        std::mem::replace(self, rest)
    }

    /// Whether all parts and messages that have come from the peer have been received, apart from long messages on ways by which no more
    /// come.
    #[cold]
    pub(super) fn is_read(&self) -> bool {
        self.receiver.held().is_none() && self.no_long(Long::awaits_none)
    }

    /// Whether the peer has left, and no more messages can be received from it or sent to it, pairs included. Messages that have come may
    /// wait for a receive.
    pub(in super::super) fn is_gone(&self) -> bool {
        self.is_silent() && self.has_no_user()
    }

    /// Whether no pair has a user on this rank.
    fn has_no_user(&self) -> bool {
        self.pairs.iter().all(Pair::is_over)
    }

    /// As [`Peer::is_gone`], without the pairs.
    #[inline]
    fn is_silent(&self) -> bool {
        self.silent[Way::Small.index()] && self.is_silent_otherwise()
    }

    /// The part of [`Peer::is_silent`] that is tested once no more small messages come.
    #[cold]
    fn is_silent_otherwise(&self) -> bool {
        (self.is_closed || self.has_sent()) && self.no_long(Long::receives_none)
    }

    /// Whether the peer has left, and all long parts that it has sent by this route are received. They may come long before a collective
    /// expects them.
    pub(super) fn has_all_parts(&self, route: Route) -> bool {
        let way = Way::Part(route);
        self.silent[way.index()]
            || self.part_receivers[route as usize].has_all()
            || self.has_left && self.is_in_vain(way)
    }

    /// Whether `is_so` holds for the long messages of every route by which more may come.
    fn no_long(&self, is_so: fn(&Long) -> bool) -> bool {
        let is_silent = |route| self.silent[Way::Long(route).index()];
        Route::ALL.into_iter().all(|route| is_silent(route) || is_so(&self.long[route as usize]))
    }

    /// Whether nothing more can be received from the peer or sent to it by this way, which may never have been opened. `has_left`: the peer
    /// has left, and its letters are read.
    pub(in super::super) fn is_lost(&mut self, way: Way, has_left: bool) -> bool {
        if has_left {
            self.give_up_small();
            self.give_up_all_long();
        }
        // A sent part counts, if the plugin completes it: only a part that waits for a connection never arrives.
        let waits = |sender: &Lane<_>| !sender.is_idle() && !sender.is_open();
        let is_in_vain = has_left && self.part_senders.iter().any(waits);
        match way {
            Way::Part(route) if !self.part_senders[route as usize].is_idle() => {
                is_in_vain || self.is_silent()
            }
            Way::Part(route) => self.has_all_parts(route),
            // A collective that waits for a short part ends with this, and its long part too.
            _ if is_in_vain => self.silent[Way::Small.index()] && self.no_long(Long::receives_none),
            _ => self.is_silent(),
        }
    }

    /// For a peer that has left: whether nothing more comes by this way.
    pub(super) fn is_in_vain(&self, way: Way) -> bool {
        !self.is_open(way).1 && self.openings[way.index()].is_in_vain()
    }

    /// Whether the plugin may access the memory of a long message or long part to the peer.
    fn sends_long(&self) -> bool {
        self.part_senders.iter().any(Lane::is_in_flight) || self.long.iter().any(Long::is_in_flight)
    }

    /// For a peer that has left: gives up sends of small messages if their connection is not open by now. Nothing more is received by this way
    /// once all slots of the farewell are taken. Its end may never be seen, as parts of collectives may have all slots.
    fn give_up_small(&mut self) {
        self.is_closed |= !self.sender.is_open() && !self.sends_long();
        let has_come = self.receiver.is_open() && self.receiver.has_taken(self.farewell.slots);
        self.silent[Way::Small.index()] |= has_come || self.is_in_vain(Way::Small);
    }

    /// For a peer that has left: gives up long messages whose headers were sent or have come, if no more headers come and their way was
    /// never opened.
    pub(in super::super) fn give_up_all_long(&mut self) {
        self.has_left = true;
        if self.silent[Way::Small.index()] {
            Route::ALL.into_iter().for_each(|route| self.give_up_long(route));
        }
    }

    #[cold]
    fn give_up_long(&mut self, route: Route) {
        let way = Way::Long(route);
        let long = &self.long[route as usize];
        self.is_closed |= !long.is_open().0 && !long.has_sent() && !self.sends_long();
        self.silent[way.index()] |= self.is_in_vain(way);
    }
}
