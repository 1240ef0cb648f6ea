//! A program with much memory that forks, as an in-memory database does to save.
#![allow(unsafe_code)]

use std::io::{self, BufRead};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};

use super::memory::{HelperMemory, PAGE};
use super::{HelperLine, Wrong, say};
use hugekit_terminal::outcome::Remedied;

/// Reads orders until the tour closes standard input.
pub(super) fn run(bytes: usize) -> anyhow::Result<()> {
    let mut program = ForkingProgram::new(bytes)?;
    say(&HelperLine::Ready)?;
    for order in io::stdin().lock().lines() {
        let said = match order?.as_str() {
            "fork" => HelperLine::Took { way: 0, time: program.fork()? },
            "collapse" => program.collapse().map(|()| HelperLine::Ready)?,
            "check" => program.check().map(|()| HelperLine::Right)?,
            other => bail!("an unknown order: {other}"),
        };
        say(&said)?;
    }
    Ok(())
}

struct ForkingProgram {
    memory: HelperMemory,
    /// Times that it wrote a word of each page.
    written: u64,
}

impl ForkingProgram {
    /// On base pages, as a server that loaded its data while there were no huge pages for it.
    fn new(bytes: usize) -> anyhow::Result<Self> {
        let mut memory = HelperMemory::anonymous(bytes)?;
        // Only of this process. If it is so for all that its user starts, it stays so.
        let is_disabled = transparent_huge_pages_are_disabled().unwrap_or(true);
        let _ = disable_transparent_huge_pages(true);
        memory.iter_mut().zip(0..).for_each(|(word, at)| *word = pattern_at(at));
        let _ = disable_transparent_huge_pages(is_disabled);
        Ok(Self { memory, written: 0 })
    }

    /// Forks, and returns how long `fork(2)` keeps it. It has written to every page since the last fork, as a server
    /// does between saves: pages that are write-protected already are copied faster.
    fn fork(&mut self) -> anyhow::Result<Duration> {
        self.written += 1;
        self.memory.chunks_mut(PAGE).for_each(|page| page[0] = self.written);
        time_of_fork().context("it cannot fork")
    }

    fn collapse(&mut self) -> anyhow::Result<()> {
        match self.memory.collapse() {
            Ok(_) => Ok(()),
            Err(Errno::INVAL) => Err(Remedied {
                message: "MADV_COLLAPSE is unknown to this kernel".to_owned(),
                remedy: "run Linux 6.1 or newer, with transparent huge pages".to_owned(),
            }
            .into()),
            Err(errno) => bail!("its memory cannot be put on huge pages: {errno}"),
        }
    }

    fn check(&self) -> anyhow::Result<()> {
        let is_right = |(word, at): (&u64, u64)| match at as usize % PAGE {
            0 if self.written > 0 => *word == self.written,
            _ => *word == pattern_at(at),
        };
        match self.memory.iter().zip(0..).filter(|&pair| !is_right(pair)).count() {
            0 => Ok(()),
            wrong => Err(Wrong(format!("{wrong} words of the program changed")).into()),
        }
    }
}

/// Returns the first value of the word of this number.
fn pattern_at(at: u64) -> u64 {
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Forks a child that ends at once.
fn time_of_fork() -> io::Result<Duration> {
    let began = Instant::now();
    // SAFETY: the child calls only `_exit`, which is async-signal-safe.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: runs no destructor and takes no lock.
        unsafe { libc::_exit(0) };
    }
    let took = began.elapsed();
    let child = Pid::from_raw(child).filter(|child| child.as_raw_pid() > 0);
    let child = child.ok_or_else(io::Error::last_os_error)?;
    retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))?;
    Ok(took)
}
