//! The collectives of a [`Group`]: checks, then the algorithm.

use super::reducer::Reducer;
use super::{all_reduce, everyone, rooted};
use crate::error::GroupError;
use crate::group::Group;
use crate::loader::{DataType, Element, Op, Place};
use crate::mesh::{CallKind as Kind, What};
use crate::tuning::Algorithm;

fn invalid<T>(why: impl Into<String>) -> Result<T, GroupError> {
    Err(GroupError::InvalidArgument(why.into()))
}

/// Collectives. Every rank of the group calls the same ones in the same order, with the same sizes, types, operations and roots; a difference
/// is [`GroupError::Mismatch`] of every rank that detects it. Parts of up to 64 KiB say what they belong to; longer ones say nothing but
/// their length. The order is one for all groups of a process, and one thread calls them at a time: see [`Group`],
/// threads. Wrong arguments of a rank are [`GroupError::InvalidArgument`] before anything moves. Any other
/// error fails the group on all ranks; for a rank that dies, stops, aborts or leaves see [`Group`].
///
/// Slices of registered memory ([`Group::buffer`]) are sent and received without a copy, others are copied through registered memory. After
/// an error the contents of outputs are unspecified.
///
/// Reductions: integers wrap; `Min` and `Max` are NaN where an input is; `Avg` is the sum divided by the number of ranks; for integers it
/// is rounded towards zero, and the sum wraps before. Results are the same bits on all ranks, and from run to run of the same group, table
/// and size; but whether a call is in place may decide which of two NaNs is its result. f16 and bf16 are widened to
/// f32 for each operation, and rounded after it.
impl Group {
    /// `data` of each rank becomes the reduction of all ranks' `data`, element by element.
    ///
    /// # Errors
    ///
    /// As above; [`GroupError::InvalidArgument`] where the type has no such operation.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: Op) -> Result<(), GroupError> {
        let place = Place::writing(data);
        self.all_reduce_places::<T>(place, place, op, None)
    }

    /// As [`Group::all_reduce`], from one slice into another of the same length.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce`]; [`GroupError::InvalidArgument`] for unequal lengths.
    pub fn all_reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: Op,
    ) -> Result<(), GroupError> {
        same_length(input.len(), output.len())?;
        self.all_reduce_places::<T>(Place::reading(input), Place::writing(output), op, None)
    }

    /// As [`Group::all_reduce_into`], by a given algorithm, for measurements. All ranks must name the same algorithm.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce_into`]; [`GroupError::InvalidArgument`] for an algorithm that does not support this number of ranks.
    pub fn all_reduce_by<T: Element>(
        &self,
        algorithm: Algorithm,
        input: &[T],
        output: &mut [T],
        op: Op,
    ) -> Result<(), GroupError> {
        same_length(input.len(), output.len())?;
        if !algorithm.takes(self.size()) {
            return invalid(format!("{algorithm} does not take {} ranks", self.size()));
        }
        let (input, output) = (Place::reading(input), Place::writing(output));
        self.all_reduce_places::<T>(input, output, op, Some(algorithm))
    }

    fn all_reduce_places<T: Element>(
        &self,
        input: Place,
        output: Place,
        op: Op,
        by: Option<Algorithm>,
    ) -> Result<(), GroupError> {
        let reducer = self.reducer::<T>(op)?;
        let what = What::new(Kind::AllReduce).of(T::TYPE).by(op);
        if input.is_empty() {
            return self.without_elements(what);
        }
        if self.size() == 1 {
            return self.alone(what, output, input);
        }
        let by = by.unwrap_or_else(|| self.tuning().choose(self.size(), input.len()));
        self.collective(what, |session| match by {
            Algorithm::OnePhase => all_reduce::one_phase(session, reducer, input, output),
            Algorithm::Doubling => all_reduce::doubling(session, reducer, input, output),
            Algorithm::Mesh => all_reduce::mesh(session, reducer, input, output),
            Algorithm::Ring => all_reduce::ring(session, reducer, input, output),
        })
    }

    /// The reduction of all ranks' `input` goes to the root's `output`, of the same length; others may give `None`.
    ///
    /// # Errors
    ///
    /// As above; [`GroupError::InvalidArgument`] for a root that does not exist, has no output, or has one of another length.
    pub fn reduce<T: Element>(
        &self,
        input: &[T],
        output: Option<&mut [T]>,
        op: Op,
        root: usize,
    ) -> Result<(), GroupError> {
        let output = self.of_root(root, output, input.len())?;
        self.reduce_places::<T>(Place::reading(input), output, op, root)
    }

    /// As [`Group::reduce`], in place: the root's `data` becomes the reduction; the `data` of other ranks does not change.
    ///
    /// # Errors
    ///
    /// As [`Group::reduce`].
    pub fn reduce_in_place<T: Element>(
        &self,
        data: &mut [T],
        op: Op,
        root: usize,
    ) -> Result<(), GroupError> {
        self.rank_of(root)?;
        let place = Place::writing(data);
        let output = (root == self.rank()).then_some(place);
        self.reduce_places::<T>(place, output, op, root)
    }

    fn reduce_places<T: Element>(
        &self,
        input: Place,
        output: Option<Place>,
        op: Op,
        root: usize,
    ) -> Result<(), GroupError> {
        let reducer = self.reducer::<T>(op)?;
        let what = What::new(Kind::Reduce).of(T::TYPE).by(op).at(root);
        if input.is_empty() {
            return self.without_elements(what);
        }
        if self.size() == 1 {
            return self.alone(what, output.unwrap_or(input), input);
        }
        self.collective(what, |session| rooted::reduce(session, reducer, root, input, output))
    }

    /// Copies the root's `data` to every rank.
    ///
    /// # Errors
    ///
    /// As above; [`GroupError::InvalidArgument`] for a root that does not exist.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), GroupError> {
        self.rank_of(root)?;
        let data = Place::writing(data);
        let what = What::new(Kind::Broadcast).of(T::TYPE).at(root);
        if data.is_empty() {
            return self.without_elements(what);
        }
        self.collective(what, |session| rooted::broadcast(session, root, data))
    }

    /// Copies the root's `input` to the `output` of every rank, the root's own included. The `input` of other ranks is ignored.
    ///
    /// # Errors
    ///
    /// As [`Group::broadcast`]; [`GroupError::InvalidArgument`] where the root has no input, or one of another length.
    pub fn broadcast_into<T: Element>(
        &self,
        input: Option<&[T]>,
        output: &mut [T],
        root: usize,
    ) -> Result<(), GroupError> {
        self.rank_of(root)?;
        if root == self.rank() {
            let Some(input) = input else { return invalid("the root of a broadcast has no input") };
            same_length(input.len(), output.len())?;
            output.copy_from_slice(input);
        }
        self.broadcast(output, root)
    }

    /// Block `r` of every rank's `output` becomes rank r's `input`: `output` is as long as all inputs.
    ///
    /// # Errors
    ///
    /// As above; [`GroupError::InvalidArgument`] for an output of another length.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), GroupError> {
        self.blocks(input.len(), output.len())?;
        let (input, output) = (Place::reading(input), Place::writing(output));
        self.all_gather_places(T::TYPE, input, output)
    }

    /// As [`Group::all_gather`], in place: each rank's input is its own block of `data`.
    ///
    /// # Errors
    ///
    /// As above; [`GroupError::InvalidArgument`] where the length of `data` is not a multiple of the number of ranks.
    pub fn all_gather_in_place<T: Element>(&self, data: &mut [T]) -> Result<(), GroupError> {
        let each = self.evenly(data.len())? * size_of::<T>();
        let output = Place::writing(data);
        self.all_gather_places(T::TYPE, output.part(self.rank() * each, each), output)
    }

    fn all_gather_places(
        &self,
        element: DataType,
        input: Place,
        output: Place,
    ) -> Result<(), GroupError> {
        let what = What::new(Kind::AllGather).of(element);
        if input.is_empty() {
            return self.without_elements(what);
        }
        self.collective(what, |session| everyone::all_gather(session, input, output))
    }

    /// Block `r` of the root's `output` becomes rank r's `input`; others may give `None`.
    ///
    /// # Errors
    ///
    /// As above; [`GroupError::InvalidArgument`] for a root that does not exist, has no output, or has one that is not as long as all
    /// inputs.
    pub fn gather<T: Element>(
        &self,
        input: &[T],
        output: Option<&mut [T]>,
        root: usize,
    ) -> Result<(), GroupError> {
        let whole = self.all_of(input.len())?;
        let output = self.of_root(root, output, whole)?;
        let input = Place::reading(input);
        let what = What::new(Kind::Gather).of(T::TYPE).at(root);
        if input.is_empty() {
            return self.without_elements(what);
        }
        self.collective(what, |session| rooted::gather(session, root, input, output))
    }

    /// Every rank's `output` becomes its block of the root's `input`; others may give `None`.
    ///
    /// # Errors
    ///
    /// As above; [`GroupError::InvalidArgument`] for a root that does not exist, has no input, or has one that is not as long as all
    /// outputs.
    pub fn scatter<T: Element>(
        &self,
        input: Option<&[T]>,
        output: &mut [T],
        root: usize,
    ) -> Result<(), GroupError> {
        self.rank_of(root)?;
        let input = match input {
            Some(input) if root == self.rank() => {
                self.blocks(output.len(), input.len())?;
                Some(Place::reading(input))
            }
            None if root == self.rank() => return invalid("the root of a scatter has no input"),
            _ => None,
        };
        let output = Place::writing(output);
        let what = What::new(Kind::Scatter).of(T::TYPE).at(root);
        if output.is_empty() {
            return self.without_elements(what);
        }
        self.collective(what, |session| rooted::scatter(session, root, input, output))
    }

    /// Every rank's `output` becomes the reduction of its block of all inputs: `input` is as long as all outputs.
    ///
    /// # Errors
    ///
    /// As above; [`GroupError::InvalidArgument`] for an input of another length, or a type that has no such operation.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: Op,
    ) -> Result<(), GroupError> {
        self.blocks(output.len(), input.len())?;
        let (input, output) = (Place::reading(input), Place::writing(output));
        self.reduce_scatter_places::<T>(input, output, op)
    }

    /// As [`Group::reduce_scatter`], in place: the reduction goes to the rank's own block of `data`; the other blocks do not change.
    ///
    /// # Errors
    ///
    /// As [`Group::reduce_scatter`]; [`GroupError::InvalidArgument`] where the length of `data` is not a multiple of the number of ranks.
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        data: &mut [T],
        op: Op,
    ) -> Result<(), GroupError> {
        let each = self.evenly(data.len())? * size_of::<T>();
        let input = Place::writing(data);
        self.reduce_scatter_places::<T>(input, input.part(self.rank() * each, each), op)
    }

    fn reduce_scatter_places<T: Element>(
        &self,
        input: Place,
        output: Place,
        op: Op,
    ) -> Result<(), GroupError> {
        let reducer = self.reducer::<T>(op)?;
        let what = What::new(Kind::ReduceScatter).of(T::TYPE).by(op);
        if output.is_empty() {
            return self.without_elements(what);
        }
        if self.size() == 1 {
            return self.alone(what, output, input);
        }
        self.collective(what, |session| everyone::reduce_scatter(session, reducer, input, output))
    }

    /// Block `s` of rank r's `output` becomes block `r` of rank s's `input`. Both have the same length, a multiple of the number of ranks.
    ///
    /// # Errors
    ///
    /// As above; [`GroupError::InvalidArgument`] for unequal lengths, or one that is not a multiple of the number of ranks.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), GroupError> {
        same_length(input.len(), output.len())?;
        self.evenly(input.len())?;
        let (input, output) = (Place::reading(input), Place::writing(output));
        let what = What::new(Kind::AllToAll).of(T::TYPE);
        if input.is_empty() {
            return self.without_elements(what);
        }
        self.collective(what, |session| everyone::all_to_all_even(session, input, output))
    }

    /// As [`Group::all_to_all`], with a length in elements for each rank: `sends[r]` elements go to rank r, block after block of `input`,
    /// and `receives[r]` elements come from rank r, block after block of `output`. `sends[r]` of a rank equals `receives[rank]` on rank r.
    ///
    /// # Errors
    ///
    /// As above; [`GroupError::InvalidArgument`] for lists without a length for each rank, or longer in all than their slices.
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        sends: &[usize],
        output: &mut [T],
        receives: &[usize],
    ) -> Result<(), GroupError> {
        self.fit(sends, input.len())?;
        self.fit(receives, output.len())?;
        let (rank, own) = (self.rank(), (sends[self.rank()], receives[self.rank()]));
        if own.0 != own.1 {
            return invalid(format!(
                "rank {rank} sends itself {} elements and receives {}",
                own.0, own.1
            ));
        }
        let (input, output) = (Place::reading(input), Place::writing(output));
        let block = |whole: Place, lens: &[usize], rank: usize| {
            let start: usize = lens[..rank].iter().sum();
            whole.part(start * size_of::<T>(), lens[rank] * size_of::<T>())
        };
        self.collective(What::new(Kind::AllToAll).of(T::TYPE), |session| {
            let from = |rank| block(input, sends, rank);
            everyone::all_to_all(session, from, |rank| block(output, receives, rank))
        })
    }

    /// Returns when every rank has called `barrier`.
    ///
    /// # Errors
    ///
    /// As above. [`GroupError::Timeout`] names the ranks that did not arrive.
    pub fn barrier(&self) -> Result<(), GroupError> {
        self.collective(What::new(Kind::Barrier), everyone::barrier)
    }

    /// A collective of no elements.
    fn without_elements(&self, what: What) -> Result<(), GroupError> {
        self.collective(what, |_| Ok(()))
    }

    /// A reduction of one rank: copies the input to the output, unless they are the same memory.
    fn alone(&self, what: What, output: Place, input: Place) -> Result<(), GroupError> {
        self.collective(what, |_| {
            if output.address() != input.address() {
                output.copy_from(input);
            }
            Ok(())
        })
    }

    fn reducer<T: Element>(&self, op: Op) -> Result<Reducer, GroupError> {
        T::TYPE.check(op)?;
        Ok(Reducer::new::<T>(op, self.size()))
    }

    /// The root's output, which must exist and have this many elements.
    fn of_root<T: Element>(
        &self,
        root: usize,
        output: Option<&mut [T]>,
        count: usize,
    ) -> Result<Option<Place>, GroupError> {
        self.rank_of(root)?;
        if root != self.rank() {
            return Ok(None);
        }
        let Some(output) = output else { return invalid("the root has no output") };
        same_length(count, output.len())?;
        Ok(Some(Place::writing(output)))
    }

    /// Checks that `whole` is as long as a block for each rank.
    fn blocks(&self, block: usize, whole: usize) -> Result<(), GroupError> {
        if self.all_of(block)? == whole {
            return Ok(());
        }
        invalid(format!("{} blocks of {block} elements are not {whole}", self.size()))
    }

    fn all_of(&self, block: usize) -> Result<usize, GroupError> {
        block.checked_mul(self.size()).map_or_else(|| invalid("more elements than fit memory"), Ok)
    }

    fn evenly(&self, count: usize) -> Result<usize, GroupError> {
        if count.is_multiple_of(self.size()) {
            return Ok(count / self.size());
        }
        invalid(format!("{count} elements cannot be divided evenly among {} ranks", self.size()))
    }

    fn fit(&self, lens: &[usize], count: usize) -> Result<(), GroupError> {
        if lens.len() != self.size() {
            return invalid(format!("{} lengths for {} ranks", lens.len(), self.size()));
        }
        let sum = lens.iter().try_fold(0_usize, |sum, len| sum.checked_add(*len));
        if sum.is_none_or(|sum| sum > count) {
            return invalid(format!("blocks that together have more than {count} elements"));
        }
        Ok(())
    }
}

fn same_length(input: usize, output: usize) -> Result<(), GroupError> {
    if input == output {
        return Ok(());
    }
    invalid(format!("{input} elements in, room for {output}"))
}
