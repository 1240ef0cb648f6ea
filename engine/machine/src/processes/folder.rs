//! A process's folder of `/proc`, opened once. It stays the folder of that process, also when
//! another process gets the number.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Dir, Mode, OFlags, open, openat, readlinkat};

use super::Stat;
use crate::Root;

/// A process's folder of `/proc`.
#[derive(Debug)]
pub struct ProcessFolder {
    pid: i32,
    descriptor: OwnedFd,
}

impl ProcessFolder {
    /// Opens the folder of the process that has this number now.
    ///
    /// # Errors
    /// An error if the process has ended, or if this process may not inspect it.
    pub fn open(pid: i32) -> io::Result<Self> {
        Self::within(&Root::default(), pid)
    }

    /// Like [`open`](Self::open), below another root.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn within(root: &Root, pid: i32) -> io::Result<Self> {
        Self::at(&root.path(format!("/proc/{pid}")), pid)
    }

    /// Opens the folder of this process.
    ///
    /// # Errors
    /// An error if `/proc` is not mounted.
    pub fn own() -> io::Result<Self> {
        Self::at(Path::new("/proc/self"), std::process::id() as i32)
    }

    fn at(path: &Path, pid: i32) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { pid, descriptor: open(path, flags, Mode::empty())? })
    }

    /// Returns the number of the process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Opens a file of the folder.
    ///
    /// # Errors
    /// An error if the process has ended, or if this process may not inspect it.
    pub fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(openat(self.as_fd(), name, flags, Mode::empty())?.into())
    }

    /// Reads a file of the folder.
    ///
    /// # Errors
    /// An error if the process has ended, or if this process may not inspect it.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file(name)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads the state of the process.
    ///
    /// # Errors
    /// An error if the process has ended, or if this process may not inspect it.
    pub fn stat(&self) -> io::Result<Stat> {
        Stat::parse(&self.read("stat")?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Returns the number in a line `KEY:\tNUMBER` of the process's status, such as `Tgid`.
    ///
    /// # Errors
    /// An error if the process has ended, or if this process may not inspect it.
    pub fn status(&self, key: &str) -> io::Result<Option<i64>> {
        // Sizes have a unit behind them.
        let number = |value: &[u8]| {
            std::str::from_utf8(value).ok()?.split_ascii_whitespace().next()?.parse().ok()
        };
        Ok(value(&self.read("status")?, key).and_then(number))
    }

    /// Returns true if the process has ended and its parent has not waited for it.
    #[must_use]
    pub fn is_zombie(&self) -> bool {
        let status = self.read("status").unwrap_or_default();
        value(&status, "State").is_some_and(|state| state.starts_with(b"Z"))
    }

    /// Returns the target of a link, as the kernel names it.
    ///
    /// # Errors
    /// An error if the process has ended, or if this process may not inspect it.
    pub fn link(&self, name: &str) -> io::Result<OsString> {
        Ok(OsString::from_vec(readlinkat(self.as_fd(), name, Vec::new())?.into_bytes()))
    }

    /// Returns the numbers that are names in one of the process's folders, such as `task` and `fd`.
    ///
    /// # Errors
    /// An error if the process has ended, or if this process may not inspect it.
    pub fn numbers(&self, name: &str) -> io::Result<Vec<i32>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = Dir::new(openat(self.as_fd(), name, flags, Mode::empty())?)?;
        let number = |name: &std::ffi::CStr| name.to_str().ok()?.parse().ok();
        Ok(folder.flatten().filter_map(|entry| number(entry.file_name())).collect())
    }

    /// Returns the time for which the threads of the process, summed up, were ready to run and had
    /// no CPU. `None` if the kernel does not count it.
    #[must_use]
    pub fn waited_for_cpus(&self) -> Option<Duration> {
        let of_task = |task| waited(&self.read(&format!("task/{task}/schedstat")).ok()?);
        let tasks = self.numbers("task").ok()?;
        tasks.into_iter().map(of_task).reduce(|sum, waited| Some(sum? + waited?))?
    }

    /// Returns the processes that it has started and that are still its children.
    #[must_use]
    pub fn children(&self) -> Vec<i32> {
        let of_task = |task| self.read(&format!("task/{task}/children")).unwrap_or_default();
        let parse = |word: &[u8]| std::str::from_utf8(word).ok()?.parse().ok();
        let numbers = |bytes: Vec<u8>| -> Vec<i32> {
            bytes.split(u8::is_ascii_whitespace).filter_map(parse).collect()
        };
        let tasks = self.numbers("task").unwrap_or_default();
        tasks.into_iter().map(of_task).flat_map(numbers).collect()
    }
}

impl AsFd for ProcessFolder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn value<'a>(status: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let value = |line: &'a [u8]| line.strip_prefix(key.as_bytes())?.strip_prefix(b":");
    status.split(|&byte| byte == b'\n').find_map(value).map(<[u8]>::trim_ascii)
}

/// Parses `RAN WAITED SLICES`, with times in nanoseconds.
fn waited(schedstat: &[u8]) -> Option<Duration> {
    let waited = std::str::from_utf8(schedstat).ok()?.split_ascii_whitespace().nth(1)?;
    waited.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_cpus_is_the_second_figure_of_schedstat() {
        assert_eq!(waited(b"644962 2042096 2\n"), Some(Duration::from_nanos(2_042_096)));
        assert_eq!(waited(b"0"), None);
    }
}
