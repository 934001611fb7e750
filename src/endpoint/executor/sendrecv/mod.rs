//! SENDRECV, for providers without one-sided writes (`proto::sendrecv`, docs/decisions/0018-sendrecv.md).
//!
//! The same loop drives the same channels and connections; only the transport differs. Packets and acknowledgements are tagged messages
//! between control rails, copied into the inbox that the tag names. Parts are tagged messages between data rails, into receives that are
//! posted for their lines.

mod packet_buffers;

use fabric::{FabricError, Nic, OperationPlace, Post as Posted, Tags};
use proto::flow;
use proto::memory::MemoryId;
use proto::progress::Acted;
use proto::receive::Tagged;
use proto::sendrecv::Letterbox;
use proto::window::{WINDOW, place};
use proto::{Event, Generation, Line, Moment, Slot};

use super::super::nics::Port;
use super::super::purpose::Purpose;
use super::super::unposted::Trouble;
use super::{Executor, Happened, named};
use crate::error::Cause;
use packet_buffers::PacketBuffers;

/// The endpoint's state for SENDRECV.
#[derive(Debug, Default)]
pub(in crate::endpoint) struct Sendrecv {
    letterbox: Letterbox,
    /// Buffers for received packets, by NIC.
    rooms: Vec<Option<PacketBuffers>>,
    /// Where each posted receive is in its NIC's table of operations, by slot and by the line's place in the window.
    /// None for a receive that was cancelled.
    places: Vec<[Option<OperationPlace>; WINDOW as usize]>,
    /// All receives were cancelled, since the endpoint closes.
    is_stopped: bool,
}

impl Sendrecv {
    /// Registers the buffers of each control rail.
    pub(in crate::endpoint) fn new(nics: &mut [Port]) -> Result<Self, FabricError> {
        let rooms = nics.iter_mut().map(|port| {
            let has_control = port.nic.has_control();
            has_control.then(|| PacketBuffers::new(&mut port.nic)).transpose()
        });
        let rooms = rooms.collect::<Result<_, _>>()?;
        Ok(Self { rooms, ..Self::default() })
    }

    /// Lends a unit to a peer, and returns the address for the peer to send to.
    pub(super) fn lend(&mut self, memory: MemoryId) -> u64 {
        self.letterbox.lend(memory)
    }

    pub(super) fn retire(&mut self, memory: MemoryId) {
        self.letterbox.retire(memory);
    }

    /// Posts the packet receives of a NIC again that have completed.
    #[inline]
    pub(super) fn post_receives(
        &mut self,
        index: usize,
        nic: &mut Nic,
        now: Moment,
    ) -> Option<Trouble> {
        self.room(index)?.post(nic, now)
    }

    /// Stops posting receives.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        self.rooms.iter_mut().flatten().for_each(PacketBuffers::stop);
    }

    /// Whether this side has cancelled the posted receive of a line.
    pub(super) fn has_cancelled(&self, slot: Slot, line: Line) -> bool {
        let known = self.places.get(slot.index()).and_then(|places| places[place(line)]);
        self.is_stopped || known.is_none()
    }

    /// Makes room for the receives of a connection.
    pub(super) fn connect(&mut self, slot: Slot) {
        self.places.resize(self.places.len().max(slot.index() + 1), [None; WINDOW as usize]);
    }

    fn room(&mut self, nic: usize) -> Option<&mut PacketBuffers> {
        self.rooms.get_mut(nic)?.as_mut()
    }
}

impl Executor {
    /// Posts a receive of a connection, or cancels it.
    #[inline]
    pub(super) fn tag(&mut self, slot: Slot, tagged: &Tagged) -> Acted {
        let Some((channel, generation)) = self.connections.get(slot.index()).copied() else {
            return Acted::Done;
        };
        let lane = self.peer(channel).and_then(|peer| peer.data.first()).copied();
        let Some(lane) = lane else { return Acted::Done };
        let nic = &mut self.nics[lane.nic].nic;
        let (Tagged::Post { line, .. } | Tagged::Cancel { line }) = *tagged;
        let token = Purpose::Receive { slot, generation, line }.token();
        let places =
            self.sendrecv.as_mut().and_then(|sendrecv| sendrecv.places.get_mut(slot.index()));
        let Some(known) = places.map(|places| &mut places[place(line)]) else { return Acted::Done };
        let Tagged::Post { tag, target, len, .. } = *tagged else {
            if let Some(known) = known.take() {
                nic.cancel_one(known, token);
            }
            return Acted::Done;
        };
        *known = nic.next_place();
        let region = named(&self.regions, &self.landing, target.region);
        let local = usize::try_from(len).ok().and_then(|len| {
            let region = region?;
            // Older NCCL passes any address for an empty buffer.
            let address = if len == 0 { region.address() } else { target.address };
            region.local(lane.nic, address, len)
        });
        let posted = match local {
            Some(local) => {
                nic.receive_tagged(local, Tags::only(tag.bits()), token).map_err(Cause::NotPosted)
            }
            None => Err(Cause::ReceiveDeregistered),
        };
        match posted {
            Ok(Posted::Accepted) => Acted::Done,
            Ok(Posted::Again) => Acted::Refused,
            Ok(Posted::Full) => Acted::NoRoom,
            Err(cause) => {
                self.never_received((slot, generation), line, cause);
                Acted::Done
            }
        }
    }

    /// A receive that was advertised cannot be posted: its channel fails.
    #[cold]
    fn never_received(&mut self, (slot, generation): (Slot, Generation), line: Line, cause: Cause) {
        let (channel, _) = self.connections[slot.index()];
        if let Some(peer) = self.peer_mut(channel) {
            peer.failed(cause);
        }
        self.deferred.lost.push(channel);
        let event = flow::Event::ReceiveEnded { line };
        self.queued.push_back(Event::Connection { slot, generation, event });
    }

    /// A packet or an acknowledgement has arrived: copied to where its tag says, as if the peer had written it there.
    #[inline]
    pub(super) fn packet_came(
        &mut self,
        nic: usize,
        buffer: u16,
        (len, tag): (usize, u64),
    ) -> Option<Happened> {
        let Self { sendrecv, memory, deferred, .. } = self;
        let sendrecv = sendrecv.as_mut()?;
        let place = sendrecv.letterbox.place(tag, len, memory.unit_bytes());
        let rooms = sendrecv.room(nic)?;
        match place {
            Some((unit, at)) => {
                let unit = &*memory.unit(unit);
                let first = unit.offset(at / 8) / 8;
                rooms.copy_out(buffer, len, |index, word| {
                    unit.pages().store_relaxed(first + index, word);
                });
            }
            None => deferred.misplaced += 1,
        }
        rooms.ended(buffer);
        None
    }

    /// A packet receive has failed.
    #[cold]
    pub(super) fn no_packet_came(&mut self, nic: usize, buffer: u16) {
        if let Some(rooms) = self.sendrecv.as_mut().and_then(|sendrecv| sendrecv.room(nic)) {
            rooms.ended(buffer);
        }
    }
}
