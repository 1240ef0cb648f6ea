//! Requests as clients send them: the first byte says in what pieces the others come.

use kv_store::resp::{Input, Limits};

const LIMITS: Limits = Limits { bulk: 3000, arguments: 100, request: 8000 };

/// Memory that one request, or a reader's start, may take beyond the bytes that have come.
const MOST_BESIDE: usize = 64 << 10;

/// The pieces make no difference, nothing beyond the limits is taken, and no more is held than has come.
pub(crate) fn run(bytes: &[u8]) {
    let Some((&piece, bytes)) = bytes.split_first() else { return };
    assert_eq!(read(bytes, usize::from(piece) + 1), read(bytes, usize::MAX));
}

/// The outcome of bytes in pieces: requests, and why reading ended.
fn read(bytes: &[u8], piece: usize) -> (Vec<Vec<Vec<u8>>>, Option<String>) {
    let (mut input, mut requests) = (Input::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        input.push(piece);
        loop {
            match input.next(&LIMITS) {
                Ok(true) => requests.push(taken(&input)),
                Ok(false) => break,
                Err(error) => return (requests, Some(error.to_string())),
            }
            input.done();
        }
        assert!(input.held() <= 2 * bytes.len() + MOST_BESIDE, "{} bytes are held", input.held());
    }
    (requests, None)
}

fn taken(input: &Input) -> Vec<Vec<u8>> {
    let arguments: Vec<Vec<u8>> = input.arguments().iter().map(|bytes| bytes.to_vec()).collect();
    // A line of words has a limit of its own.
    let is_line = arguments.len() > LIMITS.arguments;
    assert!(!arguments.is_empty() || is_line, "a request without words");
    arguments
}
