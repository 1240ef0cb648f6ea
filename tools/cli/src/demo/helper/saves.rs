//! A program that saves its memory to a file while it goes on writing: by `fork(2)`, and by a snapshot.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Seek, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hugekit::Pool;
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, waitpid};

use super::super::snapshot::{BEFORE, BLOCK, MemoryOwner, block_of, compare};
use super::memory::HelperMemory;
use super::{HelperLine, say};

/// Saves each way, in turn.
const ROUNDS: usize = 3;

/// Words of a block.
const WORDS: usize = BLOCK / size_of::<u64>();

/// Each time is the program's longest step until the file is complete.
pub(super) fn run(bytes: usize) -> anyhow::Result<()> {
    let mut file = tempfile::tempfile().context("no file to save to")?;
    let mut forking = Forking::new(bytes)?;
    let pool = Pool::builder(2 * bytes).build()?;
    let mut owner = MemoryOwner::new(&pool, bytes)?;
    for _ in 0..ROUNDS {
        (0..BEFORE).for_each(|_| forking.step());
        let steps = forking.steps;
        let time = forking.fork_and_write(&mut file)?;
        compare(&mut file, steps, forking.blocks())?;
        say(&HelperLine::Took { way: 0, time })?;

        (0..BEFORE).for_each(|_| owner.step());
        let steps = owner.steps;
        let time = owner.snapshot_and_write(&mut file)?;
        compare(&mut file, steps, owner.blocks())?;
        say(&HelperLine::Took { way: 1, time })?;
    }
    Ok(())
}

/// A program without hugekit, which makes the same steps.
struct Forking {
    state: HelperMemory,
    steps: u64,
}

impl Forking {
    fn new(bytes: usize) -> anyhow::Result<Self> {
        let mut state = HelperMemory::anonymous(bytes)?;
        state.fill(0);
        Ok(Self { state, steps: 0 })
    }

    fn blocks(&self) -> u64 {
        (self.state.len() / WORDS) as u64
    }

    fn step(&mut self) {
        self.steps += 1;
        let block = block_of(self.steps, self.blocks()) as usize;
        self.state[block * WORDS] = self.steps;
    }

    fn fork_and_write(&mut self, file: &mut File) -> anyhow::Result<Duration> {
        file.rewind()?;
        let began = Instant::now();
        let child = forked(|| file.write_all(self.state.bytes()).is_ok());
        let mut longest = began.elapsed();
        let child = child.context("it cannot fork")?;
        loop {
            let ended = waitpid(Some(child), WaitOptions::NOHANG)?;
            if let Some((_, status)) = ended {
                ensure!(status.exit_status() == Some(0), "the forked child cannot save");
                return Ok(longest);
            }
            let began = Instant::now();
            self.step();
            longest = longest.max(began.elapsed());
        }
    }
}

/// A child that does `work`, which neither allocates nor takes a lock, and ends; it ends with this process, too.
fn forked(work: impl FnOnce() -> bool) -> io::Result<Pid> {
    // SAFETY: the child makes system calls, and leaves by `_exit`: other threads may hold locks.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        let failed = !work();
        // SAFETY: runs no destructor and takes no lock.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    let child = Pid::from_raw(child).filter(|child| child.as_raw_pid() > 0);
    child.ok_or_else(io::Error::last_os_error)
}
