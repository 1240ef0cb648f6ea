//! Children of a guest, with serial ports that are named pipes.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Child;

use hugekit_guests::{Request, Serial, Snapshot, program};
use hugekit_vm::checkpoint::{
    ChildOptions, ChildReport, ForkError, ForkOptions, ForkReport, RunningVm, fork,
};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::proxy::{request, send};
use crate::scene::{LEN, START, registered};

/// One child. It ends when this is dropped.
pub(crate) struct ForkedGuest {
    program: Child,
    pub(crate) pid: i32,
    pub(crate) api: PathBuf,
    pub(crate) serial: Serial,
}

/// A command for a child whose serial port is two named pipes in the folder, made here.
pub(crate) fn child_of(folder: &Path, name: &str) -> (ChildOptions, Serial) {
    let path = |end: &str| folder.join(format!("{name}.{end}"));
    let pipe = |end: &str| {
        mkfifoat(CWD, path(end), Mode::RUSR | Mode::WUSR).unwrap();
        // A pipe that is open for both does not wait for its other end.
        OpenOptions::new().read(true).write(true).open(path(end)).unwrap()
    };
    let (to, from): (File, File) = (pipe("in"), pipe("out"));
    let script = "exec \"$0\" --api-sock \"$1\" --id child --level Off < \"$2\" > \"$3\"";
    let program = program().unwrap();
    let mut command = vec!["sh".into(), "-c".into(), script.into(), program.into_os_string()];
    command.extend(["api", "in", "out"].map(|end| path(end).into_os_string()));
    (ChildOptions::new(command, path("api")), Serial::of_files(to, from))
}

/// Forks a VM with an API of its own.
pub(crate) fn fork_vm(
    api: &Path,
    names: &[&str],
) -> Result<(Vec<ForkedGuest>, ForkReport), ForkError> {
    let options = ForkOptions::new(RunningVm::new(api.to_owned()), Vec::new());
    fork_with(options, api.parent().unwrap(), names)
}

/// Forks a VM. The files of its children are in the folder.
pub(crate) fn fork_with(
    mut options: ForkOptions,
    folder: &Path,
    names: &[&str],
) -> Result<(Vec<ForkedGuest>, ForkReport), ForkError> {
    let children = names.iter().map(|name| child_of(folder, name));
    let (children, serials): (Vec<_>, Vec<_>) = children.unzip();
    options.children = children;
    let forked = fork(&options)?;
    let guests = ForkedGuest::all(forked.programs, serials, &forked.report.children);
    Ok((guests, forked.report))
}

impl ForkedGuest {
    /// In the order of the reports.
    pub(crate) fn all(
        programs: Vec<Child>,
        serials: Vec<Serial>,
        reports: &[ChildReport],
    ) -> Vec<Self> {
        let all = programs.into_iter().zip(serials).zip(reports);
        all.map(|((program, serial), report)| Self::new(program, serial, report)).collect()
    }

    pub(crate) fn new(program: Child, serial: Serial, report: &ChildReport) -> Self {
        Self { program, pid: report.pid, api: report.api.clone(), serial }
    }

    /// The guest has the words, and needs no other process.
    pub(crate) fn check(&mut self, seed: u64) {
        let verify = Request::Verify { start: START, len: LEN, seed };
        assert_eq!(self.serial.ask(verify).unwrap(), 0, "words differ");
        assert_eq!(registered(self.pid), 0, "mappings are registered still");
    }

    /// A stock snapshot of the child, which stays paused.
    pub(crate) fn save(&self, to: &Snapshot) {
        let pause = request("PATCH", "/vm", r#"{"state": "Paused"}"#);
        let body = json!({"snapshot_path": to.state, "mem_file_path": to.memory});
        for text in [pause, request("PUT", "/snapshot/create", &body.to_string())] {
            let answer = send(&self.api, &text);
            assert!(answer.contains("204"), "{answer}");
        }
    }
}

impl Drop for ForkedGuest {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_raw(self.pid).unwrap(), Signal::KILL);
        let _ = self.program.wait();
    }
}
