//! A swap file of a test.

use std::io::Read;

/// A swap file, in use as long as this lives.
pub struct Swap(tempfile::NamedTempFile);

impl Swap {
    pub fn new() -> Result<Self, String> {
        let file =
            tempfile::NamedTempFile::new_in("/var/tmp").map_err(|error| error.to_string())?;
        let written = std::io::copy(&mut std::io::repeat(0).take(64 << 20), &mut file.as_file());
        written.and_then(|_| file.as_file().sync_all()).map_err(|error| error.to_string())?;
        for command in ["mkswap", "swapon"] {
            let output = std::process::Command::new(command).arg(file.path()).output();
            let output = output.map_err(|error| format!("{command}: {error}"))?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into_owned());
            }
        }
        Ok(Self(file))
    }

    /// Bytes of it that are in use.
    pub fn used(&self) -> usize {
        let swaps = std::fs::read_to_string("/proc/swaps").unwrap();
        let path = self.0.path().to_str().unwrap();
        let line = swaps.lines().find(|line| line.starts_with(path)).unwrap();
        line.split_whitespace().nth(3).unwrap().parse::<usize>().unwrap() << 10
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        assert!(
            std::process::Command::new("swapoff").arg(self.0.path()).status().unwrap().success()
        );
    }
}
