//! Processes that populate, and wait at a gate before they do: what ends one of them there depends on no chance.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hugekit::pool::Backing;
use rustix::fs::{CWD, Mode, mkfifoat};
use tempfile::TempDir;

use super::daemon::{Daemon, PATIENCE, program, socket, start_of};

/// A broker whose processes that populate wait at a closed gate.
///
/// They take the gate for a control group that they are to join. Its file is a named pipe: to open one for writing waits
/// until a reader has it open.
pub(crate) struct Gated {
    pub(crate) daemon: Daemon,
    gate: TempDir,
}

/// The gate is open as long as this lives.
pub(crate) struct Open {
    _reader: File,
}

impl Gated {
    /// One that has no units of its own, and a closed gate.
    pub(crate) fn new(unit: usize, backing: Backing, more: &[&str]) -> Self {
        let gate = tempfile::tempdir().unwrap();
        mkfifoat(CWD, pipe(gate.path()), Mode::RUSR | Mode::WUSR).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let command = folder.path().join("hugekit");
        link_or_copy(Path::new(program().get_program()), &command).unwrap();
        let usual = start_of(unit, folder.path(), backing, 0, more);
        let daemon = Daemon::started_by(&command, &usual, folder);
        daemon.until(|_| true);
        // The broker starts what lies at its own path, as `hugekit broker fill`. The gate comes before the other groups,
        // because a group that may not be joined is the last that is tried.
        let script = format!(
            "#!/bin/sh\nshift 2\nexec '{}' broker fill --group '{}' \"$@\"\n",
            program().get_program().to_str().unwrap(),
            gate.path().display()
        );
        let new = command.with_extension("new");
        fs::write(&new, script).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&new, &command).unwrap();
        assert!(socket(daemon.folder.path()).exists());
        Self { daemon, gate }
    }

    pub(crate) fn open(&self) -> Open {
        // To open a named pipe for both does not wait.
        let reader = File::options().read(true).write(true).open(pipe(self.gate.path()));
        Open { _reader: reader.unwrap() }
    }

    /// Waits until this many processes stand at the gate, or are just before it, and returns them.
    pub(crate) fn fillers(&self, count: usize) -> Vec<u32> {
        let since = std::time::Instant::now();
        loop {
            let fillers = self.daemon.fillers();
            if fillers.len() == count && fillers.iter().all(|&pid| is_prepared(pid)) {
                return fillers;
            }
            assert!(since.elapsed() < PATIENCE, "{fillers:?} of {count} are at the gate");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

fn pipe(gate: &Path) -> std::path::PathBuf {
    gate.join("cgroup.procs")
}

/// Whether a process that populates has begun: it then ends with its broker.
fn is_prepared(filler: u32) -> bool {
    let score = fs::read_to_string(format!("/proc/{filler}/oom_score_adj")).unwrap_or_default();
    score.trim() == "1000"
}

/// A link costs nothing, and cannot lead to another file system.
fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop))
}
