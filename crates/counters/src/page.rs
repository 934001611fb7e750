//! A page as a reader finds it: a file's bytes, checked before anything is believed.

use std::fmt;
use std::sync::atomic::{Ordering, fence};

use crate::counter::Counter;
use crate::histogram::BUCKETS;
use crate::key::Key;
use crate::layout::{
    COUNTERS, COUNTERS_AT, HEADER_WORDS, HISTOGRAM_AT, HOST_AT, HOST_WORDS, LAYOUT, MAGIC, NAME_AT,
    PEER_AT, ROW_WORDS, ROWS, VERSION_AT, VERSION_WORDS, head,
};

/// Where pages are.
pub const FOLDER: &str = "/dev/shm";
/// How their names begin.
pub const PREFIX: &str = "ironrail-stats.";

/// The name of a process's page: its user and its number, as its own namespaces have them, its PID namespace, and how many pages it had
/// before. Containers that share the folder have processes of one user and number.
pub fn file_name(user: u32, process: u32, namespace: u64, serial: u32) -> String {
    format!("{PREFIX}{user}.{process}.{namespace}.{serial}")
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub key: Key,
    counters: [u64; COUNTERS],
    pub latency: [u64; BUCKETS],
}

/// A page whose header is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub process: u32,
    /// When the process started, in clock ticks since boot.
    pub started: u64,
    /// Its PID namespace.
    pub namespace: u64,
    pub made_unix: u64,
    pub host: String,
    pub version: String,
    /// Rows of the process that are in no page.
    pub elsewhere: u64,
    pub rows: Vec<Row>,
}

/// Why a file is not a page that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Its writer has not finished the header.
    HalfWritten,
    /// Something else, by its length or by its first word.
    Foreign,
    /// Of another layout.
    Layout { found: u64 },
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HalfWritten => f.write_str(
                "it is half written: its process is just starting, or ended while it did",
            ),
            Self::Foreign => f.write_str("it is no page of Ironrail's counters"),
            Self::Layout { found } => write!(
                f,
                "it has layout {found}, and this command reads layout {LAYOUT}: use the command of the plugin's own release"
            ),
        }
    }
}

impl Row {
    pub fn new(key: Key) -> Self {
        Self { key, counters: [0; COUNTERS], latency: [0; BUCKETS] }
    }

    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter.place()]
    }

    /// Counts what another row of the same key has counted, too.
    pub fn add(&mut self, other: &Self) {
        let ours = self.counters.iter_mut().chain(&mut self.latency);
        for (sum, value) in ours.zip(other.counters.iter().chain(&other.latency)) {
            *sum = sum.wrapping_add(*value);
        }
    }

    /// The row as its words say; None for one that is not used. `words`: at least [`ROW_WORDS`].
    pub fn read(words: &[u64]) -> Option<Self> {
        let first = *words.first()?;
        let peer = text(words.get(PEER_AT..NAME_AT)?);
        let name = text(words.get(NAME_AT..NAME_AT + NAME_WORDS)?);
        let key = Key::of(first, peer, name)?;
        let mut row = Self::new(key);
        row.counters.copy_from_slice(words.get(COUNTERS_AT..COUNTERS_AT + COUNTERS)?);
        row.latency.copy_from_slice(words.get(HISTOGRAM_AT..HISTOGRAM_AT + BUCKETS)?);
        Some(row)
    }

    /// The row's words but the first, from [`PEER_AT`] on.
    pub fn write(&self, mut put: impl FnMut(usize, u64)) {
        let peer = text_words::<{ NAME_AT - PEER_AT }>(&self.key.peer);
        let name = text_words::<NAME_WORDS>(&self.key.name);
        let words = peer.iter().chain(&name).copied();
        (PEER_AT..).zip(words).for_each(|(at, word)| put(at, word));
        (COUNTERS_AT..).zip(self.counters).for_each(|(at, word)| put(at, word));
        (HISTOGRAM_AT..).zip(self.latency).for_each(|(at, word)| put(at, word));
    }
}

impl Page {
    /// Reads a page's file.
    ///
    /// # Errors
    ///
    /// [`Unreadable`] if it is none, or not yet.
    pub fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
            .collect();
        let header = words.get(..HEADER_WORDS).ok_or(match bytes {
            [] => Unreadable::HalfWritten,
            _ => Unreadable::Foreign,
        })?;
        match header[head::MAGIC] {
            MAGIC => {}
            0 => return Err(Unreadable::HalfWritten),
            _ => return Err(Unreadable::Foreign),
        }
        if header[head::LAYOUT] != LAYOUT {
            return Err(Unreadable::Layout { found: header[head::LAYOUT] });
        }
        let rows = &words[HEADER_WORDS..];
        let expected = (ROW_WORDS as u64, ROWS as u64);
        if (header[head::ROW_WORDS], header[head::ROWS]) != expected
            || rows.len() < ROWS * ROW_WORDS
        {
            return Err(Unreadable::Foreign);
        }
        Ok(Self {
            process: u32::try_from(header[head::PROCESS]).map_err(|_| Unreadable::Foreign)?,
            started: header[head::STARTED],
            namespace: header[head::NAMESPACE],
            made_unix: header[head::MADE],
            host: text(&header[HOST_AT..HOST_AT + HOST_WORDS]),
            version: text(&header[VERSION_AT..VERSION_AT + VERSION_WORDS]),
            elsewhere: header[head::ELSEWHERE],
            rows: summed(rows.chunks_exact(ROW_WORDS).take(ROWS).filter_map(Row::read)),
        })
    }
}

/// The bytes of a page that its writer may be storing into, from `copy`, which is called twice. Rows that were not whole at the first call
/// are left out.
///
/// # Errors
///
/// Those of `copy`.
pub fn copy_whole<E>(mut copy: impl FnMut() -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
    let earlier = copy()?;
    fence(Ordering::Acquire);
    let mut bytes = copy()?;
    keep_whole(&earlier, &mut bytes);
    Ok(bytes)
}

/// Clears in `copy` the first word of each row that was not whole when an `earlier` copy of the same page was made; the header counts as a
/// row. The writer writes the first word of a row last, and read(2) copies in no order.
fn keep_whole(earlier: &[u8], copy: &mut [u8]) {
    const ROW_BYTES: usize = 8 * ROW_WORDS;
    const { assert!(HEADER_WORDS == ROW_WORDS, "the header is as long as a row") };
    for (at, row) in (0..).step_by(ROW_BYTES).zip(copy.chunks_exact_mut(ROW_BYTES)) {
        if earlier.get(at..at + 8).is_none_or(|first| first == [0; 8]) {
            row[..8].fill(0);
        }
    }
}

/// One row per key, in the order of the keys. Endpoints of one process have rows of their own, which are added here.
pub fn summed(rows: impl IntoIterator<Item = Row>) -> Vec<Row> {
    let mut sums = std::collections::BTreeMap::<Key, Row>::new();
    for row in rows {
        match sums.get_mut(&row.key) {
            Some(sum) => sum.add(&row),
            None => drop(sums.insert(row.key.clone(), row)),
        }
    }
    sums.into_values().collect()
}

/// The words of a text, zero-padded; it is cut where it does not fit.
pub fn text_words<const WORDS: usize>(text: &str) -> [u64; WORDS] {
    let mut end = text.len().min(WORDS * 8);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(text.as_bytes()[..end].chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(whole);
    }
    words
}

/// The printable ASCII in such words. Another user may have written them, and other characters may turn the direction of a terminal's text.
fn text(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let is_shown = |letter: char| letter == ' ' || letter.is_ascii_graphic();
    let shown = |letter: char| if is_shown(letter) { letter } else { '?' };
    String::from_utf8_lossy(&bytes[..end]).chars().map(shown).collect()
}

const NAME_WORDS: usize = 4;
const _: () = assert!(NAME_AT + NAME_WORDS <= COUNTERS_AT);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Direction, Kind};
    use crate::layout::page_words;

    fn row(peer: &str, messages: u64) -> Row {
        let key = Key {
            kind: Kind::Messages,
            direction: Direction::Send,
            device: 1,
            rail: 0,
            peer: peer.to_owned(),
            name: "net eth0".to_owned(),
        };
        let mut row = Row::new(key);
        row.counters[Counter::Messages.place()] = messages;
        row.latency[3] = 5;
        row
    }

    fn page(rows: &[Row]) -> Vec<u64> {
        let mut words = vec![0; page_words()];
        words[head::MAGIC] = MAGIC;
        words[head::LAYOUT] = LAYOUT;
        words[head::ROW_WORDS] = ROW_WORDS as u64;
        words[head::ROWS] = ROWS as u64;
        words[head::PROCESS] = 42;
        words[HOST_AT..HOST_AT + HOST_WORDS].copy_from_slice(&text_words::<HOST_WORDS>("here"));
        for (at, row) in rows.iter().enumerate() {
            let first = HEADER_WORDS + at * ROW_WORDS;
            row.write(|at, word| words[first + at] = word);
            words[first] = row.key.head();
        }
        words
    }

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn a_page_is_read_as_it_was_written_and_rows_of_one_key_are_summed() {
        let read = Page::read(&bytes(&page(&[row("a:1", 3), row("b:2", 4), row("a:1", 5)])));
        let page = read.unwrap();
        assert_eq!((page.process, page.host.as_str()), (42, "here"));
        let found: Vec<_> =
            page.rows.iter().map(|row| (&*row.key.peer, row.get(Counter::Messages))).collect();
        assert_eq!(found, [("a:1", 8), ("b:2", 4)]);
        assert_eq!(page.rows[0].latency[3], 10);
    }

    #[test]
    fn a_half_written_page_a_foreign_file_and_another_layout_are_distinguished() {
        let mut words = page(&[row("a:1", 3)]);
        words[head::MAGIC] = 0;
        assert_eq!(Page::read(&bytes(&words)), Err(Unreadable::HalfWritten));
        assert_eq!(Page::read(&[]), Err(Unreadable::HalfWritten));
        assert_eq!(Page::read(b"\x7fELF"), Err(Unreadable::Foreign));
        words[head::MAGIC] = 7;
        assert_eq!(Page::read(&bytes(&words)), Err(Unreadable::Foreign));
        words[head::MAGIC] = MAGIC;
        assert_eq!(Page::read(&bytes(&words[..1000])), Err(Unreadable::Foreign));
        words[head::LAYOUT] = 9;
        assert_eq!(Page::read(&bytes(&words)), Err(Unreadable::Layout { found: 9 }));
    }

    #[test]
    fn a_row_whose_first_word_is_not_written_is_none() {
        let mut words = page(&[row("a:1", 3)]);
        words[HEADER_WORDS] = 0;
        assert_eq!(Page::read(&bytes(&words)).unwrap().rows, []);
    }

    /// A copy by read(2) may have a row's first word and not its key yet.
    #[test]
    fn what_an_earlier_copy_does_not_have_whole_is_not_read() {
        let whole = bytes(&page(&[row("a:1", 3), row("b:2", 4)]));
        let without = |word: usize| {
            let mut earlier = whole.clone();
            earlier[8 * word..8 * word + 8].fill(0);
            earlier
        };
        let read = |earlier: &[u8]| {
            let mut copy = whole.clone();
            keep_whole(earlier, &mut copy);
            Page::read(&copy)
                .map(|page| page.rows.iter().map(|row| row.key.peer.clone()).collect::<Vec<_>>())
        };
        assert_eq!(read(&whole).unwrap(), ["a:1", "b:2"]);
        assert_eq!(read(&without(HEADER_WORDS + ROW_WORDS)).unwrap(), ["a:1"]);
        assert_eq!(read(&without(head::MAGIC)), Err(Unreadable::HalfWritten));
        assert_eq!(read(&[]), Err(Unreadable::HalfWritten));
        let mut foreign = b"no page".to_vec();
        keep_whole(&[], &mut foreign);
        assert_eq!(foreign, b"no page");
    }

    #[test]
    fn a_text_is_cut_at_a_letter_and_shows_printable_ascii_alone() {
        let words = text_words::<1>("1234567é");
        assert_eq!(text(&words), "1234567");
        assert_eq!(text(&text_words::<1>("a\u{1b}[2J")), "a?[2J");
        assert_eq!(text(&text_words::<1>("a\u{202e}bc")), "a?bc");
    }
}
