//! The handshake with one peer of an endpoint, and the contents of each HELLO to it.
//!
//! ```text
//!  connect ──▶ HELLO without a letter, repeated ──┐        (until the channel is made: each may find no memory)
//!                                                 ├─ a proven HELLO ──▶ Met ── a channel is made ──▶ joined
//!              (nothing known) ───────────────────┘                     its letters travel in HELLOs
//! ```
//!
//! A peer that was met is kept as long as the endpoint lives, also after its channel has ended, so that a late HELLO
//! makes no second channel.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::bound::{HELLO_AGAIN, HELLO_AGAIN_MAX};
use super::super::ids::{ListenerId, Moment};
use super::super::letter::Letter;
use super::super::progress::ChannelId;
use super::agreement::Agreement;
use super::handle::{HANDLE_ADDRESS_BYTES, Handle};
use super::hello::{Entries, Hello, MAX_ENTRIES};
use super::message::pack;
use super::pairing::Apart;
use super::presence::{Host, Presence};
use super::proof::{EndpointId, Nonces, Prove, Role, Secret};
use crate::codec::Bounded;
use crate::rails::Rail;

/// Distinguishes the two ends of a channel of an endpoint with itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Half {
    /// The end that connects; with another endpoint the only one.
    First,
    Second,
}

/// A listener that connects the two endpoints, and its secret. `role` is ours.
#[derive(Clone, Copy, Debug)]
struct Voucher {
    listener: ListenerId,
    role: Role,
    secret: Secret,
}

/// The HELLOs to a peer of which only handles are known.
#[derive(Clone, Debug)]
pub(super) struct FirstHellos {
    /// The newest handle.
    pub(super) handle: Handle,
    /// The number of HELLOs that were posted, or were refused for so long that the next way is tried.
    pub(super) count: usize,
    posted: Option<Moment>,
    wait: Duration,
    /// Since when the next HELLO is refused.
    refused: Option<Moment>,
}

impl FirstHellos {
    /// The way of the next HELLO: one of the rails `ours`, and an address of the peer. NICs of either end may be lost, so each HELLO
    /// goes another way: first to each address by the rail at the same index, since these two are probably in one network, then by
    /// the next rail.
    pub(super) fn way(&self, ours: &[usize]) -> Option<(usize, Bounded<HANDLE_ADDRESS_BYTES>)> {
        let addresses = &self.handle.control;
        let place = self.count % addresses.count() + self.count / addresses.count();
        let rail = ours.get(place.checked_rem(ours.len())?)?;
        Some((*rail, addresses.at(self.count)))
    }
}

/// The contents of a peer's first proven HELLO.
#[derive(Clone, Debug)]
pub(super) struct Met {
    nonce: u64,
    agreement: Result<Agreement, Apart>,
    pub(super) rails: Vec<Rail>,
    pub(super) host: Host,
}

#[derive(Debug)]
pub(super) struct Meeting {
    pub(super) peer: EndpointId,
    pub(super) half: Half,
    nonce: u64,
    pub(super) key: u64,
    vouchers: VecDeque<Voucher>,
    hellos: Option<FirstHellos>,
    met: Option<Met>,
    pub(super) channel: Option<ChannelId>,
}

impl Meeting {
    pub(super) fn new(peer: EndpointId, half: Half, nonce: u64, key: u64) -> Self {
        let vouchers = VecDeque::with_capacity(MAX_ENTRIES);
        let (hellos, met, channel) = (None, None, None);
        Self { peer, half, nonce: nonce.max(1), key, vouchers, hellos, met, channel }
    }

    /// `connect` got a handle of this peer.
    pub(super) fn given(&mut self, handle: &Handle) {
        self.vouch(handle.listener, Role::Connects, handle.secret);
        if self.channel.is_some() {
            return;
        }
        let (posted, refused) = (None, None);
        let first = FirstHellos { handle: *handle, count: 0, posted, wait: HELLO_AGAIN, refused };
        let hellos = self.hellos.get_or_insert(first);
        // A newer handle names control rails that were not lost when it was made.
        if handle.listener > hellos.handle.listener {
            hellos.handle = *handle;
        }
    }

    /// Adds a listener to the entries of HELLOs, which name the oldest and the newest of each role. The oldest, because both ends keep
    /// it: the other end may not know the newest, since it learns of them only by HELLOs. Each role has its own entries: the peer can
    /// always verify its own listeners, but ours only while it keeps the handle's secret.
    fn vouch(&mut self, listener: ListenerId, role: Role, secret: Secret) {
        let of_role = |voucher: &Voucher| voucher.role == role;
        let known = self.vouchers.iter().filter(|voucher| of_role(voucher));
        if known.clone().any(|voucher| voucher.listener == listener) {
            return;
        }
        if known.count() == MAX_ENTRIES / 2 {
            let places = (0..).zip(&self.vouchers).filter(|(_, voucher)| of_role(voucher));
            if let Some((second, _)) = places.take(2).last() {
                self.vouchers.remove(second);
            }
        }
        self.vouchers.push_back(Voucher { listener, role, secret });
    }

    /// The secret of a listener of the peer's (our role: connects), or of ours (listens), that HELLOs name.
    fn vouched(&self, listener: ListenerId, ours: Role) -> Option<Secret> {
        let same = |voucher: &&Voucher| (voucher.listener, voucher.role) == (listener, ours);
        self.vouchers.iter().find(same).map(|voucher| voucher.secret)
    }

    /// Whether a HELLO is proven to be from this peer. `secret_of` returns secrets of our own listeners; a secret that it has forgotten
    /// is still accepted if this peer has named its listener before. The first proven HELLO fixes the peer's nonce.
    pub(super) fn proves(
        &self,
        hello: &Hello,
        us: &EndpointId,
        secret_of: impl Fn(ListenerId) -> Option<Secret>,
        prove: &impl Prove,
    ) -> bool {
        let known = self.met.as_ref().is_none_or(|met| met.nonce == hello.nonce);
        let secret = |listener, role| match role {
            Role::Connects => secret_of(listener).or_else(|| self.vouched(listener, Role::Listens)),
            Role::Listens => self.vouched(listener, Role::Connects),
        };
        known && hello.is_proven(us, Some(self.nonce), secret, prove)
    }

    /// Handles a proven HELLO.
    pub(super) fn heard(
        &mut self,
        hello: &Hello,
        us: &Presence,
        secret_of: impl Fn(ListenerId) -> Option<Secret>,
    ) {
        for entry in hello.entries.as_slice() {
            if entry.role == Some(Role::Connects)
                && let Some(secret) = secret_of(entry.listener)
            {
                self.vouch(entry.listener, Role::Listens, secret);
            }
        }
        if self.met.is_none() {
            self.met = Some(Met {
                nonce: hello.nonce,
                agreement: Agreement::of(us, hello),
                rails: hello.rails.clone(),
                host: hello.host,
            });
        }
    }

    /// The peer's channel was made. The channel sends HELLOs from now on.
    pub(super) fn join(&mut self, channel: ChannelId) {
        self.channel = Some(channel);
        self.hellos = None;
    }

    pub(super) fn met(&self) -> Option<&Met> {
        self.met.as_ref()
    }

    pub(super) fn agreement(&self) -> Option<&Agreement> {
        self.met.as_ref()?.agreement.as_ref().ok()
    }

    pub(super) fn apart(&self) -> Option<&Apart> {
        self.met.as_ref()?.agreement.as_ref().err()
    }

    pub(super) fn nonce(&self) -> u64 {
        self.nonce
    }

    /// Both nonces, with ours as the prover's or the verifier's.
    pub(super) fn nonces(&self, ours: Prover) -> Option<Nonces> {
        let theirs = self.met.as_ref()?.nonce;
        Some(match ours {
            Prover::Us => Nonces { prover: self.nonce, verifier: theirs },
            Prover::Peer => Nonces { prover: theirs, verifier: self.nonce },
        })
    }

    /// The HELLOs to the peer's handle, if one is due now.
    pub(super) fn due(&self, now: Moment) -> Option<&FirstHellos> {
        let hellos = self.hellos.as_ref()?;
        let due = hellos.posted.is_none_or(|posted| now.since(posted) >= hellos.wait);
        due.then_some(hellos)
    }

    /// The HELLO was posted.
    pub(super) fn hello_posted(&mut self, now: Moment) {
        let Some(hellos) = &mut self.hellos else { return };
        hellos.count = hellos.count.wrapping_add(1);
        hellos.refused = None;
        if hellos.posted.replace(now).is_some() {
            hellos.wait = (2 * hellos.wait).min(HELLO_AGAIN_MAX);
        }
    }

    /// The provider accepts no HELLO now, as over sockets while it connects. After a while the next HELLO goes another way, since the
    /// host may not be reachable on this one.
    pub(super) fn hello_refused(&mut self, now: Moment) {
        let Some(hellos) = &mut self.hellos else { return };
        if now.since(*hellos.refused.get_or_insert(now)) >= HELLO_AGAIN {
            hellos.count = hellos.count.wrapping_add(1);
            hellos.refused = None;
        }
    }

    /// A HELLO to the peer, with the channel's letter if there is one.
    pub(super) fn hello(
        &self,
        us: &Presence,
        letter: Option<&Letter>,
        prove: &impl Prove,
    ) -> Hello {
        let mut hello = Hello {
            from: us.id,
            to: self.peer,
            nonce: self.nonce,
            echo: self.met.as_ref().map_or(0, |met| met.nonce),
            capabilities: us.capabilities,
            offers: us.offers,
            rails: us.rails.clone(),
            host: us.host,
            entries: Entries::default(),
            channel: letter.map(pack).unwrap_or_default(),
        };
        for Voucher { listener, role, secret } in &self.vouchers {
            hello.add_entry(*listener, *role, secret, prove);
        }
        hello
    }
}

/// Which side proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prover {
    Us,
    Peer,
}
