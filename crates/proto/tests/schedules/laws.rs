//! When a schedule of ranks is at rest, and what must hold then.

use std::time::Duration;

use proto::bound::INBOXES_IN_VAIN_MAX;
use proto::{Cause, ChannelId, Outcome};

use crate::conversation::{Conversation, Receiving, Sending, Side};
use crate::data::{Flows, Link};
use crate::faults::Fault;
use crate::ranks::World;
use crate::wire::{Use, Wire};

impl World {
    pub(crate) fn at_rest(&self) -> bool {
        (0..self.ranks.len()).all(|node| self.silent == Some(node) || self.rests(node))
            && (self.silent.is_some() || self.wire.is_quiet())
    }

    fn rests(&self, node: usize) -> bool {
        let stopped = !self.ranks[node].calling;
        let ended = |one: &Conversation, side: usize| {
            let open = matches!(one.sides[side], Side::Open(_)) && one.requests_ended(side);
            stopped || self.is_settled(one, side) || open && !self.wire.setup.closes
        };
        let connections = self
            .conversations
            .iter()
            .all(|one| (0..2).filter(|side| one.nodes[*side] == node).all(|side| ended(one, side)));
        let channels = (0..self.wire.data.channels[node].len() as u32).map(ChannelId);
        connections && channels.into_iter().all(|id| self.channel_rests(node, id))
    }

    fn channel_rests(&self, node: usize, id: ChannelId) -> bool {
        if self.wire.nodes[node].outcomes[id.0 as usize].is_some() {
            return true;
        }
        let endpoint = &self.ranks[node].endpoint;
        let channel = endpoint.channel(id).unwrap();
        // A closing peer drops HELLOs of new peers.
        let far = self.wire.data.channels[node][id.0 as usize].far;
        let alone = self.silent.is_some() || self.wire.died || self.ranks[far].ending;
        if channel.shadow().target().is_none() && alone {
            return true;
        }
        // A rail that cannot be closed may still fail it. Other channels may wait for ever.
        let others_wait =
            self.silent.is_some() || self.wire.died || self.ranks.iter().any(|rank| rank.ending);
        let may_fail = !self.wire.data.settings[node].closes && !others_wait;
        let pending = channel.has_pending(&endpoint.account(id).unwrap().counts)
            || may_fail && endpoint.has_pending();
        !pending && !self.ranks[node].ending
    }

    pub(crate) fn final_laws(&mut self) -> Result<(), String> {
        for node in 0..self.ranks.len() {
            for id in (0..self.wire.data.channels[node].len() as u32).map(ChannelId) {
                self.channel_laws(node, id)?;
                if self.has_failed((node, id)) && self.fails_for_another((node, id)) {
                    self.wire.faults.fire(Fault::FailedForAnother);
                }
            }
        }
        for number in 0..self.conversations.len() {
            self.conversation_laws(number)?;
        }
        for node in 0..self.ranks.len() {
            self.memory_laws(node)?;
            self.node_laws(node)?;
        }
        self.check()
    }

    /// Checks that nothing is kept for writes that are over.
    fn memory_laws(&self, node: usize) -> Result<(), String> {
        let Wire { data, nodes, .. } = &self.wire;
        if self.silent.is_some() || !nodes[node].events.is_empty() {
            return Ok(());
        }
        let channels = (0..data.channels[node].len() as u32).map(ChannelId);
        let (mut inboxes, mut shadows) = (0, 0);
        for id in channels {
            let channel = self.ranks[node].endpoint.channel(id).unwrap();
            // That of a channel that is over is retired.
            inboxes += usize::from(channel.inbox().is_some() && !channel.is_over());
            shadows += usize::from(channel.shadow().target().is_some());
            let rails = &self.ranks[node].endpoint.account(id).unwrap().rails;
            let flying = (0..16).map(|rail| rails.flying_on(rail)).sum::<u32>();
            if flying != data.flying_of((node, id)) {
                return Err(format!("{flying} writes of {id:?} are awaited that are over"));
            }
        }
        let live = nodes[node].memories.iter().filter(|memory| memory.use_ == Use::Live);
        let (of_shadows, of_inboxes): (Vec<_>, Vec<_>) =
            live.partition(|memory| memory.rail == u8::MAX);
        if (of_inboxes.len(), of_shadows.len()) != (inboxes, shadows) {
            return Err("memory of old inboxes or shadows is still in use".to_owned());
        }
        Ok(())
    }

    fn outcome(&self, (node, id): (usize, ChannelId)) -> Option<Outcome> {
        self.wire.nodes[node].outcomes[id.0 as usize]
    }

    fn has_failed(&self, end: (usize, ChannelId)) -> bool {
        matches!(self.outcome(end), Some(Outcome::Failed(_)))
    }

    fn channel_laws(&self, node: usize, id: ChannelId) -> Result<(), String> {
        let Some(far) = self.wire.data.far(node, id) else { return Ok(()) };
        let silent = self.silent.is_some_and(|silent| silent == node || silent == far.0);
        let dead = self.wire.died;
        let ends = [(node, id), far];
        let lost = &self.wire.data.lost;
        let parts = lost.iter().any(|(node, id, _)| ends.contains(&(*node, *id)));
        let stood = ends.iter().any(|end| self.wire.control.stood_on_all(*end));
        let control = dead || stood || self.wire.packets_lost >= usize::from(INBOXES_IN_VAIN_MAX);
        // Letters are repeated once a second, so this long none may have come that would show a sign of life.
        // Every other one goes by the rail that is mute, and is lost.
        let repeats = if self.wire.was_mute { 8 } else { 1 };
        let slow = repeats * self.slowest_mail([node, far.0]) >= self.wire.setup.peer_timeout;
        if let Some(Outcome::Failed(cause)) = self.outcome((node, id)) {
            let allowed = match cause {
                // A STATUS that was so long under way names parts as missing that have come since.
                Cause::DataLost { .. } if slow => true,
                Cause::DataLost { .. }
                | Cause::RailDown { .. }
                | Cause::DataFailed { .. }
                | Cause::DataHangs { .. }
                | Cause::DataRefused { .. }
                | Cause::RailClosing { .. } => {
                    parts || self.lacks_rails((node, id)) || self.fails_for_another((node, id))
                }
                Cause::NoRail | Cause::NoInbox => control,
                Cause::Silent | Cause::Refused | Cause::Peer => {
                    let rails = self.lacks_rails((node, id)) || self.fails_for_another((node, id));
                    silent || control || parts || rails || slow
                }
                _ => false,
            };
            if !allowed {
                return Err(format!("a channel failed without a reason: {cause:?}"));
            }
            // A rail that only closing could fence, but that another channel needs, may be detected after END.
            let fails_over = self.wire.data.settings[node].failover;
            let unfenced = match cause {
                Cause::DataLost { .. } => fails_over,
                // That its peer survives, and reports before END. Where both fail over, this end has lost its other rail,
                // and has nothing to do any more.
                Cause::RailDown { .. } => {
                    let channel = self.ranks[node].endpoint.channel(id).unwrap();
                    !fails_over || channel.ending().is_said()
                }
                _ => false,
            };
            if self.outcome(far) == Some(Outcome::Over) && !dead && !unfenced && !slow {
                return Err("one end of a channel failed, the other one ended well".to_owned());
            }
        }
        // A rail that is lost counts as noticed: its peer may still drain it for long.
        let unnoticed = |part: &&(usize, ChannelId, u8)| !self.wire.data.losses.contains(part);
        let ours = lost.iter().filter(unnoticed).any(|(at, of, _)| (*at, *of) == (node, id));
        // A write that failed but arrived may compensate in the counts for one that was lost.
        let hidden = !self.wire.data.failed.is_empty();
        // The other end may fail first.
        let noticed = self.outcome((node, id)).is_some() || self.has_failed(far);
        if ours && !silent && !hidden && !noticed {
            return Err("a lost part went unnoticed".to_owned());
        }
        if self.has_failed((node, id)) || self.has_failed(far) || silent || parts {
            return Ok(());
        }
        let counts = [(node, id), far]
            .map(|(node, id)| self.ranks[node].endpoint.account(id).unwrap().counts);
        // A write that failed may have arrived.
        if counts[0].completed != counts[1].seen && self.wire.data.disturbed.is_empty() {
            return Err("the counts of a data rail are unequal at the end".to_owned());
        }
        Ok(())
    }

    /// Whether a channel may fail for lack of data rails: a fault between its two nodes has hit each, or one that has no substitute,
    /// or cannot be closed, also where it is the last one of another channel. A part that is overdue is a fault.
    fn lacks_rails(&self, end: (usize, ChannelId)) -> bool {
        let far = self.wire.data.far(end.0, end.1);
        let failed_on_last = [Some(end), far].into_iter().flatten().any(|end| self.lost_last(end));
        failed_on_last || self.lacks(end, |link| self.has_fault(link))
    }

    /// Whether a fault hit the last open rail of an end, while its other rails were lost, with or without a fault, and not back yet.
    fn lost_last(&self, (node, id): (usize, ChannelId)) -> bool {
        let data = &self.wire.data;
        let Some(Outcome::Failed(cause)) = self.outcome((node, id)) else { return false };
        let (Cause::DataFailed { rail: last }
        | Cause::DataLost { rail: last }
        | Cause::DataHangs { rail: last }
        | Cause::DataRefused { rail: last }) = cause
        else {
            return false;
        };
        let rails = 0..data.data_links(node, id).len() as u8;
        let mut others = rails.filter(|rail| *rail != last);
        let pair = [node, data.channels[node][id.0 as usize].far];
        let link = Link::between(pair, data.data_link(node, id, last));
        self.has_fault(link) && others.all(|rail| data.missing.contains(&(node, id, rail)))
    }

    /// Whether a channel may fail although no fault has hit it. One end has closed a rail for another channel, with what was still in
    /// flight after the drain; and that can be neither sent again nor fenced. Or it was made while the only rail was closed so. Or
    /// each rail was, and none comes back.
    fn fails_for_another(&self, end: (usize, ChannelId)) -> bool {
        let far = self.wire.data.far(end.0, end.1);
        let closed = [Some(end), far].into_iter().flatten().any(|end| {
            matches!(self.outcome(end), Some(Outcome::Failed(Cause::RailClosing { .. })))
        });
        let data = &self.wire.data;
        let disturbed = |link: Link| data.disturbed.contains(&link);
        let joined = &data.channels[end.0][end.1.0 as usize];
        let links = data.data_links(end.0, end.1);
        let all = links.iter().all(|link| disturbed(Link::between([end.0, joined.far], *link)));
        let lacks = closed || all && !joined.tries || self.lacks(end, disturbed);
        lacks && !self.lacks_rails(end)
    }

    fn has_fault(&self, link: Link) -> bool {
        let Wire { data, setup, now, .. } = &self.wire;
        // The peer's answer shows what is missing.
        let answer = self.slowest_mail(link.nodes());
        let bound = setup.last_rail_bound().saturating_sub(answer);
        data.faulty.contains(&link) || data.was_overdue(link, *now, bound)
    }

    /// Whether one of the rails is hit that has no substitute, or cannot be closed.
    fn lacks(&self, (node, id): (usize, ChannelId), is_hit: impl Fn(Link) -> bool) -> bool {
        let data = &self.wire.data;
        let pair = [node, data.channels[node][id.0 as usize].far];
        let last = |node: usize, link: u8| {
            data.channels[node].iter().zip((0..).map(ChannelId)).any(|(joined, id)| {
                let pair = [node, joined.far];
                let links = data.data_links(node, id);
                let mut others = links.iter().filter(|other| **other != link);
                let none = others.all(|other| {
                    let other = Link::between(pair, *other);
                    // Without immediates one that was left does not come back.
                    self.has_fault(other) || !joined.tries && data.disturbed.contains(&other)
                });
                links.contains(&link) && (none || !data.fails_over(pair))
            })
        };
        let stays = |node: usize, link: u8| !data.settings[node].closes || last(node, link);
        data.data_links(node, id).into_iter().any(|link| {
            let all = !data.fails_over(pair) || pair.iter().any(|node| stays(*node, link));
            all && is_hit(Link::between(pair, link))
        })
    }

    /// How long a letter between two nodes was under way.
    fn slowest_mail(&self, [one, other]: [usize; 2]) -> Duration {
        let of = |way| self.wire.slowest_mail.get(&way).copied().unwrap_or(0);
        Duration::from_nanos(of((one, other)).max(of((other, one))))
    }

    /// The channel of a conversation at each end that has it.
    fn ends_of(&self, one: &Conversation) -> Vec<(usize, ChannelId)> {
        let node = one.nodes[0];
        let peer = self.meeting[one.number];
        let channel = peer.and_then(|peer| self.wire.data.peers[node].channel(peer));
        let near = channel.map(|channel| (node, channel));
        let far = near.and_then(|(node, id)| self.wire.data.far(node, id));
        near.into_iter().chain(far).collect()
    }

    fn conversation_laws(&mut self, number: usize) -> Result<(), String> {
        let one = &self.conversations[number];
        let silent = one.nodes.iter().any(|node| self.silent == Some(*node));
        let failed = self.ends_of(one).iter().any(|end| self.has_failed(*end));
        let came_about = one.opened == [true; 2];
        for side in 0..2 {
            if self.silent == Some(one.nodes[side]) {
                continue;
            }
            if one.has_requests(side) {
                return Err(format!("a request of conversation {number} never ended"));
            }
        }
        let lost = self.wire.data.failed.contains(&number);
        if one.disturbed || silent || failed || lost || !came_about {
            return Ok(());
        }
        if !one.sends.iter().all(|send| *send == Sending::Done) {
            return Err(format!("a send of conversation {number} failed without a reason"));
        }
        let received = |receive: &Receiving| matches!(receive, Receiving::Done | Receiving::Early);
        if !one.receives.iter().all(received) {
            return Err(format!("a receive of conversation {number} failed without a reason"));
        }
        if !self.wire.data.disturbed.is_empty() {
            self.wire.faults.fire(Fault::SurvivedOnLess);
        }
        Ok(())
    }

    /// Checks that everything taken for connections that are over was returned.
    fn node_laws(&self, node: usize) -> Result<(), String> {
        let whole = (0..self.wire.data.channels[node].len() as u32)
            .map(ChannelId)
            .all(|id| !self.has_failed((node, id)));
        let gone = |one: &Conversation| {
            (0..2)
                .filter(|side| one.nodes[*side] == node)
                .all(|side| matches!(one.sides[side], Side::Gone | Side::Failed | Side::Waiting))
        };
        if !whole || !self.conversations.iter().all(gone) {
            return Ok(());
        }
        let rank = &self.ranks[node];
        if rank.endpoint.awaits_parts() {
            return Err("parts are awaited though all connections are gone".to_owned());
        }
        // Counts that END cut off are not settled: the channel is gone.
        if self.ranks.iter().any(|rank| rank.ended_early()) {
            return Ok(());
        }
        if rank.budget.used() != 0 {
            return Err(format!("{} entries were never given back", rank.budget.used()));
        }
        for id in (0..self.wire.data.channels[node].len() as u32).map(ChannelId) {
            let account = rank.endpoint.account(id).unwrap();
            let loads = (0..16).map(|rail| account.loads.queued(rail)).sum::<u64>();
            let parked = account.parking.cost();
            if (account.sent, account.unreported, parked, loads) != (0, 0, 0, 0) {
                let (sent, unreported) = (account.sent, account.unreported);
                return Err(format!(
                    "an account is not settled: sent {sent}, unreported {unreported}, parked {parked}, queued {loads}"
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn why(&self) -> String {
        let mut text =
            format!("{} ns, dead {:?}, {}", self.wire.now, self.wire.dead, self.wire.unrest());
        let Flows { faulty, disturbed, losses, settings, .. } = &self.wire.data;
        text += &format!("\nfaulty {faulty:?}\ndisturbed {disturbed:?}\nlosses {losses:?}");
        text += &format!("\n{settings:?}");
        let (slowest, was_mute) = (&self.wire.slowest_mail, self.wire.was_mute);
        text += &format!("\nslowest mail {slowest:?} ns, a rail was mute: {was_mute}");
        for (node, rank) in self.ranks.iter().enumerate() {
            text += &format!(
                "\nnode {node}: rests {} calling {} ending {} stale {} silent {:?} used {}",
                self.rests(node),
                rank.calling,
                rank.ending,
                rank.endpoint.stale(),
                self.silent,
                rank.budget.used(),
            );
            for id in (0..self.wire.data.channels[node].len() as u32).map(ChannelId) {
                let channel = rank.endpoint.channel(id).unwrap();
                let account = rank.endpoint.account(id).unwrap();
                text += &format!(
                    "\n  {id:?} far {:?} {:?} urgency {} {:?} counts {:?} sent {} unreported {}",
                    self.wire.data.channels[node][id.0 as usize].far,
                    self.outcome((node, id)),
                    channel.has_pending(&account.counts),
                    channel.ending(),
                    (account.counts.completed.get(0), account.counts.seen.get(0)),
                    account.sent,
                    account.unreported,
                );
            }
        }
        for one in &self.conversations {
            let count = |state: Sending| one.sends.iter().filter(|send| **send == state).count();
            let received = |state| one.receives.iter().filter(|other| **other == state).count();
            text += &format!(
                "\nconversation {}: {:?} {:?} disturbed {} items {} sent {} waiting {} received {} posted {} listener {} \
                 {:?}",
                one.number,
                one.nodes,
                one.sides,
                one.disturbed,
                one.items.len(),
                count(Sending::Done),
                count(Sending::Waiting),
                received(Receiving::Done),
                received(Receiving::Posted),
                self.listeners[one.number],
                self.meeting[one.number],
            );
        }
        if std::env::var_os("SIM_SEED").is_some() {
            for one in &self.conversations {
                for side in 0..2 {
                    if let Side::Seated(name) | Side::Open(name) | Side::Closing(name) =
                        one.sides[side]
                    {
                        let flow = self.ranks[one.nodes[side]].endpoint.connection(name.slot);
                        text += &format!("\n{} {side}: {flow:?}", one.number);
                    }
                }
            }
        }
        for flight in &self.wire.data.flights {
            text += &format!("\n{flight:?}");
        }
        text
    }
}
