//! The sender's reading side: adverts, and the done that travels alone.
//!
//! A line is copied word by word, validated, and only then used; the last one copied is kept, so that looking ahead
//! for its done and then sending to it costs one reading.

use crate::flow::{FlowParameters, LineSource};
use crate::ids::Line;
use crate::window::Window;
use crate::wire::{FIRST_KEY, Form, Kind, LineFormat, MAX_LINE_WORDS, SHORT_LINE_WORDS};
use crate::wire::{head_line, validates};

/// Where the receiver's adverts land, seen through a local copy of one line.
#[derive(Debug)]
pub struct Mailbox {
    nonce: u64,
    window: Window,
    format: LineFormat,
    /// Whether `copy` holds a validated line: the one its head names.
    copied: bool,
    /// The word behind the last key.
    keys_end: usize,
    /// Word 0 of the last lone done that was taken.
    lone_head: u64,
    copy: [u64; MAX_LINE_WORDS],
}

impl Mailbox {
    pub fn new(parameters: &FlowParameters) -> Self {
        Self {
            nonce: parameters.nonce,
            window: parameters.window,
            format: parameters.format(),
            copied: false,
            keys_end: (FIRST_KEY + parameters.rails).min(MAX_LINE_WORDS),
            lone_head: 0,
            copy: [0; MAX_LINE_WORDS],
        }
    }

    /// Whether the place of `line` has its number: a look that proves nothing yet.
    #[inline]
    pub fn is_there<S: LineSource>(&self, source: &S, line: Line) -> bool {
        head_line(source.word(self.window.place(line), 0)) == line
    }

    /// Copies the advert of `line`, if it is there: whole, of this connection, of this lap.
    #[inline(always)]
    pub fn advert<S: LineSource>(&mut self, source: &S, line: Line) -> bool {
        if self.copied && head_line(self.copy[0]) == line {
            return true;
        }
        let place = self.window.place(line);
        if head_line(source.word(place, 0)) != line {
            return false;
        }
        // A loop of fixed length in each arm.
        self.copied = match self.format {
            LineFormat::Words6 => self.copy_line::<S, 6>(source, place),
            LineFormat::Words8 => self.copy_line::<S, 8>(source, place),
            LineFormat::Words16 => self.copy_line::<S, 16>(source, place),
            LineFormat::Words24 => self.copy_line::<S, 24>(source, place),
        };
        self.copied && head_line(self.copy[0]) == line
    }

    #[inline(always)]
    fn copy_line<S: LineSource, const WORDS: usize>(&mut self, source: &S, place: u32) -> bool {
        let words = source.words::<WORDS>(place);
        self.copy[..WORDS].copy_from_slice(&words);
        validates(self.nonce, &words)
    }

    /// Whether a lone done may have come since the one that was taken: a look that proves nothing yet.
    #[inline]
    pub fn has_lone_done<S: LineSource>(&self, source: &S) -> bool {
        source.word(self.window.lone_place(), 0) != self.lone_head
    }

    /// The cumulative done that was written alone, if there is one that was not taken before.
    #[inline]
    pub fn lone_done<S: LineSource>(&mut self, source: &S) -> Option<Line> {
        let place = self.window.lone_place();
        if !self.has_lone_done(source) {
            return None;
        }
        let words = source.words::<SHORT_LINE_WORDS>(place);
        if !validates(self.nonce, &words) || !Form::from_word(words[1]).is(Kind::LoneDone) {
            return None;
        }
        self.lone_head = words[0];
        Some(head_line(words[0]))
    }

    /// Of the advert copied last.
    #[inline]
    pub fn form(&self) -> Form {
        Form::from_word(self.copy[1])
    }

    #[inline]
    pub fn address(&self) -> u64 {
        self.copy[2]
    }

    /// The length of the receive.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.copy[3]
    }

    /// The keys of the advert copied last.
    #[inline]
    pub fn keys(&self) -> &[u64] {
        &self.copy[FIRST_KEY..self.keys_end]
    }
}
