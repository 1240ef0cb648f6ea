//! Where the real programs are: on the path, or where `cargo xtask test --install` unpacks them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A command that runs one of redis' programs; `Err` says how to get it.
pub fn program(name: &str) -> Result<Command, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/redis/root");
    let found = [PathBuf::from(name), root.join("usr/bin").join(name)].into_iter().find(|path| {
        let mut command = with_libraries(path, &root);
        let ran = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        ran.is_ok_and(|status| status.success())
    });
    let found =
        found.ok_or_else(|| format!("no {name} (apt-get install redis-tools redis-server)"))?;
    Ok(with_libraries(&found, &root))
}

fn with_libraries(path: &Path, root: &Path) -> Command {
    let mut command = Command::new(path);
    if path.starts_with(root) {
        let mut libraries: OsString = root.join("usr/lib").into();
        libraries.push(format!("/{}-linux-gnu", std::env::consts::ARCH));
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command
}
