//! Deltas that claim much and have little: what they are applied to takes no more than they have.

use std::fs::{self, File};
use std::io::Cursor;
use std::os::unix::fs::{FileExt, MetadataExt};

use hugekit_delta::{Target, Writer, apply, merge};

/// A full delta with bytes at these offsets, one each, and zeroes from the last one on.
fn sparse(length: u64, offsets: &[u64]) -> Vec<u8> {
    let mut delta = Vec::new();
    let mut writer = Writer::new(&mut delta, length, None).unwrap();
    offsets.iter().for_each(|&offset| writer.bytes(offset, &[1]).unwrap());
    let behind = offsets.last().map_or(0, |last| last + 1);
    writer.zeroes(behind, length - behind).unwrap();
    writer.finish().unwrap();
    delta
}

/// Bytes of this process's memory that are there.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn delta_applied_to_fresh_memory_populates_what_it_has() {
    const LENGTH: usize = 1 << 30;
    let delta = sparse(LENGTH as u64, &[5, 1 << 29]);
    let (mut memory, before) = (vec![0; LENGTH], resident());
    apply(&mut memory, None, &mut Cursor::new(&delta)).unwrap();
    assert_eq!((memory[5], memory[1 << 29]), (1, 1));
    let populated = resident().saturating_sub(before);
    assert!(populated < 64 << 20, "{populated}");
}

#[test]
fn delta_applied_to_a_file_takes_room_for_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    // As long as no file can be, as long as one can on most file systems, and short.
    for length in [1 << 62, 1 << 43, 1 << 30] {
        let path = folder.path().join("image");
        let mut image =
            File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        if let Err(error) = image.set_len(length) {
            println!("no file of {length} bytes: {error}");
            continue;
        }
        // A byte of the state before that is gone.
        image.put(length / 2 + 5, &[7]).unwrap();
        let delta = sparse(length, &[0, length / 2]);
        apply(&mut image, None, &mut Cursor::new(&delta)).unwrap();
        let found = image.metadata().unwrap();
        assert_eq!(found.len(), length);
        assert!(found.blocks() * 512 < 1 << 20, "{} of {length}", found.blocks());
        let mut byte = [9; 6];
        image.read_exact_at(&mut byte, length / 2).unwrap();
        assert_eq!(byte, [1, 0, 0, 0, 0, 0]);
    }
}

/// A long piece under as many short ones as fit: each is looked at once.
#[test]
fn merge_of_many_small_pieces_over_a_long_one_ends() {
    const LENGTH: usize = 2 << 20;
    let mut state = vec![2_u8; LENGTH];
    let mut full = Vec::new();
    let mut writer = Writer::new(&mut full, LENGTH as u64, None).unwrap();
    writer.bytes(0, &state).unwrap();
    let base = writer.finish().unwrap();
    let mut small = Vec::new();
    let mut writer = Writer::new(&mut small, LENGTH as u64, Some(base)).unwrap();
    for offset in (0..LENGTH).step_by(2) {
        writer.bytes(offset as u64, &[1]).unwrap();
        state[offset] = 1;
    }
    writer.finish().unwrap();
    let mut merged = Vec::new();
    merge(vec![&full[..], &small[..]], &mut merged).unwrap();
    let mut restored = vec![0; LENGTH];
    apply(&mut restored, None, &mut Cursor::new(merged)).unwrap();
    assert!(restored == state);
}
