//! What really happened, entry by entry, and what may therefore be reported.

use proto::Part;

use crate::script::Script;

/// One message, as the network knows it.
#[derive(Clone, Debug, Default)]
struct Fate {
    taken: bool,
    parts: u32,
    landed: u32,
    bytes: u64,
    carried: u16,
    sent: bool,
    received: bool,
    early: bool,
    /// It lies whole in the eager ring, and may wait there for its receive.
    waits: bool,
    /// Its memory was given back.
    gone: bool,
}

#[derive(Debug)]
pub(crate) struct Oracle {
    fates: Vec<Fate>,
    /// As many entries are complete at the receiver, in order.
    pub(crate) done: usize,
    /// Counts everything that happens, so that a hang is seen.
    pub(crate) events: u64,
}

impl Oracle {
    pub(crate) fn new(script: &Script) -> Self {
        Self { fates: vec![Fate::default(); script.entries.len()], done: 0, events: 0 }
    }

    pub(crate) fn is_taken(&self, entry: usize) -> bool {
        self.fates[entry].taken
    }

    pub(crate) fn take(&mut self, entry: usize, parts: &[Part]) {
        let fate = &mut self.fates[entry];
        assert!(!fate.taken, "entry {entry} is sent twice");
        fate.taken = true;
        fate.parts = parts.len() as u32;
        self.events += 1;
    }

    /// A message that is sent eagerly.
    pub(crate) fn take_eagerly(&mut self, entry: usize) {
        let fate = &mut self.fates[entry];
        assert!(!fate.taken, "entry {entry} is sent twice");
        (fate.taken, fate.parts) = (true, 1);
        self.events += 1;
    }

    pub(crate) fn wait(&mut self, entry: usize) {
        self.fates[entry].waits = true;
        self.events += 1;
    }

    /// It is copied to its receive.
    pub(crate) fn land_eagerly(&mut self, script: &Script, entry: usize, len: u64) {
        assert_eq!(len, script.size(entry), "entry {entry} is copied with a wrong length");
        let fate = &mut self.fates[entry];
        assert!(fate.taken, "entry {entry} is taken before it is sent");
        assert!(!fate.received, "entry {entry} is written to after it was reported");
        assert!(!fate.gone, "entry {entry} is written to after its memory has gone");
        assert_eq!(fate.landed, 0, "entry {entry} is copied twice");
        (fate.landed, fate.bytes) = (1, len);
        self.events += 1;
    }

    pub(crate) fn land(&mut self, script: &Script, entry: usize, part: &Part) {
        assert!(part.offset + part.len <= script.entries[entry].posted, "entry {entry} overflows");
        let fate = &mut self.fates[entry];
        assert!(!fate.received, "entry {entry} is written to after it was reported");
        assert!(!fate.gone, "entry {entry} is written to after its memory has gone");
        fate.landed += 1;
        fate.bytes += part.len;
        if part.len > 0 {
            fate.carried |= 1 << part.rail;
        }
        self.events += 1;
    }

    pub(crate) fn has_landed(&self, entry: usize) -> bool {
        let fate = &self.fates[entry];
        fate.taken && fate.landed == fate.parts
    }

    /// The receiver takes the memory of an entry back.
    pub(crate) fn take_back(&mut self, entry: usize) {
        self.fates[entry].gone = true;
        self.events += 1;
    }

    /// Whether some of the bytes are there, or all, and more are under way.
    pub(crate) fn is_under_way(&self, entry: usize) -> bool {
        let fate = &self.fates[entry];
        fate.taken && fate.landed < fate.parts
    }

    pub(crate) fn is_received(&self, entry: usize) -> bool {
        let fate = &self.fates[entry];
        fate.received || fate.early && self.has_landed(entry)
    }

    /// The receiver reports a message done whose bytes need not be there.
    pub(crate) fn receive_early(&mut self, entry: usize) {
        let fate = &mut self.fates[entry];
        assert!(!fate.received && !fate.early, "receive {entry} is done twice");
        fate.early = true;
        self.events += 1;
    }

    pub(crate) fn is_sent(&self, entry: usize) -> bool {
        self.fates[entry].sent
    }

    /// The sender reports a message done.
    pub(crate) fn send(&mut self, script: &Script, entry: usize, len: u64) {
        let there = self.has_landed(entry)
            || script.parameters.sends_arrive_when_complete && self.fates[entry].waits;
        assert!(there, "send {entry} is done before its bytes are there");
        assert_eq!(len, script.size(entry), "send {entry} has a wrong length");
        let sent = std::mem::replace(&mut self.fates[entry].sent, true);
        assert!(!sent, "send {entry} is done twice");
        self.events += 1;
    }

    /// The receiver reports a message done.
    pub(crate) fn receive(&mut self, script: &Script, entry: usize, size: u64, carried: u16) {
        assert!(self.has_landed(entry), "receive {entry} is done before its bytes are there");
        let fate = &mut self.fates[entry];
        assert_eq!(size, script.size(entry), "receive {entry} has a wrong size");
        assert_eq!(size, fate.bytes, "receive {entry} has other bytes than were sent");
        assert_eq!(carried, fate.carried, "receive {entry} names wrong rails");
        let received = std::mem::replace(&mut fate.received, true);
        assert!(!received && !fate.early, "receive {entry} is done twice");
        self.events += 1;
    }
}
