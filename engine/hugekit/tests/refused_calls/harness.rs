//! Runs an operation in a child process for each system call that it makes and each answer that the call may give.
//!
//! A child dies of what it does wrong without taking the others along, hangs without holding them up, and begins
//! with nothing of this library set up: the first round of each is a cold one.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use hugekit::pool::Backing;
use hugekit_sys::injection::{Lasting, Plan};
use libtest_mimic::Failed;

use crate::case::{self, TriedOperation};

/// How long a child may take that nothing holds up; most take a hundredth of a second, and some wait for kernel threads
/// on busy CPUs: a collapse for those of all CPUs, more than half a minute beside a soak.
const PATIENCE: Duration = Duration::from_secs(180);

/// How long other processes may keep the reserved pages that an operation needs: their tests, most for moments.
const SHORTAGE: Duration = Duration::from_secs(60);

/// Calls by which a writer of what forks share is shown his copy. Refused for good, he has no way on, and is told so by
/// a signal.
const SHOWING: [&str; 4] = ["Mmap", "Mremap", "Madvise", "MadviseDontNeed"];

const HANGS: &str = "hangs";

/// Problems after which an operation is given up.
const MOST_PROBLEMS: usize = 6;

/// Where an operation makes more calls than this, those of which others say little new are left out.
const MANY: usize = 150;

/// Of each kind of call, this many at the beginning are refused once if not all are.
const FIRST: usize = 3;

/// Which calls of an operation are refused, from the environment variable `HUGEKIT_FAULTS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// `first`: the first call of each kind, once and from then on.
    First,
    /// By default: the first calls of each kind and the last one, once, from then on, and by a filter.
    Some,
    /// `all`: every call, with every answer that it may give.
    All,
}

impl Depth {
    pub(crate) fn from_environment() -> Self {
        match std::env::var("HUGEKIT_FAULTS").as_deref() {
            Ok("first") => Self::First,
            Ok("all") => Self::All,
            _ => Self::Some,
        }
    }

    fn lastings(self) -> &'static [Lasting] {
        match self {
            Self::First => &[Lasting::Once, Lasting::Kind],
            Self::Some | Self::All => &[Lasting::Once, Lasting::Kind, Lasting::Filter],
        }
    }
}

/// Runs an operation in a process that is short of something.
pub(crate) fn run_short(operation: TriedOperation) -> Result<(), Failed> {
    let said = run(operation, None, "");
    if said.trim() == case::FINE { Ok(()) } else { Err(shortened(&said).into()) }
}

/// Runs the cases of an operation.
pub(crate) fn refuse_each_call(operation: TriedOperation, depth: Depth) -> Result<(), Failed> {
    let clean = run(operation, None, "");
    let lines: Vec<&str> = clean.lines().collect();
    let &[case::FINE, kinds, trace] = &lines[..] else {
        return Err(format!("nothing is refused: {clean}").into());
    };
    let trace: Vec<&str> =
        trace.trim_start_matches("Some([").trim_end_matches("])").split(", ").collect();
    let depth = if depth == Depth::All && trace.len() > MANY { Depth::Some } else { depth };
    let refusal = RefusalTrial { operation, depth, kinds, trace };
    let mut problems = Vec::new();
    for &lasting in depth.lastings() {
        refusal.each(lasting, &mut problems);
    }
    let count = problems.len();
    if count == 0 {
        Ok(())
    } else {
        Err(format!("{count} problems:\n{}", problems.join("\n")).into())
    }
}

/// One operation, what a process has after it, and the calls that it makes the first time.
struct RefusalTrial<'a> {
    operation: TriedOperation,
    depth: Depth,
    kinds: &'a str,
    trace: Vec<&'a str>,
}

impl RefusalTrial<'_> {
    fn each(&self, lasting: Lasting, problems: &mut Vec<String>) {
        // Later rounds, and other threads, may make a few more.
        for nth in 0..self.trace.len() + 5 {
            if !self.is_chosen(nth, lasting) {
                continue;
            }
            for choice in self.choices(nth) {
                if problems.len() >= MOST_PROBLEMS {
                    return;
                }
                let plan = Plan { nth: nth as u32, choice, lasting };
                let said = run(self.operation, Some(plan), self.kinds);
                match said.lines().next() {
                    Some(case::NOT_REACHED) => return,
                    Some(case::NO_SUCH_ANSWER) => break,
                    Some(case::FINE) => {}
                    Some(said) if ends_as_it_must(said) => {}
                    said_so => {
                        let is_hang = said_so.is_some_and(|said| said.starts_with(HANGS));
                        let call = self.trace.get(nth).copied().unwrap_or("a later call");
                        let said = shortened(&said);
                        problems.push(format!("{lasting:?} {nth}.{choice} ({call}): {said}"));
                        if is_hang {
                            return; // Others of its kind would take as long.
                        }
                    }
                }
            }
        }
    }

    /// Whether a call tells something that those of its kind before it do not.
    fn is_chosen(&self, nth: usize, lasting: Lasting) -> bool {
        let Some(kind) = self.trace.get(nth) else { return self.depth == Depth::All };
        let before = self.trace[..nth].iter().filter(|other| *other == kind).count();
        let is_last = !self.trace[nth + 1..].contains(kind);
        match self.depth {
            Depth::All => true,
            Depth::First => before == 0,
            Depth::Some => is_last || before < if lasting == Lasting::Once { FIRST } else { 1 },
        }
    }

    /// All of its answers, or one, not the same as the last one's of its kind.
    fn choices(&self, nth: usize) -> Range<usize> {
        if self.depth == Depth::All {
            return 0..usize::MAX;
        }
        let kind = self.trace.get(nth);
        let before = self.trace[..nth].iter().filter(|other| Some(*other) == kind).count();
        before % FIRST..before % FIRST + 1
    }
}

/// Whether a writer was told by a signal that what he needs is refused for good.
fn ends_as_it_must(said: &str) -> bool {
    said.strip_prefix(case::SIGNALLED).is_some_and(|call| SHOWING.contains(&call))
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

/// What a child says of one plan; tried again while other processes have the reserved pages that it needs.
fn run(operation: TriedOperation, plan: Option<Plan>, expected: &str) -> String {
    let begun = Instant::now();
    loop {
        let said = run_once(operation, plan, expected);
        let is_short = operation.backing == Backing::Hugetlb2M && said.starts_with(case::SHORT);
        if !is_short || begun.elapsed() > SHORTAGE {
            return said;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn run_once(operation: TriedOperation, plan: Option<Plan>, expected: &str) -> String {
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
        Err(stacks) => format!("{HANGS}: {text}\n{stacks}"),
    }
}

fn memfd() -> File {
    // SAFETY: a name that is terminated; the descriptor is new and no other code's.
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
    // SAFETY: a child that has not been waited for; one status is written.
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
