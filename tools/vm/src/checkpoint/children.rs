//! The processes of children: started before the pause, so that it need not wait for them.

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
use crate::checkpoint::growing::ChildNews;
use crate::checkpoint::guard::Guard;
use crate::checkpoint::lineage::{ORIGIN, Origin};
use crate::checkpoint::options::ChildOptions;
use crate::vmm::{Control, Load, LoadMemory};

/// The longest time until the API of a child is there.
const LONGEST_START: Duration = Duration::from_secs(20);

/// The pause before a child's API is looked for again.
const PAUSE: Duration = Duration::from_millis(1);

/// A child without a VM.
#[derive(Debug)]
pub(crate) struct Child<'a> {
    /// From 1 on.
    pub(crate) number: usize,
    pub(crate) options: &'a ChildOptions,
    pub(crate) control: Box<dyn Control>,
    /// The VMM, which a program may have started.
    pub(crate) vmm: i32,
    program: Program,
    /// The socket of a vsock that the saved state names, once the child listens there.
    saved_vsock: OnceLock<PathBuf>,
}

/// All children. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Children<'a>(Vec<Child<'a>>);

impl<'a> Children<'a> {
    /// Starts the programs, as children of a VM if they are. The guard ends them if this process is killed.
    pub(crate) fn start(
        all: &'a [ChildOptions],
        parent: Option<i32>,
        guard: &Guard,
    ) -> Result<Self, ForkError> {
        let mut children = Self(Vec::new());
        for (options, number) in all.iter().zip(1..) {
            if let Some(socket) = options.sockets().find(|path| fs::symlink_metadata(path).is_ok())
            {
                return Err(ForkError::Exists { number, socket });
            }
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

    /// The number of a VMM's child.
    pub(crate) fn number_of(&self, vmm: i32) -> Option<usize> {
        self.0.iter().find(|child| child.vmm == vmm).map(|child| child.number)
    }

    /// Checks that each child of a VM with a vsock has a socket of its own for it: the VM listens at the one of its
    /// configuration.
    pub(crate) fn check_vsocks(
        all: &[ChildOptions],
        parent: &dyn Control,
    ) -> Result<(), ForkError> {
        let Some(socket) = parent.vsock()? else { return Ok(()) };
        let without = all.iter().position(|child| child.vsock().is_none());
        without.map_or(Ok(()), |index| Err(ForkError::Vsock { number: index + 1, socket }))
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

    /// Leaves the children alone.
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
    /// Has its VMM restore it.
    pub(crate) fn restore(&self, state: &Path, memory: LoadMemory<'_>, resume: bool) -> ChildNews {
        let load = Load { state, memory, resume, others: &self.options.load };
        match self.control.load(&load) {
            Ok(()) => ChildNews::Restored(self.number, Instant::now()),
            Err(source) => ChildNews::Failed(ForkError::Restore { number: self.number, source }),
        }
    }

    /// Notes the socket that a failure is to remove, if it is not one of the options. A relative path begins in the
    /// folder of this process, in which the program was started.
    pub(crate) fn note_saved_vsock(&self) {
        if self.options.vsock().is_none()
            && let Ok(Some(path)) = self.control.vsock()
            && let Ok(path) = std::path::absolute(path)
        {
            let _ = self.saved_vsock.set(path);
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

/// The program gets no standard stream of this process: it would keep open a pipe whose reader
/// waits for the end of this process. A signal of the terminal does not reach it.
fn start(options: &ChildOptions, origin: Option<String>, guard: &Guard) -> io::Result<Program> {
    let (program, arguments) = options.command.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(arguments).envs(origin.map(|origin| (ORIGIN, origin))).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    guard.watch_over(&mut command)?;
    command.spawn()
}
