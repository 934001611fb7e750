//! Peers that have let a wait pass without an answer: nobody waits for them again before something of theirs has come.
//!
//! An abort gives back many buffers, one by one, and NCCL's users see the sum of what each of them waits.

use super::lanes::Lane;

/// The peers that do not answer.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    peers: Vec<Silent>,
}

#[derive(Debug)]
struct Silent {
    peer: Lane,
    /// How far its connections were then.
    mark: u64,
    /// Its process has ended, as far as that could be known.
    gone: bool,
}

impl Unheard {
    /// A wait for the peer was in vain. It is known by its endpoint on our first rail to it, which all connections to it share.
    pub(super) fn begin(&mut self, peer: Lane, mark: u64, gone: bool) {
        let gone = gone || self.is_of_the_dead(peer);
        self.end(peer);
        self.peers.push(Silent { peer, mark, gone });
    }

    pub(super) fn is_of_the_dead(&self, peer: Lane) -> bool {
        self.peers.iter().any(|silent| silent.peer == peer && silent.gone)
    }

    /// The peer was heard.
    pub(super) fn end(&mut self, peer: Lane) {
        self.peers.retain(|silent| silent.peer != peer);
    }

    /// The peer of a connection over these rails was heard.
    pub(super) fn end_of(&mut self, lanes: &[Lane]) {
        if let Some(peer) = lanes.first() {
            self.end(*peer);
        }
    }

    /// Whether a wait for the peer was in vain, and nothing of its has come since: its connections are no further than then.
    pub(super) fn lasts(&mut self, peer: Lane, mark: u64) -> bool {
        let known = self.peers.iter().find(|silent| silent.peer == peer);
        let lasts = known.is_some_and(|silent| silent.mark == mark);
        if known.is_some() && !lasts {
            self.end(peer);
        }
        lasts
    }
}
