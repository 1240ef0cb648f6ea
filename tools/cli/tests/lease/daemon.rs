//! A broker of a test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hugekit::pool::Backing;
use hugekit_lease as lease;
use hugekit_lease::protocol::Status;
use hugekit_lease::{Lease, LeaseError};
use hugekit_testing::processes;
use rustix::process::Signal;
use tempfile::TempDir;

use super::UNIT;

/// No test waits longer for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn program() -> Command {
    Command::new(assert_cmd::cargo::cargo_bin("hugekit"))
}

/// A broker that runs, and its folder. It is killed with this value.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) folder: TempDir,
}

impl Daemon {
    /// One of units of [`UNIT`], of which so many are ready when this returns.
    pub(crate) fn new(backing: Backing, ready: usize, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = start(folder.path(), backing, ready, more).spawn().unwrap();
        let daemon = Self { child, folder };
        daemon.until(|status| status.ready == ready as u64);
        daemon
    }

    /// Lets every user connect.
    pub(crate) fn open_to_all(self) -> Self {
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(self.folder.path(), all).unwrap();
        self
    }

    /// One that listens, of which nothing is waited for.
    pub(crate) fn listening(backing: Backing, ready: usize, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = start(folder.path(), backing, ready, more).spawn().unwrap();
        let daemon = Self { child, folder };
        daemon.until(|_| true);
        daemon
    }

    /// One of units of another size, of which nothing is waited for.
    pub(crate) fn of_units(unit: usize, backing: Backing, ready: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = start_of(unit, folder.path(), backing, ready, &[]).spawn().unwrap();
        let daemon = Self { child, folder };
        daemon.until(|_| true);
        daemon
    }

    /// One whose command was changed, of which nothing is waited for and nothing is ready.
    pub(crate) fn around(
        unit: usize,
        backing: Backing,
        change: impl FnOnce(&Command) -> Command,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = change(&start_of(unit, folder.path(), backing, 0, &[]));
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        let daemon = Self { child, folder };
        daemon.until(|_| true);
        daemon
    }

    /// One that another program starts, with the arguments of a command; nothing is waited for.
    pub(crate) fn started_by(program: &Path, usual: &Command, folder: TempDir) -> Self {
        let mut command = Command::new(program);
        command.args(usual.get_args()).stderr(Stdio::null());
        Self { child: command.spawn().unwrap(), folder }
    }

    /// One whose command was changed in place, of which nothing is waited for.
    pub(crate) fn changed(
        backing: Backing,
        ready: usize,
        more: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = start(folder.path(), backing, ready, more);
        change(&mut command);
        Self { child: command.spawn().unwrap(), folder }
    }

    /// One without units.
    pub(crate) fn of_images(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = program();
        command.arg("broker").args(more).arg("--socket").arg(socket(folder.path()));
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        let daemon = Self { child, folder };
        daemon.until(|_| true);
        daemon
    }

    /// Another one at the same place.
    pub(crate) fn again(&mut self, backing: Backing, ready: usize) {
        self.child = start(self.folder.path(), backing, ready, &[]).spawn().unwrap();
        self.until(|status| status.ready == ready as u64);
    }

    pub(crate) fn socket(&self) -> PathBuf {
        socket(self.folder.path())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn status(&self) -> Result<Status, LeaseError> {
        lease::status(&self.socket())
    }

    /// Waits until the status is as wanted.
    pub(crate) fn until(&self, is_wanted: impl Fn(&Status) -> bool) -> Status {
        let since = Instant::now();
        loop {
            let status = self.status();
            match status {
                Ok(status) if is_wanted(&status) => return status,
                status => assert!(since.elapsed() < PATIENCE, "{status:?}"),
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn ask(&self, wait: Duration) -> Result<Lease, LeaseError> {
        Lease::ask(&self.socket(), UNIT, wait)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        processes::signal(self.pid(), signal);
    }

    pub(crate) fn ended(&mut self) -> ExitStatus {
        let since = Instant::now();
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return status,
                None => assert!(since.elapsed() < PATIENCE, "the broker does not end"),
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// What its descriptors are.
    pub(crate) fn descriptors(&self) -> Vec<String> {
        let folder = format!("/proc/{}/fd", self.pid());
        let links = fs::read_dir(folder).unwrap().flatten();
        links.filter_map(|e| Some(fs::read_link(e.path()).ok()?.display().to_string())).collect()
    }

    /// Its processes that populate.
    pub(crate) fn fillers(&self) -> Vec<u32> {
        let file = format!("/proc/{0}/task/{0}/children", self.pid());
        let children = fs::read_to_string(file).unwrap();
        children.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let fillers =
            if self.child.try_wait().unwrap().is_none() { self.fillers() } else { vec![] };
        let _ = self.child.kill();
        let _ = self.child.wait();
        fillers.into_iter().for_each(until_gone);
    }
}

/// Waits until a process has ended that ends with its broker: the next test counts pages that it may hold.
pub(crate) fn until_gone(process: u32) {
    let since = Instant::now();
    // One that has ended has no memory left, whether or not its new parent has asked after it.
    while fs::read_to_string(format!("/proc/{process}/stat"))
        .is_ok_and(|stat| !stat.contains(") Z "))
    {
        assert!(since.elapsed() < PATIENCE, "{process} goes on");
    }
}

pub(crate) fn socket(folder: &Path) -> PathBuf {
    folder.join("broker.sock")
}

pub(crate) fn start(folder: &Path, backing: Backing, ready: usize, more: &[&str]) -> Command {
    start_of(UNIT, folder, backing, ready, more)
}

pub(crate) fn start_of(
    unit: usize,
    folder: &Path,
    backing: Backing,
    ready: usize,
    more: &[&str],
) -> Command {
    let mut command = program();
    command.args(["broker", "--unit", &unit.to_string(), "--backing", backing.option()]);
    command.args(["--ready", &ready.to_string()]).args(more);
    command.arg("--socket").arg(socket(folder)).stderr(Stdio::null());
    command
}
