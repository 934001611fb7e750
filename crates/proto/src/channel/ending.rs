//! How a channel ends without an error: END both ways, each acknowledged.

use super::super::ids::PacketNumber;

#[derive(Debug, Default)]
pub struct Ending {
    ours: Ours,
    theirs: bool,
    /// The peer has said END, and no control rail to it is left, or its end of the channel is gone.
    gone: bool,
    /// A QUERY was sent because END waits only for the peer's confirmation of all parts.
    queried: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ours {
    #[default]
    Open,
    /// END follows the last pending frame.
    Pending,
    /// END is in the packet of this number.
    Said(PacketNumber),
}

impl Ending {
    pub fn begin(&mut self) {
        if self.ours == Ours::Open {
            self.ours = Ours::Pending;
        }
    }

    pub fn is_pending(&self) -> bool {
        self.ours == Ours::Pending
    }

    pub fn is_begun(&self) -> bool {
        self.ours != Ours::Open
    }

    pub fn said(&mut self, packet: PacketNumber) {
        self.ours = Ours::Said(packet);
    }

    /// Whether to send a QUERY at once for what the peer has seen: true the first time.
    pub fn may_query(&mut self) -> bool {
        !std::mem::replace(&mut self.queried, true)
    }

    /// Whether our END is in a packet: no frame may follow it.
    pub fn is_said(&self) -> bool {
        matches!(self.ours, Ours::Said(_))
    }

    pub fn peer_said(&mut self) {
        self.theirs = true;
    }

    pub fn has_peer_said(&self) -> bool {
        self.theirs
    }

    pub fn lose_peer(&mut self) {
        self.gone = true;
    }

    pub fn has_lost_peer(&self) -> bool {
        self.gone
    }

    /// Whether our END is in a packet up to `last`.
    pub fn is_in(&self, last: PacketNumber) -> bool {
        match self.ours {
            Ours::Said(packet) => !packet.is_after(last),
            Ours::Open | Ours::Pending => false,
        }
    }
}
