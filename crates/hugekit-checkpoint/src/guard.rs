//! The guard: a child process that outlives a checkpoint that is killed, and undoes it.
//!
//! Memory stays protected when the process that protected it ends, because the VMM holds the
//! userfaultfd, too. The VM would then wait for ever at its next write. So a child is forked before
//! the pause. It gets each step through a pipe, whose bytes outlive their writer, and it acts
//! when its parent has ended without a word: it releases the memory, resumes the VM if the parent
//! had paused it, and removes the files.
//!
//! The child makes system calls only. It neither allocates nor takes a lock, which another thread
//! of the parent may have held at the fork.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicU64;

use hugekit_pager::vmm::MESSAGE_WORDS;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, WaitOptions, getpid, pidfd_open, waitpid};
use rustix::time::Timespec;

use crate::api::{Api, RESUME};
use crate::error::CheckpointError;
use crate::output::Plan;
use crate::vm::Vm;

/// How often a thread of the VM that gives memory back is looked for, a millisecond apart.
const SETTLE_TRIES: u32 = 10_000;

/// How long the answer to a resume is waited for.
const ANSWER: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// What the parent has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    /// It is about to pause the VM.
    Pausing = b'P',
    /// The VM runs again.
    Resumed = b'R',
    /// The memory is released and the output is at its place or removed.
    Done = b'D',
}

/// A guard that runs. When this is dropped the guard ends, and undoes nothing.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Pid,
    steps: OwnedFd,
}

impl Guard {
    pub(crate) fn start(vm: &Vm, api: &Api, plan: &Plan) -> Result<Self, CheckpointError> {
        let start = || {
            let (reader, steps) = pipe_with(PipeFlags::CLOEXEC)?;
            let (files, folder) = plan.left_overs()?;
            let address = SocketAddrUnix::new(api.socket().as_os_str().as_bytes())?;
            let parent = pidfd_open(getpid(), PidfdFlags::empty())?;
            let undo = Undo { vm, address, files, folder };
            fork(move || undo.watch(&parent, &reader)).map(|child| Self { child, steps })
        };
        start().map_err(CheckpointError::Guard)
    }

    /// Tells the guard of a step before it is made, or after it is complete.
    pub(crate) fn tell(&self, step: Step) {
        let _ = rustix::io::write(&self.steps, &[step as u8]);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.tell(Step::Done);
        let wait = || waitpid(Some(self.child), WaitOptions::empty());
        while wait().is_err_and(|errno| errno == Errno::INTR) {}
    }
}

/// Runs a function in a child, which ends behind it.
fn fork(child: impl FnOnce()) -> io::Result<Pid> {
    // SAFETY: the child calls `child`, which only makes system calls, and then `_exit`, which runs
    // no destructor and flushes no buffer of the parent.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            child();
            // SAFETY: `_exit` has no precondition; it does not return.
            unsafe { libc::_exit(0) }
        }
        number => Pid::from_raw(number).ok_or_else(|| Errno::AGAIN.into()),
    }
}

/// What the child knows.
struct Undo<'a> {
    vm: &'a Vm,
    address: SocketAddrUnix,
    files: [CString; 2],
    folder: CString,
}

impl Undo<'_> {
    fn watch(&self, parent: &OwnedFd, steps: &OwnedFd) {
        ignore_signals();
        let mut is_paused = false;
        loop {
            let mut waited = [parent.as_fd(), steps.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let _ = poll(&mut waited, None);
            let has_ended = !waited[0].revents().is_empty();
            // The step before its end is still in the pipe.
            let mut step = [0];
            let has_step = !waited[1].revents().is_empty();
            let count = if has_step { rustix::io::read(steps, &mut step).unwrap_or(0) } else { 0 };
            match (count, step[0]) {
                (1, step) if step == Step::Done as u8 => return,
                (1, step) => is_paused = step == Step::Pausing as u8,
                _ if has_ended => return self.undo(is_paused),
                _ => {}
            }
        }
    }

    fn undo(&self, is_paused: bool) {
        for region in &self.vm.regions {
            let _ = self.vm.faults.unregister(&region.addresses());
        }
        self.settle();
        if is_paused {
            let _ = self.resume();
        }
        for file in &self.files {
            let _ = unlinkat(CWD, file, AtFlags::empty());
        }
        let _ = unlinkat(CWD, &self.folder, AtFlags::REMOVEDIR);
    }

    fn settle(&self) {
        for _ in 0..SETTLE_TRIES {
            if !self.vm.gives_memory_back() || self.vm.process.has_ended() {
                return;
            }
            let words = [const { AtomicU64::new(0) }; MESSAGE_WORDS];
            let _ = self.vm.faults.read(&words);
            let millisecond = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let _ = poll(&mut [], Some(&millisecond));
        }
    }

    /// A VM that runs does not mind.
    fn resume(&self) -> rustix::io::Result<()> {
        let stream = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        connect(&stream, &self.address)?;
        rustix::io::write(&stream, RESUME.as_bytes())?;
        poll(&mut [PollFd::new(&stream, PollFlags::IN)], Some(&ANSWER)).map(|_| ())
    }
}

/// Signals to the terminal's group, or to this process, do not end it; SIGKILL does.
fn ignore_signals() {
    let _ = rustix::process::setsid();
    // SAFETY: a signal set of zeroes is one, which `sigfillset` fills; `sigprocmask` reads it and
    // changes the mask of this process's only thread.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}
