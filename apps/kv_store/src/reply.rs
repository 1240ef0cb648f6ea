//! Replies, in RESP2 or RESP3.

use std::fmt::Display;
use std::io::Write;

/// Replies that were not sent yet.
#[derive(Debug, Default)]
pub struct Reply {
    pub bytes: Vec<u8>,
    pub is_resp3: bool,
    /// The connection ends after this reply.
    pub closes: bool,
    /// Where the reply to the current request begins, and how long it may be.
    start: usize,
    room: usize,
    is_too_long: bool,
}

impl Reply {
    /// Begins the reply to a request.
    pub fn begin(&mut self, room: usize) {
        (self.start, self.room, self.is_too_long) = (self.bytes.len(), room, false);
    }

    /// Removes the reply if it had no room. Returns whether it had none.
    pub fn reclaim(&mut self) -> bool {
        if self.is_too_long {
            self.bytes.truncate(self.start);
        }
        self.is_too_long
    }

    /// One line: `+` and a word, `-` and an error, `:` and a number, or `*` and the length of an array.
    pub fn line(&mut self, kind: char, rest: impl Display) {
        // Writing to memory does not fail.
        let _ = write!(self.bytes, "{kind}{rest}\r\n");
    }

    pub fn ok(&mut self) {
        self.line('+', "OK");
    }

    pub fn bulk(&mut self, bytes: &[u8]) {
        self.is_too_long |= self.bytes.len() - self.start + bytes.len() > self.room;
        if !self.is_too_long {
            // A long string takes its own length, not twice as much.
            self.bytes.reserve_exact(if bytes.len() > 1 << 16 { bytes.len() + 32 } else { 0 });
            self.line('$', bytes.len());
            self.bytes.extend_from_slice(bytes);
            self.bytes.extend_from_slice(b"\r\n");
        }
    }

    pub fn bulks(&mut self, all: &[&[u8]]) {
        self.line('*', all.len());
        all.iter().for_each(|bytes| self.bulk(bytes));
    }

    /// Begins a map of `len` keys, each with its value behind it.
    pub fn map(&mut self, len: usize) {
        if self.is_resp3 { self.line('%', len) } else { self.line('*', 2 * len) }
    }

    /// The value of a key that is not there.
    pub fn nil(&mut self) {
        if self.is_resp3 { self.line('_', "") } else { self.line('$', -1) }
    }
}
