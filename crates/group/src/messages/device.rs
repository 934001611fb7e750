//! Messages and collectives of GPU memory, through page-locked host memory.
//!
//! ```text
//! send      device ──copy──▶ piece 0 │ piece 1 │ piece 2 ──▶ wire     while a piece is in flight the next one is copied
//! receive     wire ──▶ piece 0 │ piece 1 │ piece 2 ──copy──▶ device   while a piece is copied the next ones arrive
//! ```
//!
//! The pieces are a pool that is locked and registered once.

use std::marker::PhantomData;

use gpu::{DeviceMemory, Devices, DriverError, Stream};

use super::{From, Tag};
use crate::error::GroupError;
use crate::group::Group;
use crate::loader::{Buffer, Element, Op, PinnedMemory, Place};
use crate::mesh::{Envelope, Mesh, Name, OpId, Wanted, type_number};

/// Elements in GPU memory, and the stream whose work produces them.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'a, T> {
    memory: &'a DeviceMemory,
    /// The offset of the first element in the memory, in bytes.
    start: usize,
    count: usize,
    stream: Option<&'a Stream>,
    elements: PhantomData<T>,
}

impl<'a, T: Element> DeviceSlice<'a, T> {
    /// `count` elements from element `first` of the memory.
    ///
    /// # Errors
    ///
    /// [`GroupError::InvalidArgument`]: the memory is shorter.
    pub fn new(memory: &'a DeviceMemory, first: usize, count: usize) -> Result<Self, GroupError> {
        let end = first.checked_add(count).and_then(|end| end.checked_mul(size_of::<T>()));
        if end.is_none_or(|end| end > memory.len()) {
            let why = format!(
                "elements {first} to {first}+{count} of {} bytes lie outside of {}",
                size_of::<T>(),
                memory.len()
            );
            return Err(GroupError::InvalidArgument(why));
        }
        let start = first * size_of::<T>();
        Ok(Self { memory, start, count, stream: None, elements: PhantomData })
    }

    /// Operations on the elements wait for the work of this stream first.
    #[must_use]
    pub fn after(mut self, stream: &'a Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Waits for the stream's work. Called before any copy: a copy does not wait for other streams, and would read older data.
    fn settle(&self) -> Result<(), DriverError> {
        match self.stream {
            Some(stream) => stream.synchronize(),
            None => Ok(()),
        }
    }

    fn bytes(&self) -> usize {
        self.count * size_of::<T>()
    }

    /// The number of pieces. A slice without elements is one piece without bytes.
    fn pieces(&self) -> usize {
        self.bytes().div_ceil(PIECE).max(1)
    }

    /// The offset of piece `number` in the memory, and its length in bytes.
    fn piece(&self, number: usize) -> (usize, usize) {
        let at = number * PIECE;
        (self.start + at, (self.bytes() - at).min(PIECE))
    }
}

/// Moves GPU memory between the ranks of a group.
///
/// A message is sent in pieces of 1 MiB, each a message with the same tag, and with the length of the whole; the receiver must use this type
/// too, with the same number of elements. At any time only one thread may send to a rank with a tag, and only one may receive from a rank with a
/// tag: the pieces of messages that are sent at once with one tag are mixed without an error. Collectives run piece by piece. In steady state
/// nothing is allocated, locked or registered.
#[derive(Debug)]
pub struct DeviceStaging {
    pieces: Vec<Piece>,
    group: Group,
}

/// Which copies a piece of a collective needs: of its input from the device, and of its result to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copies {
    FromDevice,
    ToDevice,
    Both,
}

#[derive(Debug)]
struct Piece {
    _pinned: PinnedMemory,
    buffer: Buffer,
    op: Option<OpId>,
}

impl Group {
    /// Makes staging memory for messages of a device; it keeps a handle of this group.
    ///
    /// # Errors
    ///
    /// [`GroupError::Device`] where the driver cannot lock memory, [`GroupError::System`] where there is none.
    pub fn device_staging(
        &self,
        devices: &Devices,
        device: i32,
    ) -> Result<DeviceStaging, GroupError> {
        let make = || {
            let buffer = Buffer::new(PIECE)?;
            let pinned = buffer.pin(devices, device).map_err(GroupError::Device)?;
            self.register(&buffer);
            Ok(Piece { _pinned: pinned, buffer, op: None })
        };
        let pieces: Result<Vec<_>, GroupError> = (0..PIECES).map(|_| make()).collect();
        Ok(DeviceStaging { pieces: pieces?, group: self.clone() })
    }
}

impl DeviceStaging {
    /// Sends, and returns when the device's memory may be changed.
    ///
    /// # Errors
    ///
    /// As [`Group::send`]; [`GroupError::Device`] for a copy that failed. If that was not the first one, the receive returns
    /// [`GroupError::Mismatch`], and the next message can be received.
    pub fn send<T: Element>(
        &mut self,
        data: DeviceSlice<'_, T>,
        to: usize,
        tag: u32,
    ) -> Result<(), GroupError> {
        let peer = self.group.other(to)?;
        data.settle().map_err(GroupError::Device)?;
        let name = Name { note: data.bytes() as u64, ..Name::message(self.group.scope, tag) };
        let (mut is_begun, mut failed) = (false, Ok(()));
        let ended = (0..data.pieces()).try_for_each(|number| {
            let index = number % PIECES;
            self.end(index, peer)?;
            let (at, len) = data.piece(number);
            let Piece { buffer, op, .. } = &mut self.pieces[index];
            if failed.is_ok() {
                let copied = data.memory.read_into(at, buffer.slice_mut(0..len)?);
                failed = copied.map_err(GroupError::Device);
            }
            if !is_begun && failed.is_err() {
                return Ok(());
            }
            is_begun = true;
            // The receiver counts pieces: a piece that was not copied is sent without bytes.
            let len = if failed.is_ok() { len } else { 0 };
            let place = buffer.memory().place().part(0, len);
            *op = Some(self.group.shared.lock().mesh.send(peer, name, T::TYPE, place)?);
            Ok(())
        });
        self.end_all(peer, ended).and(failed)
    }

    /// Receives a message of [`DeviceStaging::send`] with the same number of elements.
    ///
    /// # Errors
    ///
    /// As [`Group::recv`]; [`GroupError::Device`] for a copy that failed; [`GroupError::Mismatch`] for another number of elements, or for a
    /// copy that failed at the sender. Then the rest of the message is dropped, and the next one can be received.
    pub fn recv<T: Element>(
        &mut self,
        into: DeviceSlice<'_, T>,
        from: usize,
        tag: u32,
    ) -> Result<(), GroupError> {
        let peer = self.group.other(from)?;
        into.settle().map_err(GroupError::Device)?;
        let wanted = self.group.wanted::<T>(Place::empty(), From::from(from), Tag::from(tag))?;
        self.await_message(from, into.bytes(), &wanted)?;
        let pieces = into.pieces();
        let (mut posted, mut failed) = (0, Ok(()));
        let ended = (0..pieces).try_for_each(|number| {
            while posted < pieces.min(number + PIECES) {
                self.post(into, posted, &wanted)?;
                posted += 1;
            }
            let index = number % PIECES;
            let came = self.end(index, peer)?.unwrap_or(0);
            // The rest is received after an error too: otherwise it would be taken for the next message.
            if failed.is_ok() {
                failed = self.copy_in(into, number, came, from);
            }
            Ok(())
        });
        self.end_all(peer, ended).and(failed)
    }

    /// Copies a piece of which `came` bytes have come to the device.
    fn copy_in<T: Element>(
        &self,
        into: DeviceSlice<'_, T>,
        number: usize,
        came: usize,
        from: usize,
    ) -> Result<(), GroupError> {
        let (at, len) = into.piece(number);
        if came != len {
            let why = match came {
                0 => format!("rank {from} could not copy piece {number} of its message"),
                _ => format!("a piece of {came} bytes came, and one of {len} was expected"),
            };
            return Err(GroupError::Mismatch { rank: from, why });
        }
        let bytes = self.pieces[number % PIECES].buffer.slice(0..len)?;
        into.memory.write(at, bytes).map_err(GroupError::Device)
    }

    /// Waits for a message of `bytes` bytes. A message of another length or type is dropped, with all its pieces.
    fn await_message(&self, from: usize, bytes: usize, wanted: &Wanted) -> Result<(), GroupError> {
        let group = &self.group;
        let seen = |_: &mut Mesh, envelope: Envelope, element| Ok((envelope.note, element));
        let (sent, element) = group.find(wanted, seen)?;
        if (sent, element) == (bytes as u64, type_number(wanted.element)) {
            return Ok(());
        }
        let mut refusal = None;
        for _ in 0..sent.div_ceil(PIECE as u64).max(1) {
            let op = group.shared.lock().mesh.receive(*wanted)?;
            match group.wait(op, wanted.source) {
                Err(other @ GroupError::OtherType { .. }) => refusal = Some(other),
                Ok(_) | Err(GroupError::TooLong { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let why = format!("a message of {sent} bytes came, and one of {bytes} was expected");
        Err(refusal.unwrap_or(GroupError::Mismatch { rank: from, why }))
    }

    /// As [`Group::all_reduce`], in place.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce`], and [`GroupError::Device`]: the group is aborted then, because the other ranks continue without this rank.
    pub fn all_reduce<T: Element>(
        &mut self,
        data: DeviceSlice<'_, T>,
        op: Op,
    ) -> Result<(), GroupError> {
        self.by_pieces(data, Copies::Both, |group, piece: &mut [T]| group.all_reduce(piece, op))
    }

    /// As [`Group::broadcast`].
    ///
    /// # Errors
    ///
    /// As [`DeviceStaging::all_reduce`].
    pub fn broadcast<T: Element>(
        &mut self,
        data: DeviceSlice<'_, T>,
        root: usize,
    ) -> Result<(), GroupError> {
        let is_root = root == self.group.rank();
        let copies = if is_root { Copies::FromDevice } else { Copies::ToDevice };
        self.by_pieces(data, copies, |group, piece: &mut [T]| group.broadcast(piece, root))
    }

    fn by_pieces<T: Element>(
        &mut self,
        data: DeviceSlice<'_, T>,
        copies: Copies,
        run: impl Fn(&Group, &mut [T]) -> Result<(), GroupError>,
    ) -> Result<(), GroupError> {
        let Self { pieces, group } = self;
        // The other ranks wait for this one in the collective.
        let missing = |error| {
            group.abort();
            GroupError::Device(error)
        };
        data.settle().map_err(missing)?;
        let buffer = &mut pieces[0].buffer;
        for number in 0..data.pieces() {
            let (at, len) = data.piece(number);
            if copies != Copies::ToDevice {
                data.memory.read_into(at, buffer.slice_mut(0..len)?).map_err(missing)?;
            }
            run(group, buffer.slice_mut(0..len)?)?;
            if copies != Copies::FromDevice {
                data.memory.write(at, buffer.slice(0..len)?).map_err(missing)?;
            }
        }
        Ok(())
    }

    fn post<T: Element>(
        &mut self,
        into: DeviceSlice<'_, T>,
        number: usize,
        wanted: &Wanted,
    ) -> Result<(), GroupError> {
        let (_, len) = into.piece(number);
        let Piece { buffer, op, .. } = &mut self.pieces[number % PIECES];
        let wanted = Wanted { place: buffer.memory().place().part(0, len), ..*wanted };
        *op = Some(self.group.shared.lock().mesh.receive(wanted)?);
        Ok(())
    }

    /// Waits for a piece in flight; returns the bytes of its message.
    fn end(&mut self, index: usize, peer: usize) -> Result<Option<usize>, GroupError> {
        let Some(op) = self.pieces[index].op.take() else { return Ok(None) };
        self.group.wait(op, Some(peer)).map(|envelope| Some(envelope.bytes))
    }

    /// Ends all pieces: none is in flight when this returns. After an error, receives without a message so far are removed.
    fn end_all(
        &mut self,
        peer: usize,
        mut ended: Result<(), GroupError>,
    ) -> Result<(), GroupError> {
        for index in 0..PIECES {
            if ended.is_err()
                && let Some(op) = self.pieces[index].op
                && self.group.shared.lock().mesh.take_back(op)
            {
                self.pieces[index].op = None;
            }
            let piece = self.end(index, peer).map(drop);
            ended = ended.and(piece);
        }
        ended
    }
}

/// Bytes of a piece; a multiple of the size of every element type.
const PIECE: usize = 1 << 20;
/// The number of pieces of staging memory: one is copied while others are in flight.
const PIECES: usize = 3;
