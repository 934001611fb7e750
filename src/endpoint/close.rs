//! Closes connections and the endpoint: messages that have begun are finished, then both ends send CLOSE, then END, all within a bound.
//!
//! A slot is freed only when nothing of its connection can arrive any more; until then its memory and its number are not reused.

use std::time::{Duration, Instant};

use fabric::{Posts, Traffic};
use proto::polled::PolledTime;
use proto::{ChannelId, Flow, Slot};

use super::Endpoint;
use super::bound::{CANCEL_WAIT, DRAIN_POLLS, IMPATIENT_WAIT};
use super::incidents::Incidents;
use super::nics::Port;
use super::setup::PendingConnect;
use super::side::{Side, side_of};
use super::transfer::return_entries;
use crate::error::{Noun, Result};
use crate::fault;
use crate::object_id::{ObjectId, ObjectKind};

impl Endpoint {
    pub(crate) fn close_send(&mut self, comm: ObjectId) -> Result<()> {
        self.close_comm(comm, Side::Send, Noun::SendComm)
    }

    pub(crate) fn close_receive(&mut self, comm: ObjectId) -> Result<()> {
        self.close_comm(comm, Side::Receive, Noun::ReceiveComm)
    }

    fn close_comm(&mut self, id: ObjectId, side: Side, noun: Noun) -> Result<()> {
        let (slot, comm) = self.comms.open(id, side, noun)?;
        comm.is_closing = true;
        self.outstanding -= comm.awaited(comm.requests());
        self.closing.push(slot);
        self.ownership.remove(id);
        if self.broken {
            return Ok(());
        }
        if side == Side::Receive {
            self.close_flushes(id);
        }
        let now = self.now();
        self.core.with(&mut self.executor, slot, now, |flow, account| flow.close(account));
        self.budget.forget(slot);
        // Send CLOSE now: NCCL may not call again, and the peer may wait for it. Some providers send only when they are polled again.
        self.progress();
        self.progress();
        Ok(())
    }

    /// Frees the slots of connections that have ended.
    #[cold]
    pub(super) fn release_closed(&mut self) {
        let over = |slot: &mut Slot| self.core.connection(*slot).is_none_or(Flow::is_over);
        let ended: Vec<_> = self.closing.extract_if(.., over).collect();
        for slot in ended {
            self.comms.remove(slot);
            let Some(flow) = self.core.disconnect(slot) else { continue };
            if let Some(flow) = flow.receiver() {
                self.incidents.add_receives(&flow.dropped());
                return_entries(&mut self.budget, flow.entries_held());
            }
        }
    }

    /// The ids of comms that NCCL has open.
    pub(super) fn open_comms(&self) -> impl Iterator<Item = ObjectId> {
        let all = self.comms.all().into_iter();
        all.filter_map(|(slot, generation)| {
            let comm = self.comms.at(slot).filter(|comm| !comm.is_closing)?;
            let kind = match comm.side {
                Side::Send => ObjectKind::Sender,
                Side::Receive => ObjectKind::Receiver,
            };
            Some(ObjectId::new(kind, self.number, generation, slot.number(), 0))
        })
    }

    /// Whether NCCL has closed everything that it opened here. NCCL has no call that closes a connect: connects do not count where the
    /// whole endpoint has failed, or where the peer's listener is gone, since NCCL need not call them again.
    pub(crate) fn is_unused(&self) -> bool {
        let has_failed = self.broken || self.failure.is_some();
        self.has_only_connects()
            && (has_failed || self.connects.iter().all(|pending| self.is_lost(pending)))
    }

    /// Whether NCCL has only connects open here, and no deregMr waits.
    pub(super) fn has_only_connects(&self) -> bool {
        self.listeners.is_empty() && !self.is_waited_on() && self.has_no_comms()
    }

    /// Whether NCCL has no comm open here.
    pub(super) fn has_no_comms(&self) -> bool {
        self.comms.iter().all(|(_, comm)| comm.is_closing)
    }

    fn is_lost(&self, pending: &PendingConnect) -> bool {
        let flow = pending.slot().and_then(|slot| self.core.connection(slot));
        flow.is_some_and(Flow::is_lost)
    }

    /// Ends all channels, within a bound; [`Endpoint::release`] then closes. After a panic nothing is ended.
    pub(crate) fn drain(&mut self) -> Report {
        fault::point("finalize locked");
        if self.broken {
            return self.report();
        }
        self.leave_probe();
        self.close_all();
        self.progress();
        let start = self.core.polled_time();
        let bound = match self.is_impatient() {
            true => IMPATIENT_WAIT,
            false => self.settings.close_timeout,
        };
        while self.polled_since(start) < bound && !self.has_ended() {
            self.progress();
            std::thread::yield_now();
        }
        self.cancel_receives();
        // The last letters complete when the peer polls, and the peer may be closing, too.
        let mut polls = 0;
        while (polls < DRAIN_POLLS || self.polled_since(start) < bound)
            && self.executor.nics.iter().any(|port| port.nic.in_flight() > 0)
        {
            self.progress();
            polls += 1;
        }
        let in_flight: usize = self.executor.nics.iter().map(Port::in_flight).sum();
        if in_flight > 0 {
            log::warn!(
                "device {} closes with {in_flight} operations in flight after {} ms: their peers do not answer",
                self.label(),
                self.polled_since(start).as_millis()
            );
        }
        self.report()
    }

    /// The time since `start` in which the endpoint was polled. Time in which the process was stopped does not count.
    fn polled_since(&self, start: PolledTime) -> Duration {
        self.core.polled_time().since(start)
    }

    /// Whether no channel need be waited for, and nothing is in flight.
    fn has_ended(&self) -> bool {
        let mut channels = (0..).map(ChannelId).zip(self.executor.channel_ends());
        channels.all(|(channel, _)| self.core.may_be_left(channel))
            && self.executor.nics.iter().all(|port| port.in_flight() == 0)
    }

    /// Whether a wait for a peer has timed out lately.
    fn is_impatient(&mut self) -> bool {
        self.patience.is_shortened(Instant::now())
    }

    /// Whether other endpoints of this process may have its memory mapped: then it is released with the last of them.
    pub(crate) fn is_mapped_by_peers(&self) -> bool {
        self.device.is_mapped_by_peers
    }

    /// Closes what NCCL left open (an abort, or a finalize before the closes), then ends every channel.
    fn close_all(&mut self) {
        for (slot, generation) in self.listeners.keys() {
            let id = ObjectId::new(ObjectKind::Listener, self.number, generation, slot, 0);
            let _closed = self.close_listen(id);
        }
        for at in self.connects.keys() {
            self.abandon_connect(at);
        }
        let open: Vec<_> = self.open_comms().collect();
        for id in open {
            let side = side_of(id);
            let _closed = self.close_comm(id, side, Noun::Comm);
        }
        for (channel, _) in (0..).map(ChannelId).zip(self.executor.channel_ends()) {
            self.core.end(channel);
        }
    }

    fn cancel_receives(&mut self) {
        self.executor.cancel_receives();
        // A region that is bound to its endpoint (FI_MR_ENDPOINT) cannot be closed while a receive is posted in it: wait longer there.
        let bound = self.executor.nics.iter().any(Port::binds_regions);
        let most = match bound {
            true if self.is_impatient() => IMPATIENT_WAIT,
            true => self.settings.close_timeout.max(IMPATIENT_WAIT),
            false => CANCEL_WAIT,
        };
        let start = self.core.polled_time();
        while self.executor.nics.iter().any(|port| port.nic.receives_in_flight() > 0)
            && self.polled_since(start) < most
        {
            self.progress();
        }
    }

    /// What it has transferred so far.
    pub(crate) fn report(&mut self) -> Report {
        self.count_resent();
        let rail = |port: &Port| {
            let Traffic { bytes, writes, refused } = port.nic.traffic();
            let (data, control) = (port.nic.data_posts(), port.nic.control_posts());
            RailReport { label: port.label.clone(), bytes, writes, refused, data, control }
        };
        let rails = self.executor.nics.iter().map(rail).collect();
        Report { rails, incidents: self.incidents() }
    }

    /// The incidents so far, including those of connections that have ended.
    pub(crate) fn incidents(&self) -> Incidents {
        let mut incidents = self.incidents;
        incidents.stale_frames += self.core.stale();
        incidents
    }
}

/// What an endpoint has transferred and what has happened on it, for the log at its end.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) rails: Vec<RailReport>,
    pub(crate) incidents: Incidents,
}

/// What one rail has transferred, counted from completions, and what was posted on it.
#[derive(Clone, Debug)]
pub(crate) struct RailReport {
    pub(crate) label: String,
    pub(crate) bytes: u64,
    pub(crate) writes: u64,
    /// Posts that libfabric refused for the moment.
    pub(crate) refused: u64,
    /// Posts that libfabric accepted: of data, and of control where the NIC has a control rail.
    pub(crate) data: Posts,
    pub(crate) control: Posts,
}
