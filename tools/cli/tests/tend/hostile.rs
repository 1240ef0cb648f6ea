//! Processes that would hold the tender up.

use hugekit_testing::checks;
use hugekit_testing::trials::{Checks, skip};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};

use hugekit_testing::processes::wait_for_handler;

use crate::fuse::Silent;
use crate::running::{Lines, Running, wait_until};

/// Whether a thread of the process is within a write to standard output.
fn writes(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let call = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("syscall"));
    let is_write = format!("{} 0x1 ", libc::SYS_write);
    threads.filter_map(|thread| call(thread).ok()).any(|call| call.starts_with(&is_write))
}

fn tender_whose_output_is_not_read_ends_by_a_signal() {
    let sleeping = Running::sleeping();
    let mut ends = [0; 2];
    // SAFETY: the call writes two new descriptors, which belong to nothing else.
    let (_unread, mut full) = unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    };
    // SAFETY: makes the pipe as small as it can be, and tells its size.
    let size = unsafe { libc::fcntl(full.as_raw_fd(), libc::F_SETPIPE_SZ, 1) };
    full.write_all(&vec![b'x'; size as usize]).unwrap();
    // The report of a single pass is lost then, which is an error.
    for (once, code) in [(&[][..], 0), (&["--once"], 1)] {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("hugekit"));
        command.args(["tend", &sleeping.pid()]).args(once).stdout(full.try_clone().unwrap());
        let mut tending = Running::of(command.stderr(Stdio::null()));
        wait_for_handler(tending.0.id(), libc::SIGTERM);
        let pid = tending.0.id();
        // It has something to say, or cannot tend here.
        wait_until("it writes", || tending.0.try_wait().unwrap().is_some() || writes(pid));
        if tending.0.try_wait().unwrap().is_some() {
            skip("no process can be tended here");
        }
        tending.signal(libc::SIGTERM);
        assert_eq!(tending.ended().code(), Some(code), "{once:?}");
    }
}

fn process_that_keeps_the_kernel_waiting_holds_no_other_up() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut file) = Silent::at(&folder.path().join("file")) else {
        skip("no file system in user space may be mounted");
    };
    let sleeping = Running::sleeping();
    let (stuck_pid, other) = (file.stuck().to_string(), sleeping.pid());
    let mut tending = Running::tending(&["--json", &stuck_pid, &other]);
    let lines = tending.lines();
    let Some(line) = lines.next_line() else {
        tending.skip_if_refused();
    };
    assert!(line.contains(&format!("\"pid\":{other}")), "{line}");
    let notes = Lines::of(tending.0.stderr.take().unwrap());
    notes.until(&format!("process {stuck_pid} keeps the kernel waiting"));
    tending.signal(libc::SIGTERM);
    assert_eq!(tending.ended().code(), Some(0));
    // One pass says so as well, and is over.
    let mut once = Running::tending(&["--once", "--json", &other, &stuck_pid]);
    assert!(!once.ended().success());
    assert!(once.said_on_stderr().contains("keeps the kernel waiting"));
}

pub(crate) const CHECKS: Checks = checks![
    tender_whose_output_is_not_read_ends_by_a_signal,
    process_that_keeps_the_kernel_waiting_holds_no_other_up,
];
