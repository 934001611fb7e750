//! The common case of receiving, in few instructions: a receive posted alone, on a connection of up to 4 rails.
//!
//! As on the sending side: it does what the general form would do, or nothing, and then the general form is asked.

use super::slot::{COMPLETE_ALONE, FREE, FRESH, NO_LAST, Slot};
use super::{ReceiveFlow, index_of};
use crate::bits::low16;
use crate::flow::{LineSink, Path};
use crate::ids::{Line, RESIDUES};
use crate::immediate::Immediate;
use crate::limits::MAX_RING;
use crate::wire::Form;

/// A receive posted alone that is complete.
#[derive(Clone, Copy, Debug)]
pub struct PlainReceive {
    pub size: u64,
    /// The rails that brought bytes, as bits.
    pub carried: u16,
}

/// What the line of a request is seen to be.
#[derive(Clone, Copy, Debug)]
pub enum PlainLook {
    /// It was complete and alone, and is reported now.
    Complete(PlainReceive),
    /// Posted, in whatever group.
    Incomplete,
    /// Find the line, and ask for it.
    Other,
}

impl ReceiveFlow {
    /// [`post`](Self::post) of one receive that is not empty. `words` are what its advert has behind the form: address, length, and the keys of 2
    /// or 4 rails ([`LineFormat`](crate::LineFormat)), where that of a rail that is not there is 0. `posted` is told the line, before
    /// it is made: so nothing that it needs has to be kept meanwhile. False: nothing has been posted.
    #[inline(always)]
    pub fn post_plainly<S: LineSink, const WORDS: usize>(
        &mut self,
        sink: &mut S,
        words: [u64; WORDS],
        tag: i32,
        cut: bool,
        posted: impl FnOnce(Line),
    ) -> bool {
        const { assert!(WORDS == 4 || WORDS == 6) };
        self.post_within(self.plain_room, sink, words, tag, cut, posted)
    }

    /// The same on connections for which [`allow_short`](Self::allow_short) was called, and on no other.
    #[inline(always)]
    pub fn post_shortly<S: LineSink>(
        &mut self,
        sink: &mut S,
        words: [u64; 4],
        tag: i32,
        cut: bool,
        posted: impl FnOnce(Line),
    ) -> bool {
        self.post_within(self.short_room, sink, words, tag, cut, posted)
    }

    #[inline(always)]
    fn post_within<S: LineSink, const WORDS: usize>(
        &mut self,
        room: u32,
        sink: &mut S,
        words: [u64; WORDS],
        tag: i32,
        cut: bool,
        posted: impl FnOnce(Line),
    ) -> bool {
        let line = self.next;
        let has_room = line.distance(self.done) < room;
        if !has_room || !self.slot(line).is_free() {
            return false;
        }
        assert!(words[1] != 0, "an empty receive is no common case");
        posted(line);
        self.post_words(sink, Form::advert(0, 1, cut, tag), words[1], words, FRESH);
        true
    }

    /// [`arrived`](Self::arrived) for a message that fills a receive posted alone, and is one part: it is complete. Some(true):
    /// adverts that waited may be due by that, since the sender has no more left than wait. None: nothing has changed, ask
    /// that. `carried` is the bit of the rail.
    #[inline(always)]
    pub fn arrived_plainly(&mut self, carried: u16, immediate: Immediate) -> Option<bool> {
        let (done, advertised) = (self.done, self.advertised);
        let ahead = immediate.residue().wrapping_sub(done.number()) % RESIDUES;
        if !immediate.is_whole_in_one_part() || ahead >= advertised.distance(done) {
            return None;
        }
        // Read once: what is written to the slot could be any of these, for all that is known of a box.
        let slots = &mut *self.slots;
        // As the line's own number, since the residues are so many rings.
        let index = immediate.residue() % MAX_RING;
        let slot = &mut slots[index as usize];
        if slot.stage != FRESH {
            return None;
        }
        (slot.carried, slot.stage) = (carried, COMPLETE_ALONE);
        (self.idle_turns, self.recent) = (0, index);
        let mut done = done;
        if ahead == 0 {
            done = done.plus(1);
            let next = &slots[index_of(done)];
            self.done = done;
            // Mostly more is posted, and then this is all there is to see.
            if !next.is_incomplete() {
                self.skip();
                done = self.done;
            }
        }
        // Also past one that is missing: behind long ones, a short one says that the rails are less busy than they were thought.
        Some(self.is_due(self.next.distance(advertised), advertised.distance(done), 0))
    }

    /// No arrival is plain any more: each is told to [`arrived`](Self::arrived).
    pub fn end_plain_arrivals(&mut self) {
        self.slots.iter_mut().for_each(Slot::touch);
    }

    /// Whether one of the lines last posted, as many as there are slots, ends in these bits.
    #[inline(always)]
    fn window_holds(&self, request: u16) -> bool {
        let behind = u32::from(low16(self.next.number().into()).wrapping_sub(request));
        behind.wrapping_sub(1) < MAX_RING
    }

    /// Whether the line whose low bits a request carries is posted, and not complete.
    #[inline(always)]
    pub fn awaits(&self, request: u16) -> bool {
        self.slot(Line::new(request.into())).is_incomplete()
    }

    /// The same for a receive posted alone whose parts announce themselves, where nothing has failed: there is nothing to do
    /// for it but to wait, and to look for a fin. False: find the line, and ask for it.
    #[inline(always)]
    pub fn waits_plainly(&self, request: u16) -> bool {
        let slot = self.slot(Line::new(request.into()));
        self.failed.is_none()
            && self.window_holds(request)
            && slot.is_incomplete()
            && slot.is_alone()
            && self.parameters.path != Path::Fin
    }

    /// Whether [`poll_plainly`](Self::poll_plainly) would answer.
    #[inline(always)]
    pub fn is_complete_plainly(&self, request: u16) -> bool {
        let slot = self.slot(Line::new(request.into()));
        self.window_holds(request) && slot.stage == COMPLETE_ALONE
    }

    /// [`poll`](Self::poll) for the line whose low bits a request carries, if it is complete and stands alone.
    #[inline(always)]
    pub fn look_plainly(&mut self, request: u16) -> PlainLook {
        if !self.window_holds(request) {
            return PlainLook::Other;
        }
        self.look_in_window(request)
    }

    /// The same for a line that was seen incomplete, and can have been reported to nobody since.
    #[inline(always)]
    pub fn look_again(&mut self, request: u16) -> PlainLook {
        assert!(self.window_holds(request), "what is incomplete stays in the window");
        self.look_in_window(request)
    }

    #[inline(always)]
    fn look_in_window(&mut self, request: u16) -> PlainLook {
        let slot = self.slot_mut(Line::new(request.into()));
        match slot.stage {
            COMPLETE_ALONE => {
                slot.stage = FREE;
                PlainLook::Complete(PlainReceive { size: slot.len, carried: slot.carried })
            }
            0..=NO_LAST => PlainLook::Incomplete,
            _ => PlainLook::Other,
        }
    }

    /// The same, where it does not matter what else the line is. None: find it, and ask for it.
    #[inline(always)]
    pub fn poll_plainly(&mut self, request: u16) -> Option<PlainReceive> {
        match self.look_plainly(request) {
            PlainLook::Complete(done) => Some(done),
            PlainLook::Incomplete | PlainLook::Other => None,
        }
    }
}
