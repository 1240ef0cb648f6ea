//! The protocol, RESP2 and RESP3: requests as they come in, in whatever pieces, and replies, which differ.
//!
//! A request is an array of bulk strings, or one line of words. Whatever is longer than it may be, or is no
//! request, is an error, after which nothing on the connection can be understood any more.

use std::ops::Range;

/// A line: the length of an array or of a bulk string, or words.
const MOST_LINE: usize = 64 << 10;

/// What a string has around it: its length, and the ends of two lines.
const MOST_HEAD: usize = 32;

/// Arguments that room is kept for between requests.
const MOST_KEPT: usize = 64;

/// What a request may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one argument.
    pub bulk: usize,
    /// Arguments of one request.
    pub arguments: usize,
    /// Bytes of one request.
    pub request: usize,
}

/// Why this is no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("too big inline request")]
    Inline,
    #[error("quotes in an inline request (send an array)")]
    Quotes,
    #[error("too big length line")]
    Line,
    #[error("invalid multibulk length")]
    Array,
    #[error("invalid bulk length")]
    Bulk,
    #[error("expected '$', got '{}'", .0.escape_ascii())]
    NoBulk(u8),
    #[error("a bulk string does not end with CRLF")]
    NoEnd,
    #[error("too big request")]
    Request,
}

/// Bytes that came in, and the request that they begin with as far as it is known: what has been looked at is not
/// looked at again when more come in.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    /// Where the request begins, and what of it is known ends.
    start: usize,
    at: usize,
    arguments: Vec<Range<usize>>,
    /// Arguments that are still to come; `None` before the request's first line.
    left: Option<usize>,
    /// The length of the next one, if its line has come.
    bulk: Option<usize>,
}

impl Input {
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start == self.bytes.len() && self.left.is_none() {
            self.bytes.clear();
            (self.start, self.at) = (0, 0);
        }
        self.reserve(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes of memory that it takes, filled or not.
    pub fn held(&self) -> usize {
        self.bytes.capacity() + self.arguments.capacity() * size_of::<Range<usize>>()
    }

    /// Room for more bytes: an eighth more than there is, so that bytes are seldom moved, but nothing beyond an argument
    /// whose length is known.
    fn reserve(&mut self, more: usize) {
        let needed = self.bytes.len() + more;
        if needed > self.bytes.capacity() {
            let end = self.bulk.map_or(usize::MAX, |len| self.at + len + 2);
            let wanted = needed + (self.bytes.capacity() / 8).min(end.saturating_sub(needed));
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
    }

    /// Whether there is a whole request: its arguments then are [`arguments`](Self::arguments), until
    /// [`done`](Self::done).
    pub fn next(&mut self, limits: &Limits) -> Result<bool, ProtocolError> {
        loop {
            let is_whole = match self.left {
                None => self.read_first_line(limits)?,
                Some(0) => return Ok(true),
                Some(left) => {
                    let read = self.read_argument(limits)?;
                    if read {
                        self.left = Some(left - 1);
                    }
                    read
                }
            };
            if self.at - self.start > limits.request {
                return Err(ProtocolError::Request);
            }
            if !is_whole {
                return Ok(false);
            }
        }
    }

    pub fn arguments(&self) -> Vec<&[u8]> {
        self.arguments.iter().map(|range| &self.bytes[range.clone()]).collect()
    }

    /// The request has been answered.
    pub fn done(&mut self) {
        self.skip();
        // What was answered goes when it is more than what is left: each byte is moved once on average.
        if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            (self.start, self.at) = (0, 0);
        }
        // So does the room that it took.
        if self.bytes.capacity() > MOST_LINE && self.bytes.len() < self.bytes.capacity() / 2 {
            self.bytes.shrink_to_fit();
        }
    }

    fn skip(&mut self) {
        self.start = self.at;
        self.left = None;
        self.arguments.clear();
        self.arguments.shrink_to(MOST_KEPT);
    }

    /// The first line: how many arguments there are, or all of them. Empty requests are skipped.
    fn read_first_line(&mut self, limits: &Limits) -> Result<bool, ProtocolError> {
        let is_array = match self.bytes.get(self.at) {
            None => return Ok(false),
            Some(&first) => first == b'*',
        };
        let too_long = if is_array { ProtocolError::Line } else { ProtocolError::Inline };
        let Some(line) = self.line(too_long)? else { return Ok(false) };
        if is_array {
            let count = self.announced(line).ok_or(ProtocolError::Array)?;
            if count > limits.arguments as i64 {
                return Err(ProtocolError::Array);
            }
            self.left = Some(count.max(0) as usize);
        } else {
            if self.bytes[line.clone()].iter().any(|byte| b"\"'".contains(byte)) {
                return Err(ProtocolError::Quotes);
            }
            self.arguments = words(&self.bytes, line);
            self.left = Some(0);
        }
        if self.left == Some(0) && self.arguments.is_empty() {
            self.skip();
        }
        Ok(true)
    }

    fn read_argument(&mut self, limits: &Limits) -> Result<bool, ProtocolError> {
        let len = match self.bulk {
            Some(len) => len,
            None => match self.bytes.get(self.at) {
                None => return Ok(false),
                Some(b'$') => {
                    let Some(line) = self.line(ProtocolError::Line)? else { return Ok(false) };
                    let len = self.announced(line).and_then(|len| usize::try_from(len).ok());
                    let len = len.filter(|&len| len <= limits.bulk).ok_or(ProtocolError::Bulk)?;
                    *self.bulk.insert(len)
                }
                Some(&other) => return Err(ProtocolError::NoBulk(other)),
            },
        };
        if self.at - self.start + len > limits.request {
            return Err(ProtocolError::Request);
        }
        let argument = self.at..self.at + len;
        match self.bytes.get(argument.end..argument.end + 2) {
            None => Ok(false),
            Some(b"\r\n") => {
                self.at = argument.end + 2;
                self.arguments.push(argument);
                self.bulk = None;
                Ok(true)
            }
            Some(_) => Err(ProtocolError::NoEnd),
        }
    }

    /// The number behind the first byte of a line that ends with CRLF.
    fn announced(&self, line: Range<usize>) -> Option<i64> {
        number(self.bytes[line.start + 1..line.end].strip_suffix(b"\r")?)
    }

    /// Takes a line, without its last byte, if it is there.
    fn line(&mut self, too_long: ProtocolError) -> Result<Option<Range<usize>>, ProtocolError> {
        let rest = &self.bytes[self.at..];
        let within = &rest[..rest.len().min(MOST_LINE)];
        match within.iter().position(|&byte| byte == b'\n') {
            Some(end) => {
                let line = self.at..self.at + end;
                self.at = line.end + 1;
                Ok(Some(line))
            }
            None if within.len() == MOST_LINE => Err(too_long),
            None => Ok(None),
        }
    }
}

/// The whole number that these bytes are. As in redis, each number has one spelling: `05`, `+5` and `-0` are none.
pub fn number(bytes: &[u8]) -> Option<i64> {
    match bytes {
        b"0" => Some(0),
        [b'1'..=b'9', ..] | [b'-', b'1'..=b'9', ..] => {
            std::str::from_utf8(bytes).ok()?.parse().ok()
        }
        _ => None,
    }
}

/// Words between blanks.
fn words(bytes: &[u8], line: Range<usize>) -> Vec<Range<usize>> {
    let mut words: Vec<Range<usize>> = Vec::new();
    for at in line {
        if bytes[at].is_ascii_whitespace() {
            continue;
        }
        match words.last_mut() {
            Some(word) if word.end == at => word.end += 1,
            _ => words.push(at..at + 1),
        }
    }
    words
}

/// Replies to be sent.
#[derive(Debug, Default)]
pub struct Reply {
    pub bytes: Vec<u8>,
    /// Bytes of strings that the reply to one request may still have.
    room: usize,
    /// Where that reply begins, and how many bytes of strings found no room in it.
    start: usize,
    lacking: usize,
    /// Maps, texts and what is not there are replied as such, rather than as arrays and strings.
    is_resp3: bool,
}

impl Reply {
    /// Replies from now on are in that version of the protocol.
    pub fn speak(&mut self, version: u8) {
        self.is_resp3 = version >= 3;
    }

    /// Begins the reply to one request, which has room for so many bytes of strings.
    pub fn begin(&mut self, room: usize) {
        (self.room, self.start, self.lacking) = (room, self.bytes.len(), 0);
    }

    /// Takes the reply back if there was no room for all of it. Returns how many bytes found none.
    pub fn reclaim(&mut self) -> Option<usize> {
        if self.lacking == 0 {
            return None;
        }
        self.bytes.truncate(self.start);
        Some(self.lacking)
    }

    /// Bytes of memory that it takes, filled or not.
    pub fn held(&self) -> usize {
        self.bytes.capacity()
    }

    /// A word that needs no length.
    pub fn simple(&mut self, word: &str) {
        self.line('+', word);
    }

    /// An error: a code, a blank, and what is wrong.
    pub fn error(&mut self, error: &str) {
        // What a client has sent may be part of it.
        self.line('-', &error.replace(['\r', '\n'], " "));
    }

    pub fn integer(&mut self, number: i64) {
        self.line(':', &number.to_string());
    }

    pub fn array(&mut self, len: usize) {
        self.line('*', &len.to_string());
    }

    pub fn bulk(&mut self, bytes: &[u8]) {
        self.string('$', bytes);
    }

    fn string(&mut self, kind: char, bytes: &[u8]) {
        let Some(room) = self.room.checked_sub(bytes.len()).filter(|_| self.lacking == 0) else {
            self.lacking = self.lacking.saturating_add(bytes.len());
            return;
        };
        self.room = room;
        if bytes.len() > MOST_LINE {
            // Long ones take what they need, not twice as much.
            self.bytes.reserve_exact(bytes.len() + MOST_HEAD);
        }
        self.line(kind, &bytes.len().to_string());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Of so many keys, each with its value behind it.
    pub fn map(&mut self, len: usize) {
        if self.is_resp3 {
            self.line('%', &len.to_string());
        } else {
            self.array(2 * len);
        }
    }

    /// So many that are there once, in no order.
    pub fn set(&mut self, len: usize) {
        self.line(if self.is_resp3 { '~' } else { '*' }, &len.to_string());
    }

    /// What people read.
    pub fn text(&mut self, text: &str) {
        if self.is_resp3 {
            self.string('=', &[b"txt:", text.as_bytes()].concat());
        } else {
            self.bulk(text.as_bytes());
        }
    }

    /// The value of a key that is not there.
    pub fn nil(&mut self) {
        if self.is_resp3 { self.line('_', "") } else { self.line('$', "-1") }
    }

    fn line(&mut self, kind: char, rest: &str) {
        self.bytes.push(kind as u8);
        self.bytes.extend_from_slice(rest.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { bulk: 1000, arguments: 10, request: 4000 };

    type Requests = Vec<Vec<Vec<u8>>>;

    /// What a parser makes of bytes that come in pieces, and the error that ends it.
    fn parsed(bytes: &[u8], piece: usize) -> (Requests, Option<ProtocolError>) {
        let (mut input, mut requests) = (Input::default(), Requests::new());
        for piece in bytes.chunks(piece) {
            input.push(piece);
            loop {
                match input.next(&LIMITS) {
                    Ok(true) => {
                        requests.push(input.arguments().iter().map(|a| a.to_vec()).collect());
                    }
                    Ok(false) => break,
                    Err(error) => return (requests, Some(error)),
                }
                input.done();
            }
        }
        (requests, None)
    }

    fn encoded(requests: &Requests) -> Vec<u8> {
        let mut reply = Reply::default();
        reply.begin(usize::MAX);
        for request in requests {
            reply.array(request.len());
            request.iter().for_each(|argument| reply.bulk(argument));
        }
        reply.bytes
    }

    #[test]
    fn what_is_no_request_is_named() {
        let long = [b"*".as_slice(), &[b'1'; 70_000]].concat();
        let many = format!("*9\r\n{}", "$900\r\n".to_owned() + &"x".repeat(900) + "\r\n").repeat(1);
        let many = many.clone() + &many[4..].repeat(8);
        let cases: [(&[u8], ProtocolError); 20] = [
            (b"*01\r\n", ProtocolError::Array),
            (b"*1\n", ProtocolError::Array),
            (b"*-0\r\n", ProtocolError::Array),
            (b"*1\r\n$04\r\nPING\r\n", ProtocolError::Bulk),
            (b"*1\r\n$4\nPING\r\n", ProtocolError::Bulk),
            (b"SET a \"b c\"\r\n", ProtocolError::Quotes),
            (b"*11\r\n", ProtocolError::Array),
            (b"*x\r\n", ProtocolError::Array),
            (b"*\r\n", ProtocolError::Array),
            (b"*99999999999999999999\r\n", ProtocolError::Array),
            (b"*1\r\n$1001\r\n", ProtocolError::Bulk),
            (b"*1\r\n$-1\r\n", ProtocolError::Bulk),
            (b"*1\r\n$+1\r\n", ProtocolError::Bulk),
            (b"*1\r\n$18446744073709551615\r\n", ProtocolError::Bulk),
            (b"*1\r\n:1\r\n", ProtocolError::NoBulk(b':')),
            (b"*1\r\n\r\n", ProtocolError::NoBulk(b'\r')),
            (b"*1\r\n$1\r\nabc", ProtocolError::NoEnd),
            (&long, ProtocolError::Line),
            (&long[1..], ProtocolError::Inline),
            (many.as_bytes(), ProtocolError::Request),
        ];
        for (bytes, expected) in cases {
            for piece in [13, bytes.len()].into_iter().chain((bytes.len() < 100).then_some(1)) {
                let (requests, error) = parsed(bytes, piece);
                assert_eq!((requests.len(), error), (0, Some(expected.clone())), "{bytes:.20?}");
            }
        }
    }

    #[test]
    fn lines_are_requests() {
        let bytes = b"PING\r\n\r\n  SET a\tb \n*0\r\n*-1\r\nGET a\r\n*1\r\n$0\r\n\r\nunfinished";
        let expected: &[&[&str]] = &[&["PING"], &["SET", "a", "b"], &["GET", "a"], &[""]];
        for piece in 1..bytes.len() {
            let (requests, error) = parsed(bytes, piece);
            assert_eq!(error, None);
            assert!(requests.iter().map(Vec::len).eq(expected.iter().map(|words| words.len())));
            let words = requests.iter().flatten().map(Vec::as_slice);
            assert!(words.eq(expected.iter().copied().flatten().map(|word| word.as_bytes())));
        }
    }

    #[test]
    fn errors_are_one_line() {
        let mut reply = Reply::default();
        reply.error("ERR a\r\n+OK\r\n");
        assert_eq!(reply.bytes, b"-ERR a  +OK  \r\n");
    }

    #[test]
    fn a_reply_without_room_is_taken_back() {
        let mut reply = Reply::default();
        reply.begin(3);
        reply.bulk(b"abc");
        assert_eq!(reply.reclaim(), None);
        reply.begin(3);
        reply.array(3);
        [b"ab".as_slice(), b"cd", b"e"].into_iter().for_each(|bytes| reply.bulk(bytes));
        assert_eq!(reply.reclaim(), Some(3));
        assert_eq!(reply.bytes, b"$3\r\nabc\r\n");
    }

    /// What is held follows what has come, not what was announced, and goes with the request.
    #[test]
    fn no_more_is_held_than_has_come() {
        let (len, limits) = (4 << 20, Limits { bulk: 8 << 20, arguments: 10, request: 9 << 20 });
        let mut input = Input::default();
        input.push(format!("*1\r\n${len}\r\n").as_bytes());
        for come in (0..len).step_by(64 << 10) {
            assert!(!input.next(&limits).unwrap());
            input.push(&[b'x'; 64 << 10]);
            let held = input.held();
            assert!(held <= (come + (64 << 10)) * 9 / 8 + 1024, "{held} of {come}");
        }
        input.push(b"\r\n");
        assert!(input.next(&limits).unwrap() && input.held() <= len + 1024);
        input.done();
        assert!(input.held() <= 4096);
    }

    proptest! {
        #[test]
        fn requests_come_through(
            requests in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..10), 0..10),
            piece in 1..500_usize,
        ) {
            prop_assert_eq!(parsed(&encoded(&requests), piece), (requests, None));
        }

        /// Whatever comes, in whatever pieces, is taken in the same way, and nothing of it panics.
        #[test]
        fn pieces_make_no_difference(
            requests in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..5), 0..10),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            piece in 1..100_usize,
        ) {
            let mut bytes = encoded(&requests);
            for (at, byte) in damage {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            prop_assert_eq!(parsed(&bytes, piece), parsed(&bytes, usize::MAX));
        }

        #[test]
        fn noise_is_survived(bytes in prop::collection::vec(prop_oneof![
            any::<u8>(), Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1')], 0..200)) {
            parsed(&bytes, 9);
        }

        /// Each in one spelling, and what is not spelled so is no number.
        #[test]
        fn numbers_are_numbers(number_ in any::<i64>(), text in "[+ -]{0,2}[0-9]{0,20}") {
            prop_assert_eq!(number(number_.to_string().as_bytes()), Some(number_));
            if let Some(number) = number(text.as_bytes()) {
                prop_assert_eq!(number.to_string(), text);
            }
        }
    }
}
