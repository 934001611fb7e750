//! What schedules inject, and the rare things that follow: each is counted as fired.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    EarlyCompletion,
    TornLanding,
    LateLanding,
    LandedInQuarantine,
    LostPacket,
    LostCell,
    LostLetter,
    LostPart,
    RefusedPost,
    RefusedLetter,
    RefusedPart,
    RefusedMemory,
    LateLetter,
    ForgedLetter,
    RepeatedLetter,
    RailDeath,
    AllRailsDead,
    RailClosed,
    SilentForEver,
    StoppedCalling,
    KeeperPolled,
    NewInbox,
    BothSwitchedAtOnce,
    LossDeclared,
    CellWritten,
    CellBackwards,
    AcknowledgedBeforeCompletion,
    Pad,
    RingFull,
    Query,
    EndBothWays,
    Failed,
    ChannelToItself,
    PacketWritten,
}

pub(crate) const ALL: [Fault; 34] = [
    Fault::EarlyCompletion,
    Fault::TornLanding,
    Fault::LateLanding,
    Fault::LandedInQuarantine,
    Fault::LostPacket,
    Fault::LostCell,
    Fault::LostLetter,
    Fault::LostPart,
    Fault::RefusedPost,
    Fault::RefusedLetter,
    Fault::RefusedPart,
    Fault::RefusedMemory,
    Fault::LateLetter,
    Fault::ForgedLetter,
    Fault::RepeatedLetter,
    Fault::RailDeath,
    Fault::AllRailsDead,
    Fault::RailClosed,
    Fault::SilentForEver,
    Fault::StoppedCalling,
    Fault::KeeperPolled,
    Fault::NewInbox,
    Fault::BothSwitchedAtOnce,
    Fault::LossDeclared,
    Fault::CellWritten,
    Fault::CellBackwards,
    Fault::AcknowledgedBeforeCompletion,
    Fault::Pad,
    Fault::RingFull,
    Fault::Query,
    Fault::EndBothWays,
    Fault::Failed,
    Fault::ChannelToItself,
    Fault::PacketWritten,
];

#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(pub(crate) BTreeMap<Fault, u64>);

impl Faults {
    pub(crate) fn fire(&mut self, fault: Fault) {
        *self.0.entry(fault).or_default() += 1;
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.0.contains_key(&fault)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (fault, count) in &other.0 {
            *self.0.entry(*fault).or_default() += count;
        }
    }
}
