//! The guard: a child process that undoes a checkpoint if the checkpoint's process is killed.
//!
//! Memory stays protected when the process that protected it ends, because the VMM holds the
//! userfaultfd, too. The VM would then wait for ever at its next write. So a child is forked before
//! the pause. It receives each step through a pipe, whose bytes outlive their writer. If its parent
//! ends without the last step, the child releases the memory, resumes the VM if the parent had
//! paused it, and removes the files.
//!
//! A stopped parent (Ctrl-Z, SIGSTOP, a debugger) would make the VM wait as long. So the child then
//! releases the memory and resumes the VM, too, and the parent's checkpoint fails when the parent
//! continues.
//!
//! The child only makes system calls. It neither allocates nor locks, because another thread of the
//! parent may have held a lock at the fork.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::vmm::{Control, MESSAGE_WORDS};
use hugekit_machine::processes::ProcessFolder;
use hugekit_sys::poll::readable;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{AtFlags, CWD, unlinkat};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, kill_process_group, pidfd_open,
    pidfd_send_signal, waitpid,
};

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::handover::PlannedHandover;
use crate::checkpoint::vm::Vm;
use crate::vmm::hidden::LeftOver;

/// The highest number of checks for a thread of the VM that releases memory, a millisecond apart.
const SETTLE_TRIES: u32 = 10_000;

/// The longest time until a VMM accepts the connection for a resume.
const LONGEST_CONNECT: Duration = Duration::from_secs(10);

/// The longest wait for the answer to a resume.
const ANSWER: Duration = Duration::from_secs(10);

/// The highest number of children of one fork.
pub const MOST_STARTED: usize = 64;

/// The longest time between two checks for a stopped parent. A VM that writes then waits as long.
const LOOK: Duration = Duration::from_millis(50);

/// The highest number of folders that a guard removes.
const MOST_FOLDERS: usize = 8;

/// Bytes of a step with the number of a process.
const STARTED_BYTES: usize = 5;

/// A step of the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    /// The parent is about to pause the VM.
    Pausing = b'P',
    /// The VM runs again.
    Resumed = b'R',
    /// A process was started that must not outlive the parent. Its number follows, as four bytes.
    Started = b'S',
    /// The memory is released, and the output is at its place or removed. Started processes may
    /// live on.
    Done = b'D',
}

/// Files and folders that are removed if this process is killed.
#[derive(Debug)]
pub(crate) struct LeftOvers {
    files: Vec<CString>,
    folders: Vec<LeftOver>,
}

impl LeftOvers {
    /// Makes the list from the folders of a handover and a folder of this process.
    pub(crate) fn new(handover: &PlannedHandover, own: io::Result<LeftOver>) -> io::Result<Self> {
        let mut folders = handover.left_overs()?;
        folders.push(own?);
        Ok(Self { files: Vec::new(), folders })
    }

    /// Makes the list from one folder.
    pub(crate) fn of_folder(folder: LeftOver) -> Self {
        Self { files: Vec::new(), folders: vec![folder] }
    }

    /// Adds files to the list.
    pub(crate) fn and_files(self, paths: impl Iterator<Item = PathBuf>) -> io::Result<Self> {
        let name = |path: PathBuf| {
            let path = std::path::absolute(path)?;
            Ok(CString::new(path.as_os_str().as_bytes())?)
        };
        Ok(Self { files: paths.map(name).collect::<io::Result<_>>()?, ..self })
    }
}

/// A running guard. A drop ends the guard, which then undoes nothing.
#[derive(Debug)]
pub(crate) struct Guard {
    /// `None` if the guard has ended.
    child: Option<Pid>,
    steps: OwnedFd,
    /// Readable when the guard has released the memory of a stopped parent.
    released: OwnedFd,
}

impl Guard {
    /// Starts a guard. If this process is killed, the guard removes `left_overs`, and a frozen VM
    /// continues to run.
    pub(crate) fn start(
        frozen: Option<(&Vm, &dyn Control)>,
        left_overs: io::Result<LeftOvers>,
    ) -> Result<Self, CheckpointError> {
        let start = || {
            let (reader, steps) = pipe_with(PipeFlags::CLOEXEC)?;
            let left_overs = left_overs?;
            let frozen = frozen.map(|(vm, control)| Frozen::new(vm, control)).transpose()?;
            let parent = pidfd_open(getpid(), PidfdFlags::empty())?;
            let released = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let stat = ProcessFolder::own()?.file("stat")?;
            let undo = Undo { frozen, left_overs, stat, released: released.as_fd() };
            let child = fork(move || undo.watch(&parent, &reader))?;
            Ok(Self { child: Some(child), steps, released })
        };
        start().map_err(CheckpointError::Guard)
    }

    /// Tells the guard about a step, before the parent takes it or after it is complete.
    pub(crate) fn tell(&self, step: Step) {
        let _ = rustix::io::write(&self.steps, &[step as u8]);
    }

    /// Returns true if this process was stopped, so that the guard has released the memory. The
    /// memory may have changed since.
    pub(crate) fn has_released(&self) -> bool {
        readable([self.released.as_fd()], Some(Duration::ZERO)) == Ok([true])
    }

    /// Ends the guard. Returns true if it has released the memory before.
    pub(crate) fn end(mut self) -> bool {
        self.await_end();
        self.has_released()
    }

    fn await_end(&mut self) {
        let Some(child) = self.child.take() else { return };
        self.tell(Step::Done);
        let wait = || waitpid(Some(child), WaitOptions::empty());
        while wait().is_err_and(|errno| errno == Errno::INTR) {}
    }

    /// Makes the program of a command end together with this process, until the step
    /// [`Done`](Step::Done).
    pub(crate) fn watch_over(&self, command: &mut Command) -> io::Result<()> {
        let (steps, parent) = (self.steps.try_clone()?, getpid());
        let tell = move || {
            let [a, b, c, d] = getpid().as_raw_nonzero().get().to_le_bytes();
            let told = rustix::io::write(&steps, &[Step::Started as u8, a, b, c, d])?;
            // A parent that has ended before may have no guard any more.
            let is_guarded = told == STARTED_BYTES && getppid() == Some(parent);
            if is_guarded { Ok(()) } else { Err(Errno::CHILD.into()) }
        };
        // SAFETY: the closure runs between fork and exec, and makes three system calls. It neither
        // allocates nor takes a lock.
        unsafe { command.pre_exec(tell) };
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.await_end();
    }
}

/// Runs a function in a child process, which then ends.
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

/// The data with which the child undoes the checkpoint.
struct Undo<'a> {
    frozen: Option<Frozen<'a>>,
    left_overs: LeftOvers,
    /// The parent's line in `/proc`.
    stat: File,
    released: BorrowedFd<'a>,
}

/// A VM whose memory may be protected, and that may be paused.
struct Frozen<'a> {
    vm: &'a Vm,
    address: SocketAddrUnix,
    /// The text of the request that resumes the VM.
    resume: &'static str,
}

impl Undo<'_> {
    fn watch(&self, parent: &OwnedFd, steps: &OwnedFd) {
        ignore_signals();
        self.close_others(parent, steps);
        let (mut is_paused, mut started) = (false, [const { None }; MOST_STARTED]);
        let mut has_released = false;
        loop {
            let waited = readable([parent.as_fd(), steps.as_fd()], Some(LOOK));
            let [has_ended, has_step] = waited.unwrap_or_default();
            // The step before its end is still in the pipe.
            let mut step = [0];
            let count = if has_step { rustix::io::read(steps, &mut step).unwrap_or(0) } else { 0 };
            match (count, step[0]) {
                (1, step) if step == Step::Done as u8 => return,
                (1, step) if step == Step::Started as u8 => note_started(steps, &mut started),
                (1, step) => is_paused = step == Step::Pausing as u8,
                _ if has_ended => {
                    started.iter().flatten().for_each(end_group);
                    return self.undo(is_paused);
                }
                // The VM waits for no process that a terminal, a debugger or a supervisor has stopped.
                _ if !has_released && self.is_parent_stopped() => {
                    let _ = rustix::io::write(self.released, &1_u64.to_ne_bytes());
                    self.release(is_paused);
                    has_released = true;
                }
                _ => {}
            }
        }
    }

    /// Closes the copies of the parent's descriptors, because other processes may wait until the
    /// parent has closed them. The claim of the VM stays open.
    fn close_others(&self, parent: &OwnedFd, steps: &OwnedFd) {
        // No allocation is made here: a checkpoint has fewer folders.
        let mut kept = [u32::MAX; 7 + MOST_FOLDERS];
        let folders = self.left_overs.folders.iter().map(LeftOver::parent).take(MOST_FOLDERS);
        let of_parent = [parent.as_fd(), steps.as_fd(), self.stat.as_fd(), self.released];
        let needed = of_parent.into_iter().chain(self.frozen.iter().flat_map(Frozen::descriptors));
        for (kept, descriptor) in kept.iter_mut().zip(needed.chain(folders)) {
            *kept = descriptor.as_raw_fd().unsigned_abs();
        }
        kept.sort_unstable();
        let mut first = 0;
        for next in kept.into_iter().chain([u32::MAX]) {
            if first < next {
                // SAFETY: no code of this process uses other descriptors than these from here on:
                // the standard library does not know of the fork, and nothing is dropped before
                // `_exit`. Kernels before 5.9 refuse, and then all descriptors stay open.
                unsafe { libc::syscall(libc::SYS_close_range, first, next - 1, 0) };
            }
            first = next.saturating_add(1);
        }
    }

    /// Returns true if a signal or a debugger has stopped the parent.
    fn is_parent_stopped(&self) -> bool {
        let mut line = [0; 256];
        let count = rustix::io::pread(&self.stat, &mut line, 0).unwrap_or(0);
        // The state follows the name, which may have any bytes.
        let end = line[..count].windows(2).rposition(|pair| pair == b") ");
        end.and_then(|end| line.get(end + 2)).is_some_and(|state| b"Tt".contains(state))
    }

    fn release(&self, is_paused: bool) {
        if let Some(frozen) = &self.frozen {
            frozen.release(is_paused);
        }
    }

    fn undo(&self, is_paused: bool) {
        self.release(is_paused);
        for file in &self.left_overs.files {
            let _ = unlinkat(CWD, file, AtFlags::empty());
        }
        self.left_overs.folders.iter().for_each(LeftOver::remove);
    }
}

impl<'a> Frozen<'a> {
    fn new(vm: &'a Vm, control: &dyn Control) -> io::Result<Self> {
        let address = SocketAddrUnix::new(control.socket().as_os_str().as_bytes())?;
        Ok(Self { vm, address, resume: control.resume_text() })
    }

    fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        let process = &self.vm.process;
        let claim = process.claim_descriptor().unwrap_or(process.as_fd());
        [self.vm.faults.as_fd(), process.as_fd(), claim]
    }

    /// Leaves all memory to the VM, and resumes the VM if the parent has paused it.
    fn release(&self, is_paused: bool) {
        for region in &self.vm.regions {
            let _ = self.vm.faults.unregister(&region.addresses());
        }
        self.settle();
        if is_paused {
            let _ = self.resume();
        }
    }

    fn settle(&self) {
        for _ in 0..SETTLE_TRIES {
            if !self.vm.gives_memory_back() || self.vm.process.has_ended() {
                return;
            }
            let words = [const { AtomicU64::new(0) }; MESSAGE_WORDS];
            let _ = self.vm.faults.read(&words);
            let millisecond = Duration::from_millis(1);
            let _ = readable([], Some(millisecond));
        }
    }

    /// Resumes the VM. This has no effect on a running VM.
    fn resume(&self) -> rustix::io::Result<()> {
        let stream = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        set_socket_timeout(&stream, Timeout::Send, Some(LONGEST_CONNECT))?;
        connect(&stream, &self.address)?;
        rustix::io::write(&stream, self.resume.as_bytes())?;
        readable([stream.as_fd()], Some(ANSWER)).map(drop)
    }
}

/// Records a started process. Its number follows the step in one write.
fn note_started(steps: &OwnedFd, started: &mut [Option<(Pid, OwnedFd)>; MOST_STARTED]) {
    let mut number = [0; 4];
    let _ = rustix::io::read(steps, &mut number);
    let Some(pid) = Pid::from_raw(i32::from_le_bytes(number)) else { return };
    let descriptor = pidfd_open(pid, PidfdFlags::empty());
    if let (Some(free), Ok(descriptor)) =
        (started.iter_mut().find(|room| room.is_none()), descriptor)
    {
        *free = Some((pid, descriptor));
    }
}

/// Ends a process and its group, and waits until the process has ended. The group has the same
/// number as the process, and no other group gets this number while the process exists.
fn end_group((pid, descriptor): &(Pid, OwnedFd)) {
    if pidfd_send_signal(descriptor, Signal::KILL).is_ok() {
        let _ = kill_process_group(*pid, Signal::KILL);
        let _ = readable([descriptor.as_fd()], Some(ANSWER));
    }
}

/// Ignores signals to the terminal's group or to this process, except SIGKILL.
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
