//! What becomes of SIGBUS and other signals while regions are served in place, and what a process hears
//! that may not serve faults. A handler belongs to a whole process, so every case runs in one of its own:
//! this program, started again with the case's name.
#![allow(unsafe_code)]

mod dispositions;
mod failed;
mod fixture;
mod handlers;
mod nested;
mod permission;
use hugekit_testing::permitted;
mod segfaults;
use hugekit_testing::served;
use hugekit_testing::signal_stack;
mod stack;
use std::alloc::{GlobalAlloc, Layout, System};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use fixture::{Case, signal_stack};
use hugekit_testing::trials::unless_lacking;
use libtest_mimic::{Arguments, Failed, Trial};

/// Names the case that this process is.
const CASE: &str = "HUGEKIT_SIGNAL_CASE";

/// Aborts when anything is allocated on an alternate signal stack: threads of Rust have one, and the
/// handler runs there.
struct NotInHandlers;

// SAFETY: the system's allocator, as it is.
unsafe impl GlobalAlloc for NotInHandlers {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        abort_on_signal_stack();
        // SAFETY: the arguments of a call to this function, whose contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        abort_on_signal_stack();
        // SAFETY: the arguments of a call to this function, whose contract is the same; the system's allocator made
        // the block.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: NotInHandlers = NotInHandlers;

fn abort_on_signal_stack() {
    if signal_stack().ss_flags & libc::SS_ONSTACK != 0 {
        std::process::abort();
    }
}

/// What a test's process says when it got to its end.
const REACHED_THE_END: i32 = 77;

fn run(name: &str) -> ExitStatus {
    let program = std::env::current_exe().unwrap();
    Command::new(program).env(CASE, name).status().unwrap()
}

fn trial(&(name, _, signal): &Case, forbidden: Option<&str>) -> Trial {
    let test = move || -> Result<(), Failed> {
        let status = run(name);
        let ended = (status.code(), status.signal());
        let expected = match signal {
            Some(_) => (None, signal),
            None => (Some(REACHED_THE_END), None),
        };
        if ended == expected { Ok(()) } else { Err(format!("{status}").into()) }
    };
    let trial = Trial::test(name, test);
    // Only root can become an unprivileged user, and only then is it known what that user is told.
    let needs_root = permission::CASES.iter().any(|case| case.0 == name);
    // SAFETY: no precondition.
    let is_root = unsafe { libc::geteuid() } == 0;
    if needs_root && !is_root {
        return unless_lacking(trial, Some("only root can become an unprivileged user"));
    }
    // Those of threads say so by their names.
    let for_threads = permitted::lacking_for_threads().filter(|_| name.contains("_threaded_"));
    unless_lacking(trial, forbidden.or(for_threads.as_deref()))
}

/// Some of the processes are meant to die, and none may wait for ever.
fn no_core_dump_and_no_waiting() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one structure is read.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::alarm(120);
    }
}

fn main() {
    let cases = [
        dispositions::CASES,
        segfaults::ON_HUGE_PAGES,
        segfaults::CASES,
        handlers::CASES,
        failed::CASES,
        nested::CASES,
        stack::CASES,
        permission::CASES,
    ];
    let cases = cases.concat();
    if let Ok(name) = std::env::var(CASE) {
        let case = cases.iter().find(|case| case.0 == name).expect("a case of the tables");
        no_core_dump_and_no_waiting();
        (case.1)();
        std::process::exit(REACHED_THE_END);
    }
    let (forbidden, no_huge_pages) = (permitted::lacking(), segfaults::lacking());
    let trials = cases.iter().map(|case| {
        let needs = segfaults::ON_HUGE_PAGES.iter().any(|needs| needs.0 == case.0);
        let lacking = no_huge_pages.as_deref().filter(|_| needs);
        trial(case, forbidden.as_deref().or(lacking))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}
