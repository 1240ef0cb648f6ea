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
    /// Bytes that these may be, apart from short replies.
    pub most: usize,
}

impl Reply {
    /// One line: `+` and a word, `-` and an error, `:` and a number, or `*` and the length of an array.
    pub fn line(&mut self, kind: char, rest: impl Display) {
        // Writing to memory does not fail.
        let _ = write!(self.bytes, "{kind}{rest}\r\n");
    }

    pub fn ok(&mut self) {
        self.line('+', "OK");
    }

    /// An error means that there is no room.
    pub fn bulk(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err("ERR the reply has no room (--client-memory)".to_owned());
        }
        // A long string takes its own length, not twice as much.
        self.bytes.reserve_exact(if bytes.len() > 1 << 16 { bytes.len() + 32 } else { 0 });
        self.line('$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
        Ok(())
    }

    pub fn bulks(&mut self, all: &[&[u8]]) -> Result<(), String> {
        self.line('*', all.len());
        all.iter().try_for_each(|bytes| self.bulk(bytes))
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
