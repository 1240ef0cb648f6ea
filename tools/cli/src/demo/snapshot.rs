//! A state that is saved while its owner goes on writing.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use hugekit::{Pool, SharedRegion, Snapshot};
use hugekit_machine::size::Size;

use super::helper::Wrong;
use super::ways::Ways;
use hugekit_terminal::outcome::Remedied;

/// Each step of the owner's writes the number of the step into one block of this size.
pub(super) const BLOCK: usize = 4096;

/// Steps before a save, and how far apart their blocks are: a prime, so that all blocks come to be written.
pub(super) const BEFORE: u64 = 10_000;
const APART: u64 = 7919;

pub(super) fn run(bytes: usize) -> anyhow::Result<Ways> {
    let pool = Pool::builder(2 * bytes).build()?;
    let mut owner = MemoryOwner::new(&pool, bytes)?;
    let mut copy = vec![1_u8; bytes];
    let mut file = tempfile::tempfile().context("no file to save to")?;
    let about = format!(
        "{} are saved to a file while their owner continues to write. The time is the owner's \
         longest step until the file is complete. Every file is compared with the memory as it was.",
        Size(bytes)
    );
    let ways = [
        ("the owner stops and writes the file", ""),
        ("it copies, a thread writes the copy", ""),
        (
            "Snapshot::of_region(), a thread writes",
            "the first write to each 2 MiB or less copies these bytes aside.",
        ),
    ];
    Ways::in_turn(about, &ways, |way| {
        (0..BEFORE).for_each(|_| owner.step());
        let steps = owner.steps;
        let longest = match way {
            0 => owner.stop_and_write(&mut file),
            1 => owner.copy_and_write(&mut copy, &mut file),
            _ => owner.snapshot_and_write(&mut file),
        }?;
        compare(&mut file, steps, owner.blocks())?;
        Ok(longest)
    })
}

/// A program that writes its state, step by step.
pub(super) struct MemoryOwner {
    state: SharedRegion,
    pub(super) steps: u64,
}

impl MemoryOwner {
    pub(super) fn new(pool: &Pool, bytes: usize) -> anyhow::Result<Self> {
        Ok(Self { state: pool.region(bytes)?.share(), steps: 0 })
    }

    pub(super) fn blocks(&self) -> u64 {
        (self.state.len() / BLOCK) as u64
    }

    pub(super) fn step(&mut self) {
        self.steps += 1;
        let block = block_of(self.steps, self.blocks());
        let at = block as usize * BLOCK;
        self.state.write_at(at, &self.steps.to_ne_bytes()).expect("within the state");
    }

    fn stop_and_write(&mut self, file: &mut File) -> anyhow::Result<Duration> {
        let start = Instant::now();
        file.rewind()?;
        let mut piece = vec![0_u8; 1 << 20];
        for at in (0..self.state.len()).step_by(piece.len()) {
            let piece = &mut piece[..(self.state.len() - at).min(1 << 20)];
            self.state.read_at(at, piece)?;
            file.write_all(piece)?;
        }
        Ok(start.elapsed())
    }

    fn copy_and_write(&mut self, copy: &mut [u8], file: &mut File) -> anyhow::Result<Duration> {
        let start = Instant::now();
        self.state.read_at(0, copy)?;
        let stopped = start.elapsed();
        file.rewind()?;
        let longest = self.longest_step_while(|| Ok(file.write_all(copy)?))?;
        Ok(stopped.max(longest))
    }

    pub(super) fn snapshot_and_write(&mut self, file: &mut File) -> anyhow::Result<Duration> {
        let start = Instant::now();
        let snapshot = Snapshot::of_region(&self.state).map_err(|error| {
            let remedy = error.remedy();
            Remedied::error(error, remedy)
        })?;
        let stopped = start.elapsed();
        file.rewind()?;
        let longest = self.longest_step_while(|| save(snapshot, file))?;
        Ok(stopped.max(longest))
    }

    /// Steps while another thread saves.
    fn longest_step_while(
        &mut self,
        save: impl FnOnce() -> anyhow::Result<()> + Send,
    ) -> anyhow::Result<Duration> {
        thread::scope(|scope| {
            let saver = thread::Builder::new().spawn_scoped(scope, save);
            let saver = saver.context("no thread to save with")?;
            let mut longest = Duration::ZERO;
            while !saver.is_finished() {
                let start = Instant::now();
                self.step();
                longest = longest.max(start.elapsed());
            }
            saver.join().expect("a save does not panic").map(|()| longest)
        })
    }
}

/// Returns the block that a step writes to.
pub(super) fn block_of(step: u64, blocks: u64) -> u64 {
    step * APART % blocks
}

fn save(snapshot: Snapshot, file: &mut File) -> anyhow::Result<()> {
    snapshot.write_to(file)?;
    Ok(())
}

/// Checks that the file contains each block as it was after this many steps.
pub(super) fn compare(file: &mut File, steps: u64, blocks: u64) -> anyhow::Result<()> {
    let mut expected = vec![0_u64; usize::try_from(blocks)?];
    for step in 1..=steps {
        expected[block_of(step, blocks) as usize] = step;
    }
    file.rewind()?;
    let mut block = [0_u8; BLOCK];
    for (number, expected) in expected.into_iter().enumerate() {
        file.read_exact(&mut block)?;
        let (step, rest) = block.split_at(size_of::<u64>());
        if step != expected.to_ne_bytes() {
            return Err(Wrong(format!("block {number} was saved of another moment")).into());
        }
        if rest.iter().any(|&byte| byte != 0) {
            return Err(Wrong(format!("block {number} has bytes that were not written")).into());
        }
    }
    Ok(())
}
