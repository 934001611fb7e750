//! What Ironrail counts, and how a page of shared memory holds it: the plugin writes it, tools read it.
//!
//! ```text
//! word 0 ┌────────────────────────────────┐
//!        │ header: magic, layout, process │  the magic is written last
//!     64 ├────────────────────────────────┤
//!        │ row 0: key, counters, latency  │  the first word of a row is written last
//!    128 ├────────────────────────────────┤
//!        │ row 1 …                        │
//! ```
//!
//! All words are `u64` of the writing machine's byte order. A counter has one writer, which holds its endpoint's lock, and only
//! grows. A reader may see older values of some counters beside newer ones of others.
#![forbid(unsafe_code)]

mod counter;
mod histogram;
mod key;
mod layout;
mod page;

pub use counter::Counter;
pub use histogram::{BUCKETS, bucket_of, bucket_upper_nanos};
pub use key::{Direction, Key, Kind, peer_text};
pub use layout::{
    COUNTERS, COUNTERS_AT, HEADER_WORDS, HISTOGRAM_AT, HOST_AT, HOST_WORDS, KEY_WORDS, LAYOUT,
    MAGIC, NAME_AT, PEER_AT, ROW_WORDS, ROWS, VERSION_AT, VERSION_WORDS, head, page_words,
};
pub use page::{FOLDER, PREFIX, Page, Row, Unreadable, copy_whole, file_name, summed, text_words};
