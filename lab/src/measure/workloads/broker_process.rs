//! A broker of the lab's own: `hugekit broker` on reserved pages of 2 MiB, as users start it.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hugekit_lease as lease;
use hugekit_lease::Lease;
use hugekit_lease::protocol::Status;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::measure::LabError;
use crate::measure::workloads::forking::end_with_this_process;

/// The longest wait for the broker, on a machine that does other work too.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time between two checks.
const LOOK: Duration = Duration::from_millis(5);

/// A broker that runs. It ends with this value, and with this process.
#[derive(Debug)]
pub struct BrokerProcess {
    child: Child,
    folder: TempDir,
    unit: usize,
}

impl BrokerProcess {
    /// Starts a broker of units of this many bytes. It keeps one unit ready.
    pub fn start(hugekit: &Path, unit: usize) -> Result<Self, LabError> {
        let folder = tempfile::tempdir().map_err(LabError::Broker)?;
        let mut command = Command::new(hugekit);
        command.args(["broker", "--backing", "hugetlb", "--ready", "1"]);
        command.args(["--unit", &unit.to_string(), "--socket"]).arg(socket(&folder));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        end_with_this_process(&mut command, Signal::TERM);
        let child = command.spawn().map_err(LabError::Broker)?;
        Ok(Self { child, folder, unit })
    }

    /// The socket on which the broker listens.
    pub fn socket(&self) -> PathBuf {
        socket(&self.folder)
    }

    pub fn status(&self) -> Result<Status, LabError> {
        Ok(lease::status(&self.socket())?)
    }

    /// Takes a unit that is ready.
    pub fn lease(&self) -> Result<Lease, LabError> {
        Ok(Lease::ask(&self.socket(), self.unit, Duration::ZERO)?)
    }

    /// Waits until it has nothing more to do: a unit is ready, and none is populated.
    pub fn until_ready(&mut self) -> Result<(), LabError> {
        self.until(|status| status.ready == 1 && status.filling == 0 && status.unreturned == 0)
    }

    /// Waits until it populates a unit.
    pub fn until_filling(&mut self) -> Result<(), LabError> {
        self.until(|status| status.filling > 0)
    }

    fn until(&mut self, is_so: impl Fn(&Status) -> bool) -> Result<(), LabError> {
        let since = Instant::now();
        loop {
            match self.status() {
                Ok(status) if is_so(&status) => return Ok(()),
                Ok(_) if since.elapsed() < PATIENCE => {}
                // It does not listen yet.
                Err(_) if since.elapsed() < PATIENCE && !self.has_ended()? => {}
                Err(LabError::Lease(_)) if self.has_ended()? => return Err(self.why_it_ended()),
                Ok(status) => return Err(LabError::Broker(too_slow(&status))),
                Err(error) => return Err(error),
            }
            thread::sleep(LOOK);
        }
    }

    fn has_ended(&mut self) -> Result<bool, LabError> {
        Ok(self.child.try_wait().map_err(LabError::Broker)?.is_some())
    }

    fn why_it_ended(&mut self) -> LabError {
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut said);
        }
        LabError::Broker(io::Error::other(format!("it ended: {}", said.trim())))
    }

    /// Ends it as systemd would, which has it end what populates, too.
    fn end(&mut self) {
        let pid = Pid::from_child(&self.child);
        let since = Instant::now();
        let _ = kill_process(pid, Signal::TERM);
        while !self.has_ended().unwrap_or(true) {
            if since.elapsed() > PATIENCE {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(LOOK);
        }
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        self.end();
    }
}

fn socket(folder: &TempDir) -> PathBuf {
    folder.path().join("broker.sock")
}

fn too_slow(status: &Status) -> io::Error {
    let Status { ready, filling, last_failure, .. } = status;
    let failure =
        last_failure.map_or(String::new(), |failure| format!("; last failure: {failure}"));
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("{ready} units are ready and {filling} being populated{failure}"),
    )
}
