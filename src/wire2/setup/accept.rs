//! Listen and accept: OPENs that a listener's secret proves are queued, and answered by OPENED.

use proto::codec::Bounded;
use proto::wire2::frame::{Open, Refusal, Refused};
use proto::wire2::setup::{
    Asked, Features, Handle as WireHandle, Listener, Seat, Secret, Versions, opened, refuse,
};
use proto::wire2::{ChannelId, ListenerId, Moment, PacketNumber, ReceiveFlow, Slot};

use super::super::Endpoint;
use super::super::comms::{Comm, Side, low16};
use super::super::prove::{Mac, of_job, random_bytes};
use super::FRONT_DOOR;
use crate::error::{Bug, Cause, Error, Noun, Result, Table};
use crate::handle::{Handle, HandleKind};
use crate::types::HANDLE_BYTES;

/// What `listen` opened.
#[derive(Debug)]
pub(in crate::endpoint) struct Listening {
    listener: Listener,
    /// Receives of its connections come in groups.
    groups: bool,
    accepting: Option<Accepting>,
    /// A call about it has panicked.
    pub(in crate::endpoint) broken: bool,
    /// Since when accept finds nothing, and whether that was said.
    waiting_since: Option<Moment>,
    warned: bool,
}

/// A connection that is answered, until OPENED has left.
#[derive(Clone, Copy, Debug)]
struct Accepting {
    slot: Slot,
    channel: ChannelId,
    /// All packets before this one must have been written.
    behind: Option<PacketNumber>,
}

impl Endpoint {
    /// Opens a listener, and writes the handle that peers connect with. `max_group`: the largest group of receives of the caller's version.
    pub(crate) fn listen(
        &mut self,
        handle: &mut [u8; HANDLE_BYTES],
        max_group: usize,
    ) -> Result<Handle> {
        self.check_alive()?;
        let door = self.hands.nics.get(FRONT_DOOR).filter(|port| port.nic.has_control());
        let control = door.and_then(|port| Bounded::new(port.nic.control_name()));
        let control = control.ok_or(Cause::NoFrontDoorName)?;
        let shown = random_bytes().map(Secret).map_err(|_| Cause::NoRandom)?;
        let secret = of_job(shown, &self.settings.job);
        let mut generation = 0;
        let slot = self.listeners.insert_with(|slot, current| {
            generation = current;
            Listening {
                listener: Listener::new(id_of(slot, current), secret),
                groups: max_group > 1,
                accepting: None,
                broken: false,
                waiting_since: None,
                warned: false,
            }
        });
        let table = Table::Listeners { device: self.label() };
        let slot = slot.ok_or(Cause::Full { table, count: u16::MAX.into() })?;
        let wire = WireHandle {
            versions: Versions::OURS,
            endpoint: self.hands.id,
            listener: id_of(slot, generation),
            secret: shown,
            control,
            address_format: self.device.address_format,
        };
        *handle = wire.encode();
        let listener = Handle::new(HandleKind::Listener, self.number, generation, slot, 0);
        self.tenants.made(listener);
        Ok(listener)
    }

    /// The secret of a listener, also of one that was closed not long ago.
    pub(super) fn listener_secret(&self, id: ListenerId) -> Option<Secret> {
        let (slot, generation) = parts_of(id);
        let open =
            self.listeners.get(slot, generation).map(|listening| listening.listener.secret());
        open.or_else(|| self.closed_listeners.secret(id)).copied()
    }

    /// A peer asks one of our listeners for a connection.
    pub(in crate::endpoint) fn asked(&mut self, channel: ChannelId, open: Open, now: Moment) {
        let nonces = self.hands.peer_of(channel).their_nonces();
        let (slot, generation) = parts_of(open.listener);
        let asked = Asked { channel: channel.0, open };
        let heard = match self.listeners.get_mut(slot, generation) {
            Some(listening) => listening.listener.heard(asked, nonces, &Mac),
            None => Err(self.closed_listeners.refusal(&open, nonces, &Mac)),
        };
        if let Err(why) = heard {
            self.counters.late_messages += 1;
            log::debug!("device {}: a connection is refused: {why:?}", self.label());
            self.say_refused(channel, refuse(&open, why), now);
        }
    }

    /// REFUSED takes a slot until it has left. Without one, the peer asks no more, and waits.
    fn say_refused(&mut self, channel: ChannelId, refused: Refused, now: Moment) {
        let Some(name) = self.core.vacant() else { return };
        self.seat(name.slot, channel, name.generation);
        if self.core.connect(name, channel, Seat::Refusing(Some(refused)), now) {
            let mut comm = Comm::new(Side::Receive, channel);
            comm.is_closing = true;
            self.comms.put(name.slot, comm);
            self.closing += 1;
        }
    }

    /// `None`: nobody has connected, or the answer has not left; a poll was made.
    pub(crate) fn accept(&mut self, handle: Handle) -> Result<Option<Handle>> {
        self.check_alive()?;
        let now = self.now();
        self.progress_at(now);
        let settled = self.settled || self.is_settled()?;
        let (at, generation) = (handle.slot(), handle.generation());
        let ours = handle.is(HandleKind::Listener);
        let listening = self.listeners.get_mut(at, generation).filter(|_| ours);
        let listening = listening.ok_or(Cause::Stale(Noun::ListenComm))?;
        if listening.broken {
            return Err(super::super::broken::PANICKED);
        }
        if !settled {
            return Ok(None);
        }
        if listening.accepting.is_none() {
            match listening.listener.accept() {
                Some(asked) => self.begin_accept((at, generation), &asked, now)?,
                None => {
                    self.watch_accept((at, generation), now)?;
                    return Ok(None);
                }
            }
        }
        self.step_accept((at, generation), now)
    }

    fn begin_accept(&mut self, at: (u16, u16), asked: &Asked, now: Moment) -> Result<()> {
        let channel = ChannelId(asked.channel);
        let Some(met) = self.hands.met(channel) else { return Ok(()) };
        let settling = self.settling(met.agreed, met.data.len());
        let Some(name) = self.core.vacant() else {
            let count = Slot::COUNT as u32;
            return Err(Cause::Full { table: Table::Connections, count }.into());
        };
        let groups = self.listeners.get(at.0, at.1).is_some_and(|listening| listening.groups);
        let unadvertised = self.inline_unadvertised();
        let answer = opened(&asked.open, name, self.features(groups), unadvertised);
        let agreed = Features::from_bits(answer.features);
        let terms = settling.settle(name, asked.open.from, agreed, unadvertised);
        let Some(terms) = terms else {
            self.say_refused(channel, refuse(&asked.open, Refusal::Feature), now);
            return Err(Cause::CannotTell.settling());
        };
        let mut flow = ReceiveFlow::new(terms);
        flow.set_busy_bytes(self.busy_bytes());
        self.seat(name.slot, channel, name.generation);
        if self.core.connect(name, channel, Seat::accepted(flow, answer), now)
            && let Some(listening) = self.listeners.get_mut(at.0, at.1)
        {
            listening.accepting = Some(Accepting { slot: name.slot, channel, behind: None });
        }
        Ok(())
    }

    /// What the rails carry in 20 us.
    fn busy_bytes(&self) -> u64 {
        u64::from(self.device.speed_mbps) * 20 / 8
    }

    fn step_accept(&mut self, at: (u16, u16), now: Moment) -> Result<Option<Handle>> {
        let Some(listening) = self.listeners.get(at.0, at.1) else { return Ok(None) };
        let Some(Accepting { slot, channel, behind }) = listening.accepting else {
            return Ok(None);
        };
        self.core.send_urgent(&mut self.hands, slot, now);
        let seat = self.core.connection(slot);
        if seat.is_none_or(|seat| seat.flow().is_none_or(|flow| flow.fault().is_some())) {
            // The peer is gone before it knew of the connection: the listener goes on.
            self.discard(slot, now);
            if let Some(listening) = self.listeners.get_mut(at.0, at.1) {
                listening.accepting = None;
            }
            return Ok(None);
        }
        if seat.is_some_and(Seat::owes_opened) {
            return Ok(None);
        }
        let Some(channel_state) = self.core.channel(channel) else { return Ok(None) };
        let shadow = channel_state.shadow();
        let behind = behind.unwrap_or_else(|| shadow.next());
        let missing = behind.distance(shadow.completed()).wrapping_sub(1).cast_signed();
        let Some(listening) = self.listeners.get_mut(at.0, at.1) else { return Ok(None) };
        if missing > 0 {
            listening.accepting = Some(Accepting { slot, channel, behind: Some(behind) });
            return Ok(None);
        }
        listening.accepting = None;
        (listening.waiting_since, listening.warned) = (None, false);
        let generation = self.comms.put(slot, Comm::new(Side::Receive, channel));
        let slot = low16(slot.index() as u32);
        Ok(Some(Handle::new(HandleKind::Receiver, self.number, generation, slot, 0)))
    }

    /// A connection that NCCL never had is closed.
    fn discard(&mut self, slot: Slot, now: Moment) {
        let (channel, _) = self.hands.seats[slot.index()];
        let mut comm = Comm::new(Side::Receive, channel);
        comm.is_closing = true;
        self.comms.put(slot, comm);
        self.closing += 1;
        self.core.with(&mut self.hands, slot, now, |seat, account| {
            if let Some(flow) = seat.flow_mut() {
                flow.close(account);
            }
        });
    }

    pub(crate) fn close_listen(&mut self, handle: Handle) -> Result<()> {
        self.tenants.closed(handle);
        let taken = self.listeners.remove(handle.slot(), handle.generation());
        let listening = taken.ok_or(Cause::Stale(Noun::ListenComm))?;
        if self.broken {
            return Ok(());
        }
        let now = self.now();
        if let Some(accepting) = listening.accepting {
            self.discard(accepting.slot, now);
        }
        let waiting: Vec<_> = listening.listener.close(&mut self.closed_listeners).collect();
        for (channel, refused) in waiting {
            self.say_refused(ChannelId(channel), refused, now);
        }
        self.progress();
        Ok(())
    }

    /// A channel is gone: so are its OPENs.
    pub(in crate::endpoint) fn forget_opens(&mut self, channel: ChannelId) {
        for (_, _, listening) in self.listeners.iter_mut() {
            listening.listener.forget_channel(channel.0);
        }
    }

    /// Says once that accept is waiting, and ends the wait.
    fn watch_accept(&mut self, at: (u16, u16), now: Moment) -> Result<()> {
        let (warn, bound, device) =
            (self.settings.connect_warn, self.settings.connect_timeout, self.label());
        let Some(listening) = self.listeners.get_mut(at.0, at.1) else { return Ok(()) };
        let waited = now.since(*listening.waiting_since.get_or_insert(now));
        if waited > bound {
            return Err(Cause::AcceptTimeout { device, seconds: waited.as_secs() }.into());
        }
        if waited > warn && !listening.warned {
            listening.warned = true;
            log::info!(
                "accept on device {device} has waited {} s for a peer to connect",
                waited.as_secs()
            );
        }
        Ok(())
    }

    /// Why a channel cannot go on, for a call of set-up.
    pub(super) fn channel_failure(&mut self, channel: ChannelId) -> Error {
        match &mut self.hands.peer_of_mut(channel).failure {
            Some(failure) => super::super::failures::repeated(failure),
            None => Cause::Bug(Bug::SlotTaken).into(),
        }
    }
}

const fn id_of(slot: u16, generation: u16) -> ListenerId {
    ListenerId((generation as u32) << 16 | slot as u32)
}

#[expect(clippy::cast_possible_truncation, reason = "the fields that `id_of` made")]
const fn parts_of(id: ListenerId) -> (u16, u16) {
    (id.0 as u16, (id.0 >> 16) as u16)
}
