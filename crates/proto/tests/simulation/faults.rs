//! What a schedule did to the protocol, counted.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Fault {
    RefusedData,
    RefusedAdvert,
    /// A turn in which nothing was due, though something waited.
    Rested,
    RefusedLoneDone,
    RefusedFin,
    TornLine,
    OvertakenAdvert,
    OvertakenPart,
    CompletedBeforeArrival,
    DuplicatePart,
    StrayImmediate,
    LateAdvert,
    SilentReceiver,
    SilentSender,
    EmptyMessage,
    ShortMessage,
    TooLong,
    Truncated,
    TagOutOfOrder,
    TagNotInGroup,
    FinBesideImmediates,
    SplitAtRingEnd,
    Wrapped10,
    Wrapped16,
    Wrapped32,
    StaleDone,
    LoneDone,
    Injected,
    Plain,
    /// The same, on a connection of several rails.
    PlainOfSeveral,
    /// The same, for a message shorter than its receive.
    PlainWithin,
    ReportedEarly,
    Withdrawn,
    WithdrawnInFlight,
    Eager,
    RefusedEager,
    EagerFull,
    EagerTooLong,
    AfterEager,
    EagerInGroup,
    EagerAtWrap,
    Ceased,
    Bundled,
    BundleOfSeveral,
    BundleAtWrap,
    BundleFull,
    RefusedBundle,
    CopiesRefused,
}

impl Fault {
    pub(crate) const ALL: [Self; 48] = [
        Self::RefusedData,
        Self::RefusedAdvert,
        Self::Rested,
        Self::RefusedLoneDone,
        Self::RefusedFin,
        Self::TornLine,
        Self::OvertakenAdvert,
        Self::OvertakenPart,
        Self::CompletedBeforeArrival,
        Self::DuplicatePart,
        Self::StrayImmediate,
        Self::LateAdvert,
        Self::SilentReceiver,
        Self::SilentSender,
        Self::EmptyMessage,
        Self::ShortMessage,
        Self::TooLong,
        Self::Truncated,
        Self::TagOutOfOrder,
        Self::TagNotInGroup,
        Self::FinBesideImmediates,
        Self::SplitAtRingEnd,
        Self::Wrapped10,
        Self::Wrapped16,
        Self::Wrapped32,
        Self::StaleDone,
        Self::LoneDone,
        Self::Injected,
        Self::Plain,
        Self::PlainOfSeveral,
        Self::PlainWithin,
        Self::ReportedEarly,
        Self::Withdrawn,
        Self::WithdrawnInFlight,
        Self::Eager,
        Self::RefusedEager,
        Self::EagerFull,
        Self::EagerTooLong,
        Self::AfterEager,
        Self::EagerInGroup,
        Self::EagerAtWrap,
        Self::Ceased,
        Self::Bundled,
        Self::BundleOfSeveral,
        Self::BundleAtWrap,
        Self::BundleFull,
        Self::RefusedBundle,
        Self::CopiesRefused,
    ];
}

#[derive(Clone, Debug)]
pub(crate) struct Faults {
    fired: [u64; Fault::ALL.len()],
    pub(crate) messages: u64,
}

impl Default for Faults {
    fn default() -> Self {
        Self { fired: [0; Fault::ALL.len()], messages: 0 }
    }
}

impl Faults {
    pub(crate) fn fire(&mut self, fault: Fault) {
        self.fire_many(fault, 1);
    }

    pub(crate) fn fire_many(&mut self, fault: Fault, times: u64) {
        self.fired[fault as usize] += times;
    }

    pub(crate) fn count(&self, fault: Fault) -> u64 {
        self.fired[fault as usize]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.fired.iter_mut().zip(other.fired) {
            *mine += theirs;
        }
        self.messages += other.messages;
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} messages", self.messages)?;
        for fault in Fault::ALL {
            write!(f, ", {fault:?} {}", self.count(fault))?;
        }
        Ok(())
    }
}
