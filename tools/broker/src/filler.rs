//! Populating processes, as the broker sees them.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use hugekit_lease::protocol::{Answer, MESSAGE, Refusal};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::fill::{End, Fill};
use crate::load::LoadOrder;
use crate::priority;

/// The program that populates a unit, and its first arguments. The program calls
/// [`fill`](crate::fill()).
#[derive(Clone, Debug)]
pub struct FillCommand {
    /// The path of the program.
    pub program: PathBuf,
    /// The arguments before those of [`Fill`].
    pub arguments: Vec<OsString>,
}

/// A process that populates a file. A drop ends the process.
#[derive(Debug)]
pub(crate) struct Filler {
    child: Child,
    /// Readable when the process has ended.
    ended: OwnedFd,
}

/// The result of a process that populated all of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    /// True if the process had joined its groups.
    pub(crate) joined: bool,
    /// Bytes that are on huge pages.
    pub(crate) huge: u64,
}

impl Filler {
    pub(crate) fn start(
        command: &FillCommand,
        told: &Fill,
        file: impl AsFd,
        may_raise: bool,
    ) -> io::Result<Self> {
        let mut starting = Command::new(&command.program);
        starting.args(&command.arguments);
        if told.background {
            starting.arg("--background");
        }
        if told.thp {
            starting.arg("--thp");
        }
        if let Some(node) = told.node {
            starting.arg("--node").arg(node.to_string());
        }
        for group in &told.groups {
            starting.arg("--group").arg(group);
        }
        let filler = Self::spawn(&mut starting, file.as_fd())?;
        if told.background && may_raise {
            let _ = priority::lower(pid(&filler.child));
        }
        Ok(filler)
    }

    /// Starts a process that loads an image for the client of a connection into a file of memory.
    pub(crate) fn load(
        command: &FillCommand,
        order: &LoadOrder,
        memory: &OwnedFd,
        connection: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        // The one process that is started while it is open gets it: no other thread of the broker starts any.
        let memory = rustix::io::dup(memory)?;
        let mut starting = Command::new(&command.program);
        starting.args(&command.arguments);
        starting.arg("--load").arg(memory.as_raw_fd().to_string());
        if let Some((user, group)) = order.owner {
            starting.arg("--owner").arg(format!("{user}:{group}"));
        }
        for group in &order.groups {
            starting.arg("--group").arg(group);
        }
        Self::spawn(&mut starting, connection)
    }

    fn spawn(starting: &mut Command, input: BorrowedFd<'_>) -> io::Result<Self> {
        let input = Stdio::from(input.try_clone_to_owned()?);
        let mut child = starting.stdin(input).stdout(Stdio::piped()).spawn()?;
        let opened = child.stdout.as_ref().map(|said| ioctl_fionbio(said, true)).transpose();
        let opened = opened.and_then(|_| pidfd_open(pid(&child), PidfdFlags::empty()));
        let ended = opened.inspect_err(|_| kill_child(&mut child))?;
        Ok(Self { child, ended })
    }

    /// Requests the end of the process.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Raises the priority of the process, because a client waits.
    pub(crate) fn raise(&self) {
        let _ = priority::raise(pid(&self.child));
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Returns the outcome, if the process has ended: its result, or the reason of its failure.
    pub(crate) fn outcome(&mut self) -> io::Result<Option<Result<Filled, Refusal>>> {
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        let refused = |errno: i32, signal: i32| {
            Err(Refusal::NotPopulated { errno: errno as u64, signal: signal as u64 })
        };
        Ok(Some(match (status.code().map(End::of_code), status.signal()) {
            (Some(End::Populated), _) => Ok(Filled { joined: true, huge: self.huge() }),
            (Some(End::NotJoined), _) => Ok(Filled { joined: false, huge: self.huge() }),
            (Some(End::Refused(errno)), _) => refused(errno.raw_os_error(), 0),
            (None, signal) => refused(0, signal.unwrap_or(0)),
        }))
    }
}

impl Filler {
    /// Returns the answer for the client of a load, if the process has ended.
    pub(crate) fn loaded(&mut self) -> io::Result<Option<Answer>> {
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        let mut said = [0; MESSAGE];
        let read = self.child.stdout.as_mut().map(|stdout| stdout.read_exact(&mut said));
        let answer = Answer::of_message(&said).ok().filter(|_| matches!(read, Some(Ok(()))));
        let signal = status.signal().unwrap_or(0).unsigned_abs().into();
        let errno = if signal == 0 { libc::EPROTO as u64 } else { 0 };
        let ended = Answer::Refused(Refusal::NotPopulated { errno, signal });
        Ok(Some(answer.filter(|_| status.success()).unwrap_or(ended)))
    }

    /// Reads the last message of the process. All of it is in the pipe.
    fn huge(&mut self) -> u64 {
        let mut said = [0; 8];
        let read = self.child.stdout.as_mut().map(|stdout| stdout.read_exact(&mut said));
        if matches!(read, Some(Ok(()))) { u64::from_le_bytes(said) } else { 0 }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        kill_child(&mut self.child);
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32).expect("no process has the number 0")
}

/// Kills a child. A child that cannot end now, because its control group is frozen, is left to the
/// kernel.
fn kill_child(child: &mut Child) {
    let _ = child.kill();
    let _ = child.try_wait();
}
