//! Deltas: whatever is not refused can be written again, and leads to the same bytes.

use std::io::Cursor;

use hugekit_delta::{Change, Reader, Writer, apply, inspect, merge};

/// Longer states would be filled for nothing.
const LONGEST_STATE: u64 = 1 << 20;

pub(crate) fn run(bytes: &[u8]) {
    let Ok(contents) = inspect(bytes) else { return };
    let length = contents.header.length;
    if length > LONGEST_STATE {
        return;
    }
    let mut state = vec![7; length as usize];
    let led = apply(&mut state, contents.header.base, &mut Cursor::new(bytes)).unwrap();
    assert_eq!(led, contents.state);
    let mut again = Vec::new();
    rewrite(bytes, &mut again);
    let mut other = vec![7; length as usize];
    apply(&mut other, contents.header.base, &mut Cursor::new(&again)).unwrap();
    assert!(state == other);
    let mut merged = Vec::new();
    assert_eq!(merge(vec![bytes], &mut merged).unwrap(), led);
    let mut other = vec![7; length as usize];
    assert_eq!(apply(&mut other, contents.header.base, &mut Cursor::new(&merged)).unwrap(), led);
    assert!(state == other);
}

fn rewrite(bytes: &[u8], to: &mut Vec<u8>) {
    let mut reader = Reader::new(bytes).unwrap();
    let header = reader.header();
    let mut writer = Writer::new(to, header.length, header.base).unwrap();
    while let Some(change) = reader.next().unwrap() {
        match change {
            Change::Bytes { offset, bytes } => writer.bytes(offset, bytes).unwrap(),
            Change::Zeroes { offset, len } => writer.zeroes(offset, len).unwrap(),
        }
    }
    writer.finish().unwrap();
}
