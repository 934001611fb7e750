//! Arrays outside an object's encoding, sent or received. Serde has no way to pass them, so they are in thread-local lists while an object
//! is encoded or decoded.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::thread::LocalKey;

use serde::Serialize;

use super::block::{ALIGN, Block};
use super::elements::Owner;
use super::landing::{Landing, Spare};
use crate::loader::{DataType, Place};

/// Whether an array is copied into the packet, after `before` bytes of other arrays. As long as the packet stays short, a copy costs less
/// than a separate message.
fn is_short(before: usize, bytes: usize) -> bool {
    bytes <= SHORT || before.saturating_add(bytes) <= TOGETHER
}

const SHORT: usize = 4 << 10;
pub(super) const TOGETHER: usize = 64 << 10;

/// Leaves of an object that is being encoded.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Short leaves, each at a multiple of its alignment.
    pub(super) inline: Vec<u8>,
    /// The types and byte ranges of short leaves. Adjacent leaves of one type without a gap are one entry: they are reduced together.
    pub(super) short: Vec<(DataType, Range<usize>)>,
    pub(super) long: Vec<Leaving>,
    /// If set, only the memory of long arrays is collected.
    spare: Option<Vec<Spare>>,
}

impl Outbox {
    /// Whether [`Outbox::add_spare`] should be called instead of [`Outbox::add`].
    pub(super) fn is_for_spares(&self) -> bool {
        self.spare.is_some()
    }

    /// Adds an array of elements, each aligned to `align`.
    pub(super) fn add(
        &mut self,
        (element, align): (DataType, usize),
        place: Place,
        owner: impl FnOnce() -> Owner,
    ) {
        let start = self.inline.len().next_multiple_of(align);
        if !is_short(start, place.len()) {
            let is_aligned = align == ALIGN;
            self.long.push(Leaving { element, is_aligned, place, _owner: owner() });
            return;
        }
        if self.inline.is_empty() {
            self.inline.reserve(place.len() + ROOM);
        }
        self.inline.resize(start, 0);
        self.inline.extend_from_slice(place.elements());
        let added = start..start + place.len();
        match self.short.last_mut() {
            Some((last, bytes)) if (*last, bytes.end) == (element, added.start) => {
                bytes.end = added.end;
            }
            _ => self.short.push((element, added)),
        }
    }

    /// The places of all arrays that were added. `arrays` has their types and lengths in bytes, in the order of addition.
    pub(super) fn places(&self, arrays: &[(DataType, usize)]) -> Option<Vec<Place>> {
        let mut inbox = Inbox { inline: self.inline.len(), ..Inbox::default() };
        let (inline, mut long) = (Place::reading(&self.inline), self.long.iter());
        let place =
            |(element, bytes): &(DataType, usize)| match inbox.part(element.bytes(), *bytes)? {
                Some(start) => Some(inline.part(start, *bytes)),
                None => long.next().map(|leaf| leaf.place),
            };
        arrays.iter().map(place).collect()
    }

    pub(super) fn add_spare<M: Send + Sync + 'static>(
        &mut self,
        element: DataType,
        memory: Arc<M>,
    ) {
        if let Some(spare) = &mut self.spare {
            spare.push(Spare { element, memory: Box::new(memory) });
        }
    }
}

/// The usual size of a packet besides the first array.
const ROOM: usize = 512;

/// A long leaf to send. Its memory stays alive and unchanged as long as this value.
#[derive(Clone)]
pub(super) struct Leaving {
    pub(super) element: DataType,
    /// Whether the receiver aligns the leaf as a [`Block`].
    pub(super) is_aligned: bool,
    pub(super) place: Place,
    _owner: Owner,
}

impl Leaving {
    #[cfg(test)]
    pub(super) fn new<T: crate::loader::Element>(elements: &Arc<Vec<T>>) -> Self {
        let (place, _owner) = (Place::reading(elements.as_slice()), Arc::clone(elements) as Owner);
        Self { element: T::TYPE, is_aligned: false, place, _owner }
    }
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaving").field("element", &self.element).finish_non_exhaustive()
    }
}

/// Leaves of an object that is being decoded.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// The received packet, if it has short leaves, which come first in it.
    pub(super) block: Option<Arc<Block>>,
    /// The number of bytes of short leaves.
    pub(super) inline: usize,
    /// The number of these bytes that were taken.
    pub(super) at: usize,
    pub(super) long: VecDeque<Landing>,
}

impl Inbox {
    /// The block that short leaves refer to.
    pub(super) fn block(&mut self) -> Arc<Block> {
        Arc::clone(self.block.get_or_insert_default())
    }

    /// Takes the next leaf of `bytes` bytes. `Some(None)`: the leaf is long. None: the packet has no such leaf.
    pub(super) fn part(&mut self, align: usize, bytes: usize) -> Option<Option<usize>> {
        let start = self.at.checked_next_multiple_of(align)?;
        if !is_short(start, bytes) {
            return Some(None);
        }
        let end = start.checked_add(bytes).filter(|end| *end <= self.inline)?;
        self.at = end;
        Some(Some(start))
    }
}

thread_local! {
    static OUT: RefCell<Option<Outbox>> = const { RefCell::new(None) };
    static IN: RefCell<Option<Inbox>> = const { RefCell::new(None) };
}

/// Runs `work` with a list; returns the list afterwards. The earlier list, of an object whose own code called the group, is then restored,
/// after a panic too.
fn within<L: 'static, R>(
    key: &'static LocalKey<RefCell<Option<L>>>,
    list: L,
    work: impl FnOnce() -> R,
) -> (R, Option<L>) {
    struct Restore<L: 'static>(&'static LocalKey<RefCell<Option<L>>>, Option<L>);
    impl<L> Drop for Restore<L> {
        fn drop(&mut self) {
            self.0.set(self.1.take());
        }
    }
    let _before = Restore(key, key.replace(Some(list)));
    let done = work();
    (done, key.take())
}

/// Runs `work` with the list of the object being encoded; None, if no group encodes it.
pub(super) fn sending<R>(work: impl FnOnce(&mut Outbox) -> R) -> Option<R> {
    OUT.with_borrow_mut(|outbox| outbox.as_mut().map(work))
}

/// Runs `work` with the list of the object being decoded. None: no group decodes an object, or `work` returns None.
pub(super) fn taking<R>(work: impl FnOnce(&mut Inbox) -> Option<R>) -> Option<R> {
    IN.with_borrow_mut(|inbox| work(inbox.as_mut()?))
}

pub(super) const STRANGE: &str = "an array of an object is sent by a group's calls alone";
pub(super) const MISSING: &str = "an array that the message does not have";

/// Runs an encoding; returns its result and its leaves. The short leaves are in `room`, whose contents are replaced.
pub(super) fn collecting<R>(mut room: Vec<u8>, encode: impl FnOnce() -> R) -> (R, Outbox) {
    room.clear();
    let (done, outbox) = within(&OUT, Outbox { inline: room, ..Outbox::default() }, encode);
    (done, outbox.unwrap_or_default())
}

/// The memory of an object's long arrays, if each has one owner, to receive into.
pub(super) fn spares<O: Serialize>(object: O) -> VecDeque<Landing> {
    let outbox = Outbox { spare: Some(Vec::new()), ..Outbox::default() };
    // Only the arrays are needed: an object that cannot be encoded is no error here.
    let (_, outbox) = within(&OUT, outbox, || postcard::experimental::serialized_size(&object));
    let spares = outbox.and_then(|outbox| outbox.spare).unwrap_or_default();
    drop(object);
    spares.into_iter().filter_map(Landing::again).collect()
}

/// Runs a decoding with these leaves; returns its result, and whether it took all leaves.
pub(super) fn dealing<R>(inbox: Inbox, decode: impl FnOnce() -> R) -> (R, bool) {
    let (done, left) = within(&IN, inbox, decode);
    let left = left.unwrap_or_default();
    (done, left.inline == left.at && left.long.is_empty())
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn short_arrays_of_one_type_are_one_entry_unless_another_is_between() {
        let mut outbox = Outbox::default();
        let mut add = |kind, place| outbox.add(kind, place, || Arc::new(()) as Owner);
        let (bytes, words, numbers) = ([1_u8; 3], [2_u32; 5], [3.0_f64; 2]);
        for _ in 0..1000 {
            add((DataType::F64, 8), Place::reading(&numbers));
        }
        add((DataType::U8, 1), Place::reading(&bytes));
        add((DataType::U32, 4), Place::reading(&words));
        add((DataType::U32, 4), Place::reading(&words));
        add((DataType::F64, 8), Place::reading(&numbers));
        assert_eq!(
            outbox.short,
            [
                (DataType::F64, 0..16_000),
                (DataType::U8, 16_000..16_003),
                (DataType::U32, 16_004..16_044),
                (DataType::F64, 16_048..16_064),
            ]
        );
        assert_eq!(outbox.inline.len(), 16_064);
    }

    #[test]
    fn an_encoding_that_panics_leaves_no_list_behind_and_one_within_another_leaves_that() {
        let panics = || collecting(Vec::new(), || panic!("as this test wants it"));
        assert!(catch_unwind(panics).is_err());
        assert!(sending(|_| ()).is_none());
        let bytes = [1_u8; 3];
        let add = || {
            sending(|outbox| {
                outbox.add((DataType::U8, 1), Place::reading(&bytes), || Arc::new(()) as Owner);
            })
        };
        let ((), outer) = collecting(Vec::new(), || {
            add();
            let (_, inner) = collecting(Vec::new(), add);
            assert_eq!(inner.inline, bytes);
            add();
        });
        assert_eq!(outer.inline, bytes.repeat(2));
    }

    #[test]
    fn both_ends_agree_on_which_arrays_are_short_and_long_ones_are_not_copied() {
        let cases = [
            (0, TOGETHER, false),
            (0, TOGETHER + 8, true),
            (TOGETHER - 8, SHORT, false),
            (TOGETHER, SHORT, false),
            (TOGETHER - SHORT, SHORT + 8, true),
            (TOGETHER, SHORT + 8, true),
            (1 << 20, SHORT, false),
        ];
        for (before, len, is_long) in cases {
            let array = vec![1.0_f64; len / 8];
            let place = Place::reading(array.as_slice());
            let mut outbox = Outbox { inline: vec![0; before], ..Outbox::default() };
            outbox.add((DataType::F64, 8), place, || Arc::new(()) as Owner);
            let sent: Vec<_> = outbox.long.iter().map(|leaf| leaf.place.address()).collect();
            let expected = if is_long { vec![place.address()] } else { vec![] };
            assert_eq!(sent, expected, "{len} bytes behind {before}");
            let copied = if is_long { 0 } else { len };
            assert_eq!(outbox.inline.len(), before + copied, "{len} bytes behind {before}");
            let mut inbox = Inbox { inline: outbox.inline.len(), at: before, ..Inbox::default() };
            let found = inbox.part(8, len).unwrap();
            assert_eq!(found, (!is_long).then_some(before), "{len} bytes behind {before}");
        }
    }
}
