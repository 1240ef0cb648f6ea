//! Programs of forked VMs, with serial ports that are named pipes.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use hugekit_guests::{Serial, program};
use hugekit_vm::checkpoint::ChildOptions;
use rustix::fs::{CWD, Mode, mkfifoat};

/// The files of a child are in this folder.
pub fn child(folder: &Path, name: &str) -> io::Result<(ChildOptions, Serial)> {
    let path = |end: &str| folder.join(format!("{name}.{end}"));
    let pipe = |end: &str| -> io::Result<File> {
        mkfifoat(CWD, path(end), Mode::RUSR | Mode::WUSR)?;
        // A pipe that is open for both does not wait for its other end.
        OpenOptions::new().read(true).write(true).open(path(end))
    };
    let serial = Serial::of_files(pipe("in")?, pipe("out")?);
    let program = program().ok_or_else(|| io::Error::other("no Firecracker is named"))?;
    let script = "exec \"$0\" --api-sock \"$1\" --id child --level Off < \"$2\" > \"$3\"";
    let mut command = vec!["sh".into(), "-c".into(), script.into(), program.into_os_string()];
    command.extend(["api", "in", "out"].map(|end| path(end).into_os_string()));
    Ok((ChildOptions::new(command, path("api")), serial))
}
