//! Starting other programs, and the folders of this repository.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The variable that permits a command to fetch missing files: `--install` sets it, and started commands inherit it.
pub(crate) const INSTALL: &str = "HUGEKIT_INSTALL";

pub(crate) fn may_install() -> bool {
    std::env::var_os(INSTALL).is_some()
}

/// The repository's folder.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("")
}

/// A folder below `target/`.
pub(crate) fn target_dir(name: &str) -> PathBuf {
    root().join("target").join(name)
}

/// The folder that cargo builds in: `CARGO_TARGET_DIR` or a configuration file may name another one than `target/`.
pub(crate) fn build_dir() -> Result<PathBuf> {
    let metadata = metadata()?;
    Ok(metadata["target_directory"].as_str().context("cargo names no target directory")?.into())
}

/// Returns cargo's description of the workspace.
pub(crate) fn metadata() -> Result<Value> {
    let printed = output(&mut cargo(&["metadata", "--format-version", "1", "--no-deps"]))?;
    Ok(serde_json::from_str(&printed)?)
}

pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).current_dir(root());
    command
}

/// The compiler's name for this machine.
pub(crate) fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = output(Command::new(rustc).arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not print its host")
}

/// Runs a command that prints for the user; it must succeed.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    ensure!(passes(command)?, "{command:?} failed");
    Ok(())
}

/// Runs a command that prints for the user. Whether it succeeded.
pub(crate) fn passes(command: &mut Command) -> Result<bool> {
    Ok(command.status().with_context(|| format!("cannot start {command:?}"))?.success())
}

/// The output of a command that must succeed; the error has its output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}\n{printed}{}", output.status, errors.trim());
    }
    Ok(printed)
}

/// The output of a command, if it starts and succeeds.
pub(crate) fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Each line as soon as it is written; the channel ends with the output.
pub(crate) fn lines(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
        let text = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
        text.map(|line| sender.send(line)).take_while(Result::is_ok).last()
    });
    lines
}

/// Empties a folder, or makes it.
pub(crate) fn fresh(folder: PathBuf) -> Result<PathBuf> {
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}
