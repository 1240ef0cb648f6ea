//! The processes of children. They are started before the pause, so that the pause need not wait
//! for them.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child as Program, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::api::connect;
use hugekit_sys::seqpacket;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::checkpoint::fork_error::ForkError;
use crate::checkpoint::guard::Guard;
use crate::checkpoint::lineage::{ORIGIN, Origin};
use crate::checkpoint::options::ChildOptions;
use crate::devices::{Device, Host, NewDisks};
use crate::vmm::{Control, ControlError, Load, LoadMemory, Request};

/// The longest time until the API of a child must exist.
const LONGEST_START: Duration = Duration::from_secs(20);

/// The pause between two checks for a child's API.
const PAUSE: Duration = Duration::from_millis(1);

/// A child without a VM.
#[derive(Debug)]
pub(crate) struct Child<'a> {
    /// The number of the child, from 1 on.
    pub(crate) number: usize,
    pub(crate) options: &'a ChildOptions,
    pub(crate) control: Box<dyn Control>,
    /// The number of the VMM's process, which the program may have started.
    pub(crate) vmm: i32,
    program: Program,
    /// The vsock socket in the saved state, as soon as the child listens at it.
    saved_vsock: OnceLock<PathBuf>,
}

/// All children. A drop ends them.
#[derive(Debug)]
pub(crate) struct Children<'a>(Vec<Child<'a>>);

impl<'a> Children<'a> {
    /// Starts the programs of clones, or of children if there is a parent. The guard ends the
    /// programs if this process is killed.
    pub(crate) fn start(
        all: &'a [ChildOptions],
        parent: Option<i32>,
        guard: &Guard,
    ) -> Result<Self, ForkError> {
        let mut children = Self(Vec::new());
        for (options, number) in all.iter().zip(1..) {
            let origin = parent.map(|parent| Origin::text(parent, number)).transpose()?;
            let program = start(options, origin, guard).map_err(|source| ForkError::Start {
                number,
                program: options.command.first().cloned().unwrap_or_default(),
                source,
            })?;
            let control = options.control();
            let saved_vsock = OnceLock::new();
            children.0.push(Child { number, options, control, vmm: 0, program, saved_vsock });
        }
        Ok(children)
    }

    /// Waits until each child can be restored.
    pub(crate) fn await_apis(&mut self) -> Result<(), ForkError> {
        let until = Instant::now() + LONGEST_START;
        self.0.iter_mut().try_for_each(|child| child.await_api(until))
    }

    pub(crate) fn all(&self) -> &[Child<'a>] {
        &self.0
    }

    /// Returns the number of the child with this VMM.
    pub(crate) fn number_of(&self, vmm: i32) -> Option<usize> {
        self.0.iter().find(|child| child.vmm == vmm).map(|child| child.number)
    }

    /// Returns the children's VMMs, before they have VMs.
    pub(crate) fn hosts(&self) -> Result<Vec<Host>, ForkError> {
        let host = |child: &Child<'_>| Host::of(format!("child {}", child.number), child.vmm);
        Ok(self.0.iter().map(host).collect::<io::Result<_>>()?)
    }

    /// Ends all children.
    pub(crate) fn kill(&self) {
        for child in &self.0 {
            // Each has a group of its own, whose number is no other's until the program is waited
            // for.
            if let Some(group) = Pid::from_raw(child.program.id() as i32) {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
    }

    /// Keeps the children: they live on after this value.
    pub(crate) fn keep(mut self) -> Vec<Program> {
        std::mem::take(&mut self.0).into_iter().map(|child| child.program).collect()
    }
}

impl Drop for Children<'_> {
    fn drop(&mut self) {
        self.kill();
        for child in &mut self.0 {
            let _ = child.program.wait();
            for socket in child.options.sockets().chain(child.saved_vsock.take()) {
                if fs::symlink_metadata(&socket).is_ok_and(|of| of.file_type().is_socket()) {
                    let _ = fs::remove_file(socket);
                }
            }
        }
    }
}

impl Child<'_> {
    /// Makes the child's VMM restore the VM, which stays paused.
    pub(crate) fn load(&self, state: &Path, memory: LoadMemory<'_>) -> Result<(), ForkError> {
        let (own, others) = (&self.options.own, &self.options.load);
        self.refuse(self.control.load(&Load { state, memory, own, others }))
    }

    /// Makes the child run.
    pub(crate) fn resume(&self) -> Result<(), ForkError> {
        self.refuse(self.control.send_resume().and_then(Request::succeed).map(drop))
    }

    /// Gives the child copies of its disks.
    pub(crate) fn set_disks(&self, host: &Host, disks: &NewDisks) -> Result<(), ForkError> {
        let own = disks.of(self.number, host)?;
        own.into_iter().try_for_each(|(id, path)| self.refuse(self.control.set_disk(id, path)))
    }

    fn refuse(&self, done: Result<(), ControlError>) -> Result<(), ForkError> {
        done.map_err(|source| ForkError::Restore { number: self.number, source })
    }

    /// Records the socket that must be removed after a failure, if the options do not name it. A
    /// relative path begins in this process's folder, in which the program was started.
    pub(crate) fn note_saved_vsock(&self, devices: &[Device]) {
        let socket = devices.iter().find_map(|device| match device {
            Device::Vsock { socket } => std::path::absolute(socket).ok(),
            _ => None,
        });
        if let Some(socket) = socket.filter(|_| self.options.own.vsock.is_none()) {
            let _ = self.saved_vsock.set(socket);
        }
    }

    fn await_api(&mut self, until: Instant) -> Result<(), ForkError> {
        let number = self.number;
        loop {
            if let Ok(stream) = connect(&self.options.api) {
                self.vmm = seqpacket::peer(&stream).map_err(io::Error::from)?.pid;
                return Ok(());
            }
            if let Some(status) = self.program.try_wait()? {
                return Err(ForkError::Ended { number, status });
            }
            if Instant::now() > until {
                let (api, seconds) = (self.options.api.clone(), LONGEST_START.as_secs());
                return Err(ForkError::Silent { number, api, seconds });
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Starts a program. It gets no standard stream of this process, because it would keep a pipe open
/// whose reader waits for the end of this process. A signal of the terminal does not reach the
/// program.
fn start(options: &ChildOptions, origin: Option<String>, guard: &Guard) -> io::Result<Program> {
    let (program, arguments) = options.command.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(arguments).envs(origin.map(|origin| (ORIGIN, origin))).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    guard.watch_over(&mut command)?;
    command.spawn()
}
