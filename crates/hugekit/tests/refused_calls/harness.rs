//! Runs an operation in a child process for each system call that it makes and each answer that the call may give.
//!
//! A child dies of what it does wrong without taking the others along, hangs without holding them up, and begins
//! with nothing of this library set up: the first round of each is a cold one.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use hugekit::injection::{Lasting, Plan};
use libtest_mimic::Failed;

use crate::case::{self, Operation};

/// How long a child may take that nothing holds up; most take a hundredth of a second.
const PATIENCE: Duration = Duration::from_secs(40);

/// No operation makes as many calls.
const MOST_CALLS: u32 = 2000;

/// Problems of one operation that are reported.
const MOST_PROBLEMS: usize = 12;

/// Runs every case of an operation.
pub(crate) fn refuse_each_call(operation: Operation, thorough: bool) -> Result<(), Failed> {
    let clean = run(operation, None, "");
    let Some(expected) = clean.strip_prefix(case::FINE) else {
        return Err(format!("nothing is refused: {clean}").into());
    };
    let expected = expected.trim().to_owned();
    let mut problems = Vec::new();
    for lasting in [Lasting::Once, Lasting::Kind, Lasting::Filter] {
        refuse_each(operation, lasting, thorough, &expected, &mut problems);
    }
    match problems.len() {
        0 => Ok(()),
        count => {
            problems.truncate(MOST_PROBLEMS);
            Err(format!("{count} problems:\n{}", problems.join("\n")).into())
        }
    }
}

/// Later rounds say the same again.
fn shortened(said: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    said.trim().lines().for_each(|line| {
        if !lines.contains(&line) {
            lines.push(line);
        }
    });
    lines.truncate(40);
    lines.join("\n")
}

fn refuse_each(
    operation: Operation,
    lasting: Lasting,
    thorough: bool,
    expected: &str,
    problems: &mut Vec<String>,
) {
    for nth in 0..MOST_CALLS {
        for choice in 0.. {
            // Without the time for all, one answer after the other, each for another call.
            let choice = if thorough { choice } else { case::Choice::next(nth) };
            let said = run(operation, Some(Plan { nth, choice, lasting }), expected);
            match said.lines().next() {
                Some(case::NOT_REACHED) => return,
                Some(case::NO_SUCH_ANSWER) => break,
                Some(case::FINE) => {}
                _ => problems.push(format!("{lasting:?} {nth}.{choice}: {}", shortened(&said))),
            }
            if !thorough {
                break;
            }
        }
    }
    problems.push(format!("more than {MOST_CALLS} calls"));
}

/// What a child says of one plan.
fn run(operation: Operation, plan: Option<Plan>, expected: &str) -> String {
    let mut said = memfd();
    // SAFETY: the child runs hugekit, which promises to work there, and leaves by `_exit`; glibc keeps its
    // allocator usable across a fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        case::run(operation, plan, expected, said.as_raw_fd());
    }
    let ended = wait(child);
    let mut text = String::new();
    said.seek(SeekFrom::Start(0)).unwrap();
    said.read_to_string(&mut text).unwrap_or_default();
    match ended {
        Ok(0) => text,
        Ok(status) if libc::WIFSIGNALED(status) => {
            format!("died of signal {}: {text}", libc::WTERMSIG(status))
        }
        Ok(status) => format!("ended with {status:#x}: {text}"),
        Err(stacks) => format!("hangs: {text}\n{stacks}"),
    }
}

fn memfd() -> File {
    // SAFETY: a name that is terminated; the descriptor is new and nobody else's.
    File::from(unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"said".as_ptr(), 0)) })
}

/// How a child ended; where its threads are if it does not.
fn wait(child: libc::pid_t) -> Result<i32, String> {
    let begun = Instant::now();
    let mut status = 0;
    let mut pause = Duration::from_micros(200);
    loop {
        // SAFETY: a child that has not been waited for; one status is written.
        match unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } {
            0 if begun.elapsed() < PATIENCE => std::thread::sleep(pause),
            0 => break,
            _ => return Ok(status),
        }
        pause = (pause * 2).min(Duration::from_millis(5));
    }
    let stacks = stacks_of(child);
    // SAFETY: as above.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &raw mut status, 0);
    }
    Err(stacks)
}

fn stacks_of(process: libc::pid_t) -> String {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let stack = |task: fs::DirEntry| {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        format!("{}in system call {}{}", read("comm"), read("syscall"), read("stack"))
    };
    tasks.map(stack).collect()
}
