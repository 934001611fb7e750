//! Where everything lies in a page, in words.

/// `IRSTATS` and a zero.
pub const MAGIC: u64 = u64::from_le_bytes(*b"IRSTATS\0");
/// Changes whenever a word moves or changes its meaning.
pub const LAYOUT: u64 = 1;
pub const HEADER_WORDS: usize = 64;
/// Rows of one page. A process with more has more pages.
pub const ROWS: usize = 1023;

/// Words of the header.
pub mod head {
    pub const MAGIC: usize = 0;
    pub const LAYOUT: usize = 1;
    pub const ROW_WORDS: usize = 2;
    pub const ROWS: usize = 3;
    pub const PROCESS: usize = 4;
    /// When the process started, in clock ticks since boot (proc(5), field 22 of stat).
    pub const STARTED: usize = 5;
    /// The PID namespace in which the process has its number.
    pub const NAMESPACE: usize = 6;
    /// When the page was made, in seconds since 1970.
    pub const MADE: usize = 7;
    /// Rows of the process that are in no page: counted in its memory alone.
    pub const ELSEWHERE: usize = 8;
}

/// The name of the host, zero-padded.
pub const HOST_AT: usize = 16;
pub const HOST_WORDS: usize = 8;
/// The version of the plugin, zero-padded.
pub const VERSION_AT: usize = 24;
pub const VERSION_WORDS: usize = 8;

pub const ROW_WORDS: usize = 64;
/// Of a row: what it counts, packed; the peer; the device or the rail.
pub const KEY_WORDS: usize = 16;
pub const PEER_AT: usize = 1;
pub const NAME_AT: usize = 9;
/// The most bytes of a peer's text.
pub(crate) const PEER_BYTES: usize = (NAME_AT - PEER_AT) * 8;
pub const COUNTERS_AT: usize = 16;
/// Words of counters, some of them spare.
pub const COUNTERS: usize = 16;
pub const HISTOGRAM_AT: usize = 32;

/// The length of a page.
pub const fn page_words() -> usize {
    HEADER_WORDS + ROWS * ROW_WORDS
}
