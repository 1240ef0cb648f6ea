//! Chains of deltas against a plain model, and what is refused.

use std::fs::{self, File};
use std::io::{Cursor, Write};
use std::path::PathBuf;

use hugekit_delta::{
    BLOCK, Chain, DeltaError, Reader, Saved, Saving, SavingChanges, StateId, Writer, apply,
    inspect, merge,
};
use proptest::prelude::*;
use tempfile::TempDir;

mod colliding;

/// A chain that is saved to files in a folder, or to memory.
enum Saver {
    Files(Folder),
    Stream(Chain),
}

struct Folder {
    chain: Chain,
    folder: TempDir,
    saved: usize,
}

impl Folder {
    fn new(length: usize) -> Self {
        Self { chain: Chain::new(length as u64), folder: tempfile::tempdir().unwrap(), saved: 0 }
    }

    fn path(&self, number: usize) -> PathBuf {
        self.folder.path().join(number.to_string())
    }

    /// As most programs open what they write: not for reading.
    fn next(&mut self) -> (PathBuf, File) {
        self.saved += 1;
        let path = self.path(self.saved - 1);
        (path.clone(), File::create(path).unwrap())
    }
}

impl Saver {
    fn each(length: usize) -> [Self; 2] {
        let stream = Chain::new(length as u64);
        [Self::Files(Folder::new(length)), Self::Stream(stream)]
    }

    /// A delta of this state.
    fn saved(&mut self, state: &[u8]) -> (Vec<u8>, StateId) {
        // In pieces that are no multiples of blocks.
        fn write<W: Write>(mut saving: Saving<'_, W>, state: &[u8]) -> Saved {
            state.chunks(7001).for_each(|part| saving.write_all(part).unwrap());
            saving.finish().unwrap()
        }
        self.save(
            |chain, file| write(chain.save(file).unwrap(), state),
            |chain, out| write(chain.save_stream(out).unwrap(), state),
        )
    }

    /// A delta of these parts of the next state.
    fn saved_changes(&mut self, parts: &[(usize, &[u8])]) -> (Vec<u8>, StateId) {
        fn put<W: Write>(mut saving: SavingChanges<'_, W>, parts: &[(usize, &[u8])]) -> Saved {
            parts.iter().for_each(|&(offset, part)| saving.put(offset as u64, part).unwrap());
            saving.finish().unwrap()
        }
        self.save(
            |chain, file| put(chain.save_changes(file).unwrap(), parts),
            |chain, out| put(chain.save_changes_stream(out).unwrap(), parts),
        )
    }

    fn save(
        &mut self,
        to_file: impl FnOnce(&mut Chain, &File) -> Saved,
        to_memory: impl FnOnce(&mut Chain, &mut Vec<u8>) -> Saved,
    ) -> (Vec<u8>, StateId) {
        let (delta, saved) = match self {
            Self::Files(files) => {
                let (path, file) = files.next();
                let saved = to_file(&mut files.chain, &file);
                (fs::read(path).unwrap(), saved)
            }
            Self::Stream(chain) => {
                let mut delta = Vec::new();
                let saved = to_memory(chain, &mut delta);
                (delta, saved)
            }
        };
        assert_eq!(saved.written, delta.len() as u64);
        (delta, saved.state)
    }

    fn begin_anew(&mut self) {
        match self {
            Self::Files(files) => files.chain.begin_anew(),
            Self::Stream(chain) => chain.begin_anew(),
        }
    }
}

/// Each state, and the delta that leads to it.
fn chain_of(states: &[Vec<u8>]) -> Vec<(Vec<u8>, StateId)> {
    let [mut saver, _] = Saver::each(states[0].len());
    states.iter().map(|state| saver.saved(state)).collect()
}

/// States that follow on each other by writes, of zeroes too.
fn states() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let writes = proptest::collection::vec((0..20_usize * BLOCK, 1..3 * BLOCK, 0..3_u8), 0..6);
    (0..20 * BLOCK, proptest::collection::vec(writes, 1..6)).prop_map(|(len, steps)| {
        let mut state = vec![0; len];
        let mut states = Vec::new();
        for step in steps {
            for (start, count, value) in step {
                let start = start.min(len);
                state[start..(start + count).min(len)].fill(value);
            }
            states.push(state.clone());
        }
        states
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chain_applied_in_order_gives_each_state(states in states()) {
        for mut saver in Saver::each(states[0].len()) {
            let mut restored = vec![7; states[0].len()];
            let mut current = None;
            for state in &states {
                let (delta, id) = saver.saved(state);
                current = Some(apply(&mut restored, current, &mut Cursor::new(&delta)).unwrap());
                prop_assert_eq!(current, Some(id));
                prop_assert_eq!(&restored, state);
            }
        }
    }

    #[test]
    fn chain_of_what_may_have_changed_gives_each_state(
        states in states(),
        cuts in proptest::collection::vec(0..20_usize * BLOCK, 0..8),
    ) {
        let len = states[0].len();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(len)).chain([0, len]).collect();
        cuts.sort_unstable();
        for mut saver in Saver::each(len) {
            let (mut restored, mut current) = (vec![7; len], None);
            let mut before: Option<&Vec<u8>> = None;
            for state in &states {
                let is_given = |part: &std::ops::Range<usize>| {
                    let is_same = before.is_some_and(|before| before[part.clone()] == state[part.clone()]);
                    // Of what is the same, some is given all the same.
                    !is_same || part.start.is_multiple_of(2)
                };
                let parts = cuts.windows(2).map(|cut| cut[0]..cut[1]).filter(is_given);
                let parts: Vec<_> = parts.map(|part| (part.start, &state[part])).collect();
                let (delta, _) = saver.saved_changes(&parts);
                current = Some(apply(&mut restored, current, &mut Cursor::new(&delta)).unwrap());
                prop_assert_eq!(&restored, state);
                before = Some(state);
            }
        }
    }

    #[test]
    fn merged_part_of_a_chain_leads_where_the_part_does(states in states(), from in 0..6_usize, to in 0..6_usize) {
        let chain = chain_of(&states);
        let (from, to) = (from % chain.len(), to % chain.len());
        prop_assume!(from <= to);
        let mut merged = Vec::new();
        let part = chain[from..=to].iter().map(|(delta, _)| Cursor::new(delta)).collect();
        let id = merge(part, &mut merged).unwrap();
        prop_assert_eq!(id, chain[to].1);
        let (mut restored, base) = match from {
            0 => (vec![7; states[0].len()], None),
            _ => (states[from - 1].clone(), Some(chain[from - 1].1)),
        };
        prop_assert_eq!(apply(&mut restored, base, &mut Cursor::new(&merged)).unwrap(), id);
        prop_assert_eq!(&restored, &states[to]);
    }

    #[test]
    fn damaged_byte_is_refused_before_anything_changes(states in states(), at: usize, flip in 1..=255_u8) {
        let mut delta = chain_of(&states).remove(0).0;
        let at = at % delta.len();
        delta[at] ^= flip;
        let mut restored = vec![7; states[0].len()];
        let error = apply(&mut restored, None, &mut Cursor::new(&delta)).unwrap_err();
        prop_assert!(restored.iter().all(|&byte| byte == 7));
        match error {
            DeltaError::Damaged { at: place, .. } => prop_assert!(place <= at as u64),
            DeltaError::Truncated { at: place } => prop_assert_eq!(place, delta.len() as u64),
            DeltaError::NoDelta => prop_assert!(at < 8),
            DeltaError::Newer { .. } => prop_assert!((8..12).contains(&at)),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn delta_that_is_cut_off_is_refused_with_its_end(states in states(), at: usize) {
        let mut delta = chain_of(&states).remove(0).0;
        delta.truncate(at % delta.len());
        match inspect(&delta[..]).unwrap_err() {
            DeltaError::Truncated { at } => prop_assert_eq!(at, delta.len() as u64),
            DeltaError::NoDelta => prop_assert!(delta.len() < 8),
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

#[test]
fn delta_holds_what_has_changed_and_no_more() {
    for mut saver in Saver::each(64 * BLOCK) {
        let mut state = vec![1; 64 * BLOCK];
        assert!(saver.saved(&state).0.len() > 64 * BLOCK);
        state[10 * BLOCK + 5] = 2;
        state[20 * BLOCK..22 * BLOCK].fill(0);
        let (delta, _) = saver.saved(&state);
        let contents = inspect(&delta[..]).unwrap();
        assert_eq!(
            (contents.changes, contents.bytes, contents.zeroes),
            (3, BLOCK as u64, 2 * BLOCK as u64)
        );
        assert_eq!(contents.size, delta.len() as u64);
        let (nothing, _) = saver.saved(&state);
        assert_eq!(inspect(&nothing[..]).unwrap().changes, 0);
        saver.begin_anew();
        let (full, _) = saver.saved(&state);
        assert_eq!(inspect(&full[..]).unwrap().header.base, None);
        assert!(full.len() < 63 * BLOCK, "zeroes are left out");
        let (nothing, _) = saver.saved(&state);
        assert_eq!(inspect(&nothing[..]).unwrap().changes, 0);
    }
}

#[test]
fn delta_of_another_base_or_length_or_out_of_order_is_refused() {
    let states: Vec<Vec<u8>> = (1..5).map(|value| vec![value; BLOCK]).collect();
    let chain = chain_of(&states);
    let mut restored = states[0].clone();
    let error = apply(&mut restored, Some(chain[0].1), &mut Cursor::new(&chain[2].0)).unwrap_err();
    assert!(
        matches!(error, DeltaError::OtherBase { expected, found } if expected == chain[1].1 && found == Some(chain[0].1))
    );
    let error = apply(&mut restored, None, &mut Cursor::new(&chain[1].0)).unwrap_err();
    assert!(matches!(error, DeltaError::OtherBase { found: None, .. }));
    let error = apply(&mut vec![0; 5], None, &mut Cursor::new(&chain[0].0)).unwrap_err();
    assert!(matches!(error, DeltaError::OtherLength { state: 5, .. }));
    assert_eq!(restored, states[0]);
    let mut out = Vec::new();
    let part = [1, 3].map(|index: usize| Cursor::new(&chain[index].0)).into();
    assert!(matches!(merge(part, &mut out), Err(DeltaError::OtherBase { .. })));
    assert!(inspect(&out[..]).is_err(), "what was written is no delta");
    assert!(matches!(merge(Vec::<&[u8]>::new(), Vec::new()), Err(DeltaError::Nothing)));
}

#[test]
fn writer_refuses_changes_out_of_order_and_beyond() {
    let mut writer = Writer::new(Vec::new(), 100, None).unwrap();
    writer.bytes(10, &[1; 10]).unwrap();
    for (offset, len) in [(19, 1), (95, 6), (u64::MAX, 2), (101, 0)] {
        assert!(
            matches!(writer.zeroes(offset, len), Err(DeltaError::OutOfOrder { .. })),
            "{offset}"
        );
    }
    writer.zeroes(20, 80).unwrap();
}

#[test]
fn state_of_another_length_is_not_saved_and_the_chain_stays() {
    let mut chain = Chain::new(10);
    let mut saving = chain.save_stream(Vec::new()).unwrap();
    saving.write_all(&[1; 9]).unwrap();
    assert!(matches!(saving.finish(), Err(DeltaError::NotWhole { given: 9, length: 10 })));
    let mut saving = chain.save_stream(Vec::new()).unwrap();
    assert!(saving.write_all(&[1; 11]).is_err());
    assert!(saving.finish().is_err());
    assert_eq!(chain.state(), None);
}

#[test]
fn changes_out_of_order_or_not_all_of_a_first_state_are_refused() {
    let mut chain = Chain::new(100);
    let mut saving = chain.save_changes_stream(Vec::new()).unwrap();
    saving.put(10, &[1; 10]).unwrap();
    for (offset, len) in [(19, 1), (99, 2), (u64::MAX, 1)] {
        assert!(saving.put(offset, &vec![1; len]).is_err(), "{offset}");
    }
    assert!(matches!(saving.finish(), Err(DeltaError::NotWhole { given: 10, length: 100 })));
    let mut saving = chain.save_stream(Vec::new()).unwrap();
    saving.write_all(&[1; 100]).unwrap();
    let first = saving.finish().unwrap().state;
    let mut saving = chain.save_changes_stream(Vec::new()).unwrap();
    saving.put(10, &[2; 10]).unwrap();
    assert!(saving.put(0, &[3; 10]).is_err());
    assert!(saving.finish().is_err(), "not without what was refused");
    assert_eq!(chain.state(), Some(first));
}

#[test]
fn chain_goes_on_in_another_process() {
    for mut saver in Saver::each(10 * BLOCK + 17) {
        let mut state: Vec<u8> = (0..10 * BLOCK + 17).map(|index| (index / 100) as u8).collect();
        state[3 * BLOCK..5 * BLOCK].fill(0);
        saver.saved(&state);
        state[7 * BLOCK] += 1;
        let (_, id) = saver.saved_changes(&[(7 * BLOCK, &state[7 * BLOCK..8 * BLOCK])]);
        let mut resumed = match saver {
            Saver::Files(mut files) => {
                let opened = (0..files.saved).map(|number| File::open(files.path(number)).unwrap());
                files.chain = Chain::resume(opened).unwrap();
                assert_eq!(files.chain.state(), Some(id));
                Saver::Files(files)
            }
            Saver::Stream(_) => {
                let length = state.len() as u64;
                let short = Chain::resume_stream(length + 1, id, &state[..]);
                assert!(matches!(short, Err(DeltaError::NotWhole { .. })));
                let long = Chain::resume_stream(length - 1, id, &state[..]);
                assert!(matches!(long, Err(DeltaError::NotWhole { .. })));
                Saver::Stream(Chain::resume_stream(length, id, &state[..]).unwrap())
            }
        };
        state[5] = 99;
        let (delta, _) = resumed.saved(&state);
        let contents = inspect(&delta[..]).unwrap();
        assert_eq!((contents.header.base, contents.bytes), (Some(id), BLOCK as u64));
    }
}

#[test]
fn reader_gives_no_change_twice_and_ends() {
    let mut writer = Writer::new(Vec::new(), 10, None).unwrap();
    writer.bytes(0, &[]).unwrap();
    writer.bytes(3, &[4, 5]).unwrap();
    let mut delta = Vec::new();
    let mut again = Writer::new(&mut delta, 10, None).unwrap();
    again.bytes(3, &[4, 5]).unwrap();
    let again_written = again.written();
    let id = again.finish().unwrap();
    assert_eq!(writer.written(), again_written, "nothing is no change");
    assert_ne!(writer.finish().unwrap(), id, "two states have two names, whatever their bytes");
    let mut reader = Reader::new(&delta[..]).unwrap();
    let change = reader.next().unwrap().unwrap();
    assert_eq!((change.offset(), change.len()), (3, 2));
    assert!(reader.next().unwrap().is_none() && reader.next().unwrap().is_none());
    assert_eq!(reader.finish().unwrap(), id);
}

/// Of a hash that chains went by once, nine of ten lost an update here.
#[test]
fn client_who_chooses_bytes_hides_no_change() {
    let versions = colliding::versions(4096, 0);
    let of_seed = |seed: u64| {
        let hash = |block: &[u8]| twox_hash::XxHash3_128::oneshot_with_seed(seed, block);
        let [one, other] = versions.each_ref().map(|state| state.chunks(BLOCK).map(hash));
        one.zip(other).filter(|(one, other)| one == other).count()
    };
    let seeds = (0..16_u64).map(|seed| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let attacked = seeds.filter(|&seed| of_seed(seed) > 0).count();
    assert!(attacked >= 8, "it is an attack on XXH3: {attacked} of 16 seeds");
    for _ in 0..4 {
        for mut saver in Saver::each(versions[0].len()) {
            let (mut restored, mut state) = (vec![0; versions[0].len()], None);
            for version in &versions {
                let (delta, _) = saver.saved(version);
                state = Some(apply(&mut restored, state, &mut Cursor::new(delta)).unwrap());
                assert!(restored == *version);
            }
        }
    }
}
