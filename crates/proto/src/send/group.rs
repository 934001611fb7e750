//! Matching inside the first unfinished group. A group is visible when all of its adverts are there.

use super::{SendFlow, State};
use crate::error::{ProtocolError, Violation};
use crate::flow::LineSource;
use crate::ids::Line;
use crate::limits::MAX_GROUP;
use crate::wire::Kind;

/// The first unfinished group, once all of its adverts are there. A count of 0: not looked at yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Group {
    pub(super) count: u32,
    /// A bit per line that a message took.
    pub(super) taken: u32,
    pub(super) tags: [i32; MAX_GROUP],
}

impl SendFlow {
    #[inline(never)]
    pub(super) fn line_of_group<S: LineSource>(
        &mut self,
        mailbox: &S,
        tag: i32,
    ) -> Result<Option<Line>, ProtocolError> {
        if self.group.count == 0 && !self.open_group(mailbox)? {
            return Ok(None);
        }
        let Group { count, taken, tags } = self.group;
        let free = |index: &u32| taken & 1 << index == 0 && tags[*index as usize] == tag;
        let Some(index) = (0..count).find(free) else { return Ok(None) };
        let line = self.first.plus(index);
        if self.slot(line).state != State::Free || !self.mailbox.advert(mailbox, line) {
            return Ok(None);
        }
        self.group.taken |= 1 << index;
        self.end_group();
        Ok(Some(line))
    }

    /// Goes on to the next group when all lines of this one are taken.
    pub(super) fn end_group(&mut self) {
        let Group { count, taken, .. } = self.group;
        if taken == (1 << count) - 1 {
            self.group = Group::default();
            self.first = self.first.plus(count);
            if !self.behind {
                self.plain.resume();
            }
        }
    }

    /// Reads the group that begins at the first line, which was copied; false while one of its adverts is missing.
    pub(super) fn open_group<S: LineSource>(&mut self, mailbox: &S) -> Result<bool, ProtocolError> {
        let mut count = self.mailbox.form().count();
        let mut tags = [0; MAX_GROUP];
        let mut index = 0;
        while index < count {
            if !self.read_advert(mailbox, self.first.plus(index)) {
                return Ok(false);
            }
            let form = self.mailbox.form();
            if !form.is(Kind::Advert) {
                return Err(self.stick(ProtocolError::Violation(Violation::LineKind)));
            }
            if index == 0 {
                count = form.count();
            }
            if form.index() != index || form.count() != count || count as usize > MAX_GROUP {
                return Err(self.stick(ProtocolError::Violation(Violation::Group)));
            }
            tags[index as usize] = form.tag();
            index += 1;
        }
        self.group = Group { count, taken: 0, tags };
        self.plain.pause();
        Ok(true)
    }
}
