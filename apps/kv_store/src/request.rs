//! Requests: arrays of strings, or words in one line.
//!
//! Each client has a thread that may wait for bytes, so the reader is a loop. It allocates nothing
//! because a client announces it. The crates that parse RESP were rejected: see decision 26.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};

/// Bytes of a line at most, and bytes that are read together.
const LINE: usize = 64 << 10;

/// The words of one request.
pub type Words = Vec<Vec<u8>>;

#[derive(Debug)]
pub struct Requests<R> {
    reader: BufReader<R>,
    /// Bytes of memory that a request may take.
    longest: usize,
    /// Bytes of memory that the request takes so far.
    held: usize,
}

impl<R: Read> Requests<R> {
    pub fn new(reader: R, longest: usize) -> Self {
        Self { reader: BufReader::new(reader), longest, held: 0 }
    }

    /// Whether bytes of another request have come.
    pub fn has_more(&self) -> bool {
        !self.reader.buffer().is_empty()
    }

    /// The next request. `hold` hears of the memory that it will take, before it takes more.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] if it is no request; those of `hold` and of the reader.
    pub fn next(&mut self, mut hold: impl FnMut(usize) -> io::Result<()>) -> io::Result<Words> {
        loop {
            self.held = 0;
            let line = self.line()?;
            let words = if let Some(count) = line.strip_prefix(b"*") {
                let count = announced(count, i32::MAX as usize, "invalid multibulk length")?;
                (0..count).map(|_| self.word(&mut hold)).collect::<io::Result<Words>>()?
            } else {
                let words = line.split(u8::is_ascii_whitespace);
                words.filter(|word| !word.is_empty()).map(<[u8]>::to_vec).collect()
            };
            if !words.is_empty() {
                return Ok(words);
            }
        }
    }

    fn word(&mut self, hold: &mut impl FnMut(usize) -> io::Result<()>) -> io::Result<Vec<u8>> {
        let line = self.line()?;
        let len = line.strip_prefix(b"$").ok_or_else(|| invalid("expected '$'"))?;
        let len = announced(len, u32::MAX as usize, "invalid bulk length")?;
        // The list of words may have twice the room that it needs, and an allocation has a head.
        self.held += 3 * size_of::<Vec<u8>>();
        if self.held + len > self.longest {
            return Err(invalid("too big request"));
        }
        hold(self.held)?;
        let mut word = Vec::new();
        while word.len() < len {
            let from = word.len();
            let step = (len - from).min((from / 4).max(LINE));
            self.held += step;
            hold(self.held)?;
            word.reserve_exact(step);
            word.resize(from + step, 0);
            self.reader.read_exact(&mut word[from..])?;
        }
        let mut end = [0; 2];
        self.reader.read_exact(&mut end)?;
        if &end == b"\r\n" { Ok(word) } else { Err(invalid("a word does not end with CRLF")) }
    }

    /// The next line, without its end.
    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        let read = (&mut self.reader).take(LINE as u64).read_until(b'\n', &mut line)?;
        match line.pop() {
            Some(b'\n') => Ok(line),
            _ if read == LINE => Err(invalid("too long line")),
            _ => Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn invalid(error: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// The length in a line that ends with CRLF, up to `most`.
fn announced(line: &[u8], most: usize, error: &str) -> io::Result<usize> {
    let len = line.strip_suffix(b"\r").and_then(number).and_then(|len| len.try_into().ok());
    len.filter(|&len| len <= most).ok_or_else(|| invalid(error))
}

/// The whole number that these bytes are. As in Redis, `05`, `+5` and `-0` are no numbers.
pub fn number(bytes: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == bytes).then_some(number)
}
