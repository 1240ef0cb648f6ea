//! Requests as clients send them: the first byte says in what pieces the others come.

use std::io::{ErrorKind, Read};

use kv_store::request::{Requests, Words};

/// Bytes of memory that a request may take.
const LONGEST: usize = 8000;

/// The pieces make no difference, and no request takes more memory than the limit.
pub(crate) fn run(bytes: &[u8]) {
    let Some((&piece, bytes)) = bytes.split_first() else { return };
    assert_eq!(read(bytes, usize::from(piece) + 1), read(bytes, usize::MAX));
}

/// Gives at most this many bytes at a time.
struct Pieces<'a>(&'a [u8], usize);

impl Read for Pieces<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let len = bytes.len().min(self.1);
        self.0.read(&mut bytes[..len])
    }
}

/// The requests, and why reading ended.
fn read(bytes: &[u8], piece: usize) -> (Vec<Words>, (ErrorKind, String)) {
    let mut requests = Requests::new(Pieces(bytes, piece), LONGEST);
    let mut all = Vec::new();
    loop {
        let held = |bytes| {
            assert!(bytes <= LONGEST, "{bytes} bytes are held");
            Ok(())
        };
        match requests.next(held) {
            Ok(words) => all.push(words),
            Err(error) => return (all, (error.kind(), error.to_string())),
        }
        assert!(all.last().is_some_and(|words| !words.is_empty()), "a request without words");
    }
}
