//! Turns the faults of flows and channels into the plugin's causes, each logged once.

use fabric::{CompletionError, FabricError};
use proto::{
    Cause as ChannelCause, ChannelId, Cut, Event, Fault, Flow, Outcome, ProgressLoop, ReceiveFlow,
    Slot,
};

use super::Endpoint;
use super::bound::milliseconds;
use super::peers::Peer;
use super::side::Side;
use super::transfer::return_entries;
use crate::error::{Cause, Error, Operation};
use crate::label::Label;

impl Endpoint {
    /// The error of a call about a comm whose flow has failed, logged at its first report. Polls then, since NCCL may stop polling after an
    /// error, and frames may be due.
    #[cold]
    pub(super) fn failed(&mut self, slot: Slot, fault: Fault) -> Error {
        let channel = self.executor.channel_of(slot);
        if fault == Fault::Ended
            && self.executor.peer(channel).is_none_or(|peer| peer.failure.is_none())
        {
            // The channel is failing, and the next poll finds the cause.
            self.progress();
        }
        let cause = self.cause_of(channel, fault);
        self.learn_rank(channel);
        let peer = self.executor.label(channel);
        let Some(comm) = self.comms.at_mut(slot) else { return cause.into() };
        self.outstanding -= comm.abandon();
        let error = comm.failure.unwrap_or_else(|| match comm.side {
            Side::Send => cause.sending(peer),
            Side::Receive => cause.receiving(peer),
        });
        comm.failure = Some(error);
        let logged = std::mem::replace(&mut comm.is_logged, true) || error.logged;
        if !logged {
            self.progress();
        }
        Error { logged, ..error }
    }

    /// A message was truncated to its receive, as NCCL's API up to v8 allows. Logged once per connection.
    #[cold]
    pub(super) fn warn_of_cut(&mut self, slot: Slot, cut: Cut) {
        let channel = self.executor.channel_of(slot);
        let Some(comm) = self.comms.at_mut(slot) else { return };
        if std::mem::replace(&mut comm.is_cut_logged, true) {
            return;
        }
        let side = match comm.side {
            Side::Send => "sending to",
            Side::Receive => "receiving from",
        };
        self.learn_rank(channel);
        let (peer, Cut { sent, posted }) = (self.executor.label(channel), cut);
        log::warn!(
            "{side} {peer}: a message of {sent} bytes was truncated to its receive of {posted}; do all ranks call with the same sizes?"
        );
    }

    fn cause_of(&self, channel: ChannelId, fault: Fault) -> Cause {
        let peer = self.executor.peer(channel);
        let known = match fault {
            Fault::Ended => peer.and_then(|peer| peer.failure).map(|failure| failure.cause),
            Fault::Transport { .. } => peer.and_then(|peer| peer.first_failure.cause),
            _ => None,
        };
        known.unwrap_or_else(|| fault.into())
    }

    /// Learns the ranks of peers that messages are awaited from, for their names in the log: NCCL passes the sender's rank as the tag of each
    /// receive.
    #[cold]
    pub(super) fn learn_ranks(&mut self) {
        let Self { core, executor, .. } = self;
        executor.channel_ends_mut().iter_mut().for_each(|peer| learn_rank_of(peer, core));
    }

    /// Learns the rank of one channel's peer.
    #[cold]
    pub(super) fn learn_rank(&mut self, channel: ChannelId) {
        if let Some(peer) = self.executor.peer_mut(channel) {
            learn_rank_of(peer, &self.core);
        }
    }

    /// A channel has ended or failed. Its flows have failed with it, and report it to NCCL.
    #[cold]
    pub(super) fn channel_ended(&mut self, channel: ChannelId, outcome: Outcome) {
        let bound_ms = milliseconds(self.settings.peer_timeout);
        let refused_ms = milliseconds(self.executor.refusals_bound());
        let Outcome::Failed(cause) = outcome else { return };
        self.learn_rank(channel);
        let Some(peer) = self.executor.peer_mut(channel) else { return };
        let of_fabric = peer.first_failure.cause;
        let cause = match cause {
            ChannelCause::Silent => Cause::Silent { bound_ms },
            ChannelCause::Refused => Cause::RefusesPosts { bound_ms: refused_ms },
            ChannelCause::NoRail => of_fabric.unwrap_or(Cause::Ended),
            ChannelCause::DataFailed { .. } => of_fabric.unwrap_or(Cause::Channel(cause)),
            cause => Cause::Channel(cause),
        };
        let error = *peer.failure.get_or_insert_with(|| cause.into());
        log::debug!("the channel to {} has failed: {error}", peer.label());
        self.return_channel_entries(channel);
    }

    /// A completion or event queue has an error that names no operation, so no request fails. The endpoint's first such error is logged: it
    /// may be the only trace of why a message waits.
    #[cold]
    pub(super) fn nameless_error(
        &mut self,
        nic: usize,
        of: Option<Operation>,
        error: &CompletionError,
    ) {
        self.incidents.nameless_errors += 1;
        if self.incidents.nameless_errors > 1 {
            return;
        }
        let label = &self.executor.nics[nic].label;
        let rail = match of {
            Some(Operation::Control) => "control",
            Some(Operation::Data) => "data",
            None => {
                log::warn!(
                    "an error of the endpoints on {label} names no operation: {error}; further ones are counted (nameless_errors)"
                );
                return;
            }
        };
        log::warn!(
            "an error on the {rail} rail {label} names no operation: {error}; further ones are counted (nameless_errors)"
        );
    }

    /// No receive can be posted on the control rail of a NIC: all channels lose that rail.
    #[cold]
    pub(super) fn receives_nothing(&mut self, nic: usize, fault: FabricError) {
        let rail = Label::of(&self.executor.nics[nic].label);
        let mut lost = Vec::new();
        for peer in self.executor.channel_ends_mut() {
            let Some(number) = peer.control_rail(nic) else { continue };
            let id = peer.channel;
            let Some(channel) = self.core.channel(id).filter(|channel| channel.is_alive()) else {
                continue;
            };
            if !channel.is_lost(number) {
                peer.failed(Cause::NoReceives { rail, fault });
                let numbers = channel.rail_numbers();
                lost.push(Event::LetterFailed { channel: id, rail: number, numbers });
            }
        }
        lost.into_iter().for_each(|event| self.executor.queue(event));
    }

    /// Returns the completion queue entries of a failed channel's receives to the budget: other receives need not wait until NCCL closes.
    #[cold]
    fn return_channel_entries(&mut self, channel: ChannelId) {
        let Self { core, budget, .. } = self;
        for slot in core.slots_of(channel).to_vec() {
            if let Some(flow) = core.connection_mut(slot).and_then(Flow::receiver_mut) {
                return_entries(budget, flow.release_entries());
            }
        }
    }
}

fn learn_rank_of(peer: &mut Peer, core: &ProgressLoop<Flow>) {
    for slot in core.slots_of(peer.channel) {
        let receiver = core.connection(*slot).and_then(Flow::receiver);
        if let Some(rank) = receiver.and_then(ReceiveFlow::awaited_tag) {
            peer.name.set_rank(rank);
        }
    }
}

/// A sticky failure, marked as logged after the first report.
pub(super) fn repeated(failure: &mut Error) -> Error {
    let error = *failure;
    failure.logged = true;
    error
}
