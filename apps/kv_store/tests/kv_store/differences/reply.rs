//! Replies of both servers, as bytes, and whether they are the same.

use std::fmt;
use std::io::{BufRead, Error, ErrorKind, Result};

/// One reply: its first line, the bytes of a string, the replies of a list.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reply {
    line: Vec<u8>,
    string: Vec<u8>,
    pub(super) parts: Vec<Reply>,
}

impl Reply {
    /// The next one; `None` if the connection was closed before it.
    pub(super) fn read(stream: &mut impl BufRead) -> Result<Option<Self>> {
        let mut reply = Self { line: Vec::new(), string: Vec::new(), parts: Vec::new() };
        match stream.read_until(b'\n', &mut reply.line) {
            Ok(0) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
            read => read?,
        };
        let strange = || Error::new(ErrorKind::InvalidData, format!("{reply:?} is no reply"));
        let text = reply.line.strip_suffix(b"\r\n").ok_or_else(strange)?;
        let number = || std::str::from_utf8(&text[1..]).ok()?.parse::<i64>().ok();
        let (len, parts) = match text.first() {
            Some(b'+' | b'-' | b':' | b'_') => (None, 0),
            Some(b'$' | b'=') => (number().ok_or_else(strange)?.try_into().ok(), 0),
            Some(b'*' | b'~') => (None, number().ok_or_else(strange)?),
            Some(b'%') => (None, 2 * number().ok_or_else(strange)?),
            _ => return Err(strange()),
        };
        if let Some(len) = len {
            let _: usize = len;
            reply.string.resize(len + 2, 0);
            stream.read_exact(&mut reply.string)?;
        }
        for _ in 0..parts {
            reply.parts.push(Self::read(stream)?.ok_or(ErrorKind::UnexpectedEof)?);
        }
        Ok(Some(reply))
    }

    pub(super) fn is_error(&self) -> bool {
        self.line.starts_with(b"-")
    }

    /// Whether what was sent is no request.
    pub(super) fn is_refusal(&self) -> bool {
        self.line.starts_with(b"-ERR Protocol error")
    }

    pub(super) fn is_queued(&self) -> bool {
        self.line == b"+QUEUED\r\n"
    }

    /// The string that it is, without its end.
    pub(super) fn bytes(&self) -> &[u8] {
        self.string.strip_suffix(b"\r\n").unwrap_or_default()
    }

    fn kind(&self) -> u8 {
        self.line[0]
    }

    fn number(&self) -> Option<i64> {
        let digits = self.line.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    fn sorted(&self) -> Vec<&Self> {
        let mut parts: Vec<&Self> = self.parts.iter().collect();
        parts.sort();
        parts
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, string, parts } = self;
        write!(formatter, "{}{}", line.escape_ascii(), string.escape_ascii())?;
        parts.iter().try_for_each(|part| write!(formatter, " {part:?}"))
    }
}

/// Whether both servers gave the same replies to what EXEC carried out.
pub(super) fn all_same(queue: &[Vec<Vec<u8>>], ours: &Reply, theirs: &Reply) -> bool {
    let mut parts = ours.parts.iter().zip(&theirs.parts);
    let alike =
        queue.iter().zip(&mut parts).all(|(words, (ours, theirs))| same(words, ours, theirs));
    ours.line == theirs.line && ours.parts.len() == queue.len() && alike
}

/// How far apart two clocks may be that are read one after the other, in milliseconds.
const MOST_BETWEEN: i64 = 100_000;

/// Whether both servers gave the same reply to this request: the same bytes, but for the differences that
/// `docs/snapshot.md` lists.
pub(super) fn same(words: &[Vec<u8>], ours: &Reply, theirs: &Reply) -> bool {
    if ours == theirs {
        return true;
    }
    if ours.is_error() && theirs.is_error() {
        let begins = |reply: &Reply, with| reply.line.starts_with(with);
        return OWN_ENDINGS.iter().any(|with| begins(ours, with) && begins(theirs, with));
    }
    if ours.is_error() || ours.kind() != theirs.kind() {
        return false;
    }
    match words[0].to_ascii_lowercase().as_slice() {
        b"ttl" | b"pttl" => {
            let (ours, theirs) = (ours.number().unwrap(), theirs.number().unwrap());
            ours > 0 && theirs > 0 && ours.abs_diff(theirs) < MOST_BETWEEN as u64
        }
        b"keys" => ours.sorted() == theirs.sorted(),
        b"scan" => {
            let [one, other] = [ours, theirs].map(|reply| &reply.parts[1]);
            ours.parts[0].kind() == theirs.parts[0].kind() && one.kind() == other.kind()
        }
        // Who it is, and which version.
        b"hello" => {
            let names = |reply: &Reply| {
                reply.parts.iter().step_by(2).map(|name| name.string.clone()).collect::<Vec<_>>()
            };
            let alike = [5, 9, 11, 13].iter().all(|&at| ours.parts[at] == theirs.parts[at]);
            ours.line == theirs.line && names(ours) == names(theirs) && alike
        }
        b"client" | b"command" | b"config" | b"info" | b"lastsave" => true,
        _ => false,
    }
}

/// Beginnings of errors that go on with what was sent, which this server escapes, or with which commands there are.
const OWN_ENDINGS: [&[u8]; 5] = [
    b"-ERR unknown command ",
    b"-ERR unknown subcommand ",
    b"-ERR Unsupported option ",
    b"-ERR Syntax error in HELLO option ",
    b"-ERR Unknown option ",
];
