//! A reduction whose type is known at run time, over places.

use crate::loader::{DataType, Element, Op, Place};
use crate::with_element;

/// The reduction of a collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reducer {
    kind: DataType,
    op: Op,
    ranks: u32,
}

impl Reducer {
    pub(super) fn new<T: Element>(op: Op, ranks: usize) -> Self {
        Self { kind: T::TYPE, op, ranks: u32::try_from(ranks).unwrap_or(u32::MAX) }
    }

    /// Bytes of an element.
    pub(super) fn width(self) -> usize {
        self.kind.bytes()
    }

    /// `out = a op b`. `out` may be one of the two; otherwise it overlaps neither.
    pub(super) fn combine(self, out: Place, a: Place, b: Place) {
        let op = self.op;
        with_element!(self.kind, T => {
            let into = out.elements_mut::<T>();
            if out.address() == a.address() {
                T::reduce(op, into, b.elements());
            } else if out.address() == b.address() {
                T::reduce_before(op, into, a.elements());
            } else {
                T::reduce_into(op, into, a.elements(), b.elements());
            }
        });
    }

    /// `out = terms[0] op terms[1] op …`, from the left. Of more than two terms `between` takes the results before the last: the first
    /// term's place, or `out` if no later term is there. `out` may be any of the terms.
    pub(super) fn fold(
        self,
        out: Place,
        between: Place,
        mut terms: impl ExactSizeIterator<Item = Place>,
    ) {
        let Some(mut so_far) = terms.next() else { return };
        let mut left = terms.len();
        for term in terms {
            left -= 1;
            let into = if left == 0 { out } else { between };
            self.combine(into, so_far, term);
            so_far = into;
        }
        self.finish(out);
    }

    /// For an average, divides the sum `whole`. [`Reducer::fold`] calls this itself; after [`Reducer::combine`] the caller does.
    pub(super) fn finish(self, whole: Place) {
        if self.op == Op::Avg {
            with_element!(self.kind, T => T::divide(whole.elements_mut::<T>(), self.ranks));
        }
    }
}
