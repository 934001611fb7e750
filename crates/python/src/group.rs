//! The class Group: checks of arguments, then the call of the group library.

use std::sync::Arc;

use ironrail_group::group::Group as Inner;
use ironrail_group::with_element;
use pyo3::prelude::*;

use crate::arguments::{any_source, any_tag, element, operation};
use crate::errors::invalid;
use crate::fixed_halo::FixedHalo1d;
use crate::halo::{Exchange, Halo1d};
use crate::member::Member;
use crate::memory::{Array, Memory};
use crate::object_batch::ObjectBatch;
use crate::objects::{self, Offer, Pickled};
use crate::reductions::Own;
use crate::request::{Coming, Received, Request};

/// A rank's membership in a group: messages between two ranks, and collectives of all.
///
/// Arrays are NumPy's, or whatever has the buffer protocol or, on the CPU, DLPack; they are C-contiguous, and moved without a copy of
/// Python's. Every rank calls the same collectives in the same order, with the same sizes, types and operations. Calls wait without
/// the interpreter's lock; arrays must be left alone until they return.
#[pyclass(frozen, weakref, module = "ironrail")]
#[derive(Debug)]
pub(crate) struct Group {
    member: Arc<Member>,
}

impl Group {
    pub(crate) fn new(inner: Inner) -> Self {
        Self { member: Arc::new(Member::new(inner)) }
    }

    /// The object that the root of a broadcast gives, which may be Python's None.
    fn own<'py>(
        &self,
        py: Python<'py>,
        object: Option<Bound<'py, PyAny>>,
        root: usize,
    ) -> Option<Bound<'py, PyAny>> {
        (self.member.rank() == root).then(|| object.unwrap_or_else(|| py.None().into_bound(py)))
    }
}

#[pymethods]
impl Group {
    /// This rank, from 0.
    #[getter]
    fn rank(&self) -> usize {
        self.member.rank()
    }

    /// How many ranks there are.
    #[getter]
    fn size(&self) -> usize {
        self.member.size()
    }

    fn __repr__(&self) -> String {
        format!("<ironrail.Group rank {} of {}>", self.member.rank(), self.member.size())
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, pyo3::types::PyTuple>) {
        self.member.leave(py);
    }

    /// Leaves the group, as soon as all groups split from it and all requests are gone too. Messages that were sent still arrive. Rank 0 waits
    /// for the others if it serves the rendezvous, no longer than the timeout.
    fn close(&self, py: Python<'_>) {
        self.member.leave(py);
    }

    /// Ends every rank's calls, of this and all groups that were split from one: from now on they raise Aborted. It does not wait for calls
    /// of other threads.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.member.abort(py)
    }

    /// `data` of all ranks, reduced element by element by `op`: "sum", "prod", "min", "max" or "avg". In place, or into `out`.
    #[pyo3(signature = (data, op="sum", out=None))]
    fn all_reduce(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        op: &str,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let op = operation(op)?;
        let Some(out) = out else {
            let mut data = Array::writing(data, "data")?;
            data.reduces_by(op)?;
            return with_element!(data.element(), T => {
                self.member.run(py, |group| group.all_reduce(data.elements_mut::<T>(), op))
            });
        };
        let (data, mut out) = pair(data, out)?;
        data.reduces_by(op)?;
        with_element!(data.element(), T => {
            self.member.run(py, |group| group.all_reduce_into(data.elements::<T>(), out.elements_mut(), op))
        })
    }

    /// As all_reduce, but only the root gets the result: in place, or into its `out`. The `data` of other ranks stays as it is.
    #[pyo3(signature = (data, op="sum", root=0, out=None))]
    fn reduce(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        op: &str,
        root: usize,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let op = operation(op)?;
        if let Some(out) = out {
            let (data, mut out) = pair(data, out)?;
            data.reduces_by(op)?;
            return with_element!(data.element(), T => {
                self.member.run(py, |group| group.reduce(data.elements::<T>(), Some(out.elements_mut()), op, root))
            });
        }
        if self.member.rank() != root {
            let data = Array::reading(data, "data")?;
            data.reduces_by(op)?;
            return with_element!(data.element(), T => {
                self.member.run(py, |group| group.reduce(data.elements::<T>(), None, op, root))
            });
        }
        let mut data = Array::writing(data, "data")?;
        data.reduces_by(op)?;
        with_element!(data.element(), T => {
            self.member.run(py, |group| group.reduce_in_place(data.elements_mut::<T>(), op, root))
        })
    }

    /// Every rank's `data` becomes the root's.
    #[pyo3(signature = (data, root=0))]
    fn broadcast(&self, py: Python<'_>, data: &Bound<'_, PyAny>, root: usize) -> PyResult<()> {
        let mut data = Array::writing(data, "data")?;
        with_element!(data.element(), T => {
            self.member.run(py, |group| group.broadcast(data.elements_mut::<T>(), root))
        })
    }

    /// Block r of `out` becomes rank r's `data`: `out` has as many elements as all `data` together. Without `out`, `data` has all blocks, of which
    /// each rank gives its own.
    #[pyo3(signature = (data, out=None))]
    fn all_gather(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let Some(out) = out else {
            let mut data = Array::writing(data, "data")?;
            return with_element!(data.element(), T => {
                self.member.run(py, |group| group.all_gather_in_place(data.elements_mut::<T>()))
            });
        };
        let (data, mut out) = pair(data, out)?;
        with_element!(data.element(), T => {
            self.member.run(py, |group| group.all_gather(data.elements::<T>(), out.elements_mut()))
        })
    }

    /// As all_gather, but only the root gets the result; other ranks give no `out`.
    #[pyo3(signature = (data, out=None, root=0))]
    fn gather(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        root: usize,
    ) -> PyResult<()> {
        if let Some(out) = out.filter(|_| self.member.rank() == root) {
            let (data, mut out) = pair(data, out)?;
            return with_element!(data.element(), T => {
                self.member.run(py, |group| group.gather(data.elements::<T>(), Some(out.elements_mut()), root))
            });
        }
        let data = Array::reading(data, "data")?;
        with_element!(data.element(), T => {
            self.member.run(py, |group| group.gather(data.elements::<T>(), None, root))
        })
    }

    /// Every rank's `out` becomes its block of the root's `data`; others give None for `data`.
    #[pyo3(signature = (data, out, root=0))]
    fn scatter(
        &self,
        py: Python<'_>,
        data: Option<&Bound<'_, PyAny>>,
        out: &Bound<'_, PyAny>,
        root: usize,
    ) -> PyResult<()> {
        if let Some(data) = data.filter(|_| self.member.rank() == root) {
            let (data, mut out) = pair(data, out)?;
            return with_element!(data.element(), T => {
                self.member.run(py, |group| group.scatter(Some(data.elements::<T>()), out.elements_mut(), root))
            });
        }
        let mut out = Array::writing(out, "out")?;
        with_element!(out.element(), T => {
            self.member.run(py, |group| group.scatter(None, out.elements_mut::<T>(), root))
        })
    }

    /// Every rank's `out` becomes its block of the reduction of all `data`, which has as many elements as all `out` together.
    #[pyo3(signature = (data, out, op="sum"))]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        op: &str,
    ) -> PyResult<()> {
        let op = operation(op)?;
        let (data, mut out) = pair(data, out)?;
        data.reduces_by(op)?;
        with_element!(data.element(), T => {
            self.member.run(py, |group| group.reduce_scatter(data.elements::<T>(), out.elements_mut(), op))
        })
    }

    /// Block s of rank r's `out` becomes block r of rank s's `data`. With lists of a length per rank, in elements, blocks are of those lengths:
    /// `sends[r]` go to rank r, `receives[r]` come from it.
    #[pyo3(signature = (data, out, sends=None, receives=None))]
    fn all_to_all(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        sends: Option<Vec<usize>>,
        receives: Option<Vec<usize>>,
    ) -> PyResult<()> {
        let (data, mut out) = pair(data, out)?;
        match (sends, receives) {
            (None, None) => with_element!(data.element(), T => {
                self.member.run(py, |group| group.all_to_all(data.elements::<T>(), out.elements_mut()))
            }),
            (Some(sends), Some(receives)) => {
                with_element!(data.element(), T => self.member.run(py, |group| {
                    group.all_to_all_v(data.elements::<T>(), &sends, out.elements_mut(), &receives)
                }))
            }
            _ => Err(invalid("give both sends and receives, or neither")),
        }
    }

    /// Returns when every rank has called it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.member.run(py, Inner::barrier)
    }

    /// Makes groups of the ranks that give the same color, ranked by key, then by rank here. A rank that gives None gets None. All ranks call it.
    #[pyo3(signature = (color, key=0))]
    fn split(&self, py: Python<'_>, color: Option<u32>, key: i64) -> PyResult<Option<Self>> {
        let split = self.member.run(py, |group| group.split(color, key))?;
        Ok(split.map(Self::new))
    }

    /// Sends `data` to rank `to`, and returns when it may be changed.
    #[pyo3(signature = (data, to, tag=0))]
    fn send(&self, py: Python<'_>, data: &Bound<'_, PyAny>, to: usize, tag: u32) -> PyResult<()> {
        let data = Array::reading(data, "data")?;
        with_element!(data.element(), T => {
            self.member.run(py, |group| group.send(data.elements::<T>(), to, tag))
        })
    }

    /// Receives into `data`, which may be longer than the message. None for `source` or `tag` is any.
    #[pyo3(signature = (data, source=None, tag=None))]
    fn recv(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> PyResult<Received> {
        let mut data = Array::writing(data, "data")?;
        let (source, tag) = (any_source(source), any_tag(tag));
        let received = with_element!(data.element(), T => {
            self.member.run(py, |group| group.recv(data.elements_mut::<T>(), source, tag))
        })?;
        Ok(received.into())
    }

    /// Waits for a message of elements, without receiving it: its source, its tag, its length in bytes and its type. None for `source` or `tag` is any.
    #[pyo3(signature = (source=None, tag=None))]
    fn probe(&self, py: Python<'_>, source: Option<usize>, tag: Option<u32>) -> PyResult<Coming> {
        let (source, tag) = (any_source(source), any_tag(tag));
        Ok(self.member.run(py, |group| group.probe(source, tag))?.into())
    }

    /// Sends `data` to rank `to` and receives into `out` at once; both ranks may be this one.
    #[pyo3(signature = (data, to, out, source=None, tag=0))]
    fn sendrecv(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        to: usize,
        out: &Bound<'_, PyAny>,
        source: Option<usize>,
        tag: u32,
    ) -> PyResult<Received> {
        let (data, mut out) = pair(data, out)?;
        let source = any_source(source);
        let received = with_element!(data.element(), T => self.member.run(py, |group| {
            group.sendrecv(data.elements::<T>(), to, out.elements_mut(), source, tag)
        }))?;
        Ok(received.into())
    }

    /// Begins a send. `data` must be left alone until the request has ended.
    #[pyo3(signature = (data, to, tag=0))]
    fn isend(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        to: usize,
        tag: u32,
    ) -> PyResult<Request> {
        let data = Array::reading(data, "data")?;
        with_element!(data.element(), T => {
            self.member.begin(py, move |group| group.isend(data.into_foreign::<T>(), to, tag))
        })
    }

    /// Begins a receive. `data` must be left alone until the request has ended.
    #[pyo3(signature = (data, source=None, tag=None))]
    fn irecv(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> PyResult<Request> {
        let data = Array::writing(data, "data")?;
        let (source, tag) = (any_source(source), any_tag(tag));
        with_element!(data.element(), T => {
            self.member.begin(py, move |group| group.irecv(data.into_foreign_mut::<T>(), source, tag))
        })
    }

    /// Zeroed memory of so many bytes that goes on the wire from where it is: numpy.frombuffer(group.memory(4 * n), "float32") is an array of n
    /// numbers in it. Worth it for long arrays that are used again.
    fn memory(&self, py: Python<'_>, bytes: usize) -> PyResult<Memory> {
        self.member.run(py, |group| Memory::new(group, bytes))
    }

    /// Begins a sparse exchange: `sources` may send to this rank, and this rank to `destinations`. All ranks call it, in the same order as
    /// other exchanges; a rank that is a source here names this one as a destination.
    fn exchange(
        &self,
        py: Python<'_>,
        sources: Vec<usize>,
        destinations: Vec<usize>,
    ) -> PyResult<Exchange> {
        self.member.run(py, |group| Exchange::new(group, &sources, &destinations))
    }

    /// This rank's place in a row of all ranks, or in a ring, whose borders have elements of one type, by its name in NumPy, as "float32". All
    /// ranks make their halos in the same order.
    #[pyo3(signature = (dtype="float64", ring=false))]
    fn halo(&self, py: Python<'_>, dtype: &str, ring: bool) -> PyResult<Halo1d> {
        let element = element(dtype)?;
        self.member.run(py, |group| Ok(Halo1d::new(group, element, ring)))
    }

    /// This rank's place in a row of all ranks, or in a ring, whose borders keep their lengths: `left` and `right` in elements of one type, by
    /// its name in NumPy. A rank's `right` is its right neighbour's `left`; 0 swaps nothing there. All ranks call it.
    #[pyo3(signature = (left, right, dtype="float64", ring=false))]
    fn fixed_halo(
        &self,
        py: Python<'_>,
        left: usize,
        right: usize,
        dtype: &str,
        ring: bool,
    ) -> PyResult<FixedHalo1d> {
        let element = element(dtype)?;
        self.member.run(py, |group| FixedHalo1d::new(group, element, ring, (left, right)))
    }

    /// Sends a picklable object. Memory that pickle takes out of it, such as that of NumPy's arrays, is not copied beyond 64 KiB. Objects have
    /// tags of their own: only recv_obj receives them. Only of groups with allow_pickle.
    #[pyo3(signature = (object, to, tag=0))]
    fn send_obj(
        &self,
        py: Python<'_>,
        object: &Bound<'_, PyAny>,
        to: usize,
        tag: u32,
    ) -> PyResult<()> {
        self.member.pickles([to])?;
        let pickled = objects::dump(object)?;
        self.member.run(py, move |group| group.send_obj(&pickled, to, tag))
    }

    /// Begins to send a picklable object. Its arrays must be left alone until the request has ended. Only of groups with allow_pickle.
    #[pyo3(signature = (object, to, tag=0))]
    fn isend_obj(
        &self,
        py: Python<'_>,
        object: &Bound<'_, PyAny>,
        to: usize,
        tag: u32,
    ) -> PyResult<Request> {
        self.member.pickles([to])?;
        let pickled = objects::dump(object)?;
        self.member.begin(py, move |group| group.isend_obj(&pickled, to, tag))
    }

    /// Begins to receive an object, which the request's wait gives. Of several, the first one that is tested or waited for takes the first
    /// message. Only of groups with allow_pickle.
    #[pyo3(signature = (source=None, tag=None))]
    fn irecv_obj(
        &self,
        py: Python<'_>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> PyResult<Request> {
        self.member.pickles(source)?;
        let (source, tag) = (any_source(source), any_tag(tag));
        self.member.begin(py, move |group| group.irecv_obj::<Pickled>(source, tag))
    }

    /// A queue of sends and receives of objects that run together. Only of groups with allow_pickle.
    fn object_batch(&self) -> PyResult<ObjectBatch> {
        self.member.pickles([])?;
        Ok(ObjectBatch::new(Arc::clone(&self.member)))
    }

    /// Receives an object that send_obj has sent. Only of groups with allow_pickle: a process that can send to this rank can run code in it.
    #[pyo3(signature = (source=None, tag=None))]
    fn recv_obj<'py>(
        &self,
        py: Python<'py>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.member.pickles(source)?;
        let (source, tag) = (any_source(source), any_tag(tag));
        let (pickled, _) = self.member.run(py, |group| group.recv_obj::<Pickled>(source, tag))?;
        objects::load(py, pickled)
    }

    /// As recv_obj, into the memory of an earlier object: each array of the new object is received into the first unused array of
    /// `into` with as many bytes; an array without such a match gets memory of its own. So the arrays of an object of the same shape stay where
    /// they are, and get the new values. Arrays of `into` are overwritten; after an error they may be overwritten in part.
    #[pyo3(signature = (into, source=None, tag=None))]
    fn recv_obj_into<'py>(
        &self,
        py: Python<'py>,
        into: &Bound<'py, PyAny>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.member.pickles(source)?;
        let (mut offer, mut pickled) = Offer::of(into)?;
        let (source, tag) = (any_source(source), any_tag(tag));
        let pickled = self.member.run(py, move |group| {
            group.recv_obj_into(&mut pickled, source, tag)?;
            Ok(pickled)
        })?;
        objects::load_into(py, pickled, &mut offer)
    }

    /// Sends an object to rank `to` and receives one at once; both ranks may be this one. Only of groups with allow_pickle.
    #[pyo3(signature = (object, to, source=None, tag=0))]
    fn sendrecv_obj<'py>(
        &self,
        py: Python<'py>,
        object: &Bound<'py, PyAny>,
        to: usize,
        source: Option<usize>,
        tag: u32,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.member.pickles(source.into_iter().chain([to]))?;
        let (pickled, source) = (objects::dump(object)?, any_source(source));
        let (received, _) = self
            .member
            .run(py, move |group| group.sendrecv_obj::<_, Pickled>(&pickled, to, source, tag))?;
        objects::load(py, received)
    }

    /// The root's object, on every rank; others' is not read. Only of groups with allow_pickle.
    #[pyo3(signature = (object=None, root=0))]
    fn broadcast_obj<'py>(
        &self,
        py: Python<'py>,
        object: Option<Bound<'py, PyAny>>,
        root: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.member.pickles_of_all()?;
        let own = self.own(py, object, root);
        let (part, is_pickled) = own.as_ref().map(objects::dump_part).unzip();
        let ended = self.member.run(py, move |group| group.broadcast_obj(part, root));
        is_pickled.unwrap_or(Ok(()))?;
        let pickled = ended?;
        match own {
            Some(own) => Ok(own),
            None => objects::load(py, pickled),
        }
    }

    /// A list of every rank's object, on the root; None on others. Only of groups with allow_pickle.
    #[pyo3(signature = (object, root=0))]
    fn gather_obj<'py>(
        &self,
        py: Python<'py>,
        object: &Bound<'py, PyAny>,
        root: usize,
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        self.member.pickles_of_all()?;
        let (part, is_pickled) = objects::dump_part(object);
        let gathered = self.member.run(py, move |group| group.gather_obj(&part, root));
        is_pickled?;
        gathered?.map(|all| all.into_iter().map(|one| objects::load(py, one)).collect()).transpose()
    }

    /// A list of every rank's object, on every rank. Only of groups with allow_pickle.
    fn all_gather_obj<'py>(
        &self,
        py: Python<'py>,
        object: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.member.pickles_of_all()?;
        let (part, is_pickled) = objects::dump_part(object);
        let gathered = self.member.run(py, move |group| group.all_gather_obj(&part));
        is_pickled?;
        gathered?.into_iter().map(|one| objects::load(py, one)).collect()
    }

    /// Begins a broadcast_obj; the request's wait gives the object, and a copy of it on the root. All ranks begin their collectives of objects in the
    /// same order. Only of groups with allow_pickle.
    #[pyo3(signature = (object=None, root=0))]
    fn ibroadcast_obj(
        &self,
        py: Python<'_>,
        object: Option<Bound<'_, PyAny>>,
        root: usize,
    ) -> PyResult<Request> {
        self.member.pickles_of_all()?;
        let own = self.own(py, object, root);
        let (part, is_pickled) = own.as_ref().map(objects::dump_part).unzip();
        let begun = self.member.begin(py, move |group| group.ibroadcast_obj(part, root));
        is_pickled.unwrap_or(Ok(()))?;
        begun
    }

    /// Begins a gather_obj; the request's wait gives the list. The object's arrays must be left alone until the request has ended. All ranks
    /// begin their collectives of objects in the same order. Only of groups with allow_pickle.
    #[pyo3(signature = (object, root=0))]
    fn igather_obj(
        &self,
        py: Python<'_>,
        object: &Bound<'_, PyAny>,
        root: usize,
    ) -> PyResult<Request> {
        self.member.pickles_of_all()?;
        let (part, is_pickled) = objects::dump_part(object);
        let begun = self.member.begin(py, move |group| group.igather_obj(&part, root));
        is_pickled?;
        begun
    }

    /// Begins an all_gather_obj, as igather_obj. Only of groups with allow_pickle.
    fn iall_gather_obj(&self, py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<Request> {
        self.member.pickles_of_all()?;
        let (part, is_pickled) = objects::dump_part(object);
        let begun = self.member.begin(py, move |group| group.iall_gather_obj(&part));
        is_pickled?;
        begun
    }

    /// A new object, in which every number is reduced with the same number of all ranks' objects: dicts, lists and tuples of integers (of 64 bits), floats,
    /// and arrays, within each other. None, booleans, keys and lengths must be the same everywhere. Nothing is pickled.
    #[pyo3(signature = (object, op="sum"))]
    fn all_reduce_obj<'py>(
        this: &Bound<'py, Self>,
        object: &Bound<'py, PyAny>,
        op: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let reductions = this.py().import("ironrail._objects")?;
        reductions.call_method1("all_reduce", (this, object, op))
    }

    /// As all_reduce_obj, on the root only; None on other ranks.
    #[pyo3(signature = (object, op="sum", root=0))]
    fn reduce_obj<'py>(
        this: &Bound<'py, Self>,
        object: &Bound<'py, PyAny>,
        op: &str,
        root: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let reductions = this.py().import("ironrail._objects")?;
        reductions.call_method1("reduce", (this, object, op, root))
    }

    /// Begins an all_reduce_obj; the request's wait gives the new object. Rank 0 reduces all objects when it tests or waits. The object's dicts, lists and
    /// tuples must be left alone until the request has ended; numbers and arrays may be changed at once.
    /// For an object that cannot be reduced, test or wait raises InvalidArgument.
    /// All ranks begin their collectives of objects in the same order.
    #[pyo3(signature = (object, op="sum"))]
    fn iall_reduce_obj(
        &self,
        py: Python<'_>,
        object: &Bound<'_, PyAny>,
        op: &str,
    ) -> PyResult<Request> {
        let op = operation(op)?;
        let own = Own::of(object, op)?;
        self.member.begin(py, move |group| own.begin(|numbers| group.iall_reduce_obj(numbers, op)))
    }

    /// Begins a reduce_obj, as iall_reduce_obj; the request's wait gives None on other ranks. Only the root gets an error if shapes differ.
    #[pyo3(signature = (object, op="sum", root=0))]
    fn ireduce_obj(
        &self,
        py: Python<'_>,
        object: &Bound<'_, PyAny>,
        op: &str,
        root: usize,
    ) -> PyResult<Request> {
        let op = operation(op)?;
        let own = Own::of(object, op)?;
        self.member.begin(py, move |group| {
            // Checked first: without such a root no rank gets a result, and an error of the object does not matter.
            group.check_rank(root)?;
            own.begin(|numbers| group.ireduce_obj(numbers, op, root))
        })
    }
}

/// The array to read and the array to write, of one type and without common memory.
fn pair(data: &Bound<'_, PyAny>, out: &Bound<'_, PyAny>) -> PyResult<(Array, Array)> {
    let (data, out) = (Array::reading(data, "data")?, Array::writing(out, "out")?);
    data.goes_with(&out)?;
    Ok((data, out))
}
