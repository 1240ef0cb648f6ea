//! The program that gets the memory.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use hugekit_machine::size::Size;
use rustix::io::FdFlags;

use super::{mistakes, not_started};
use hugekit_terminal::outcome::UsageError;

/// The placeholders of the memory's path and of its number.
const PATH: &[u8] = b"{}";
const NUMBER: &[u8] = b"{fd}";

/// The environment variable that has the memory's path.
const VARIABLE: &str = "HUGEKIT_LEASE_PATH";

/// A program and its arguments, of which one names the memory.
#[derive(Debug)]
pub(super) struct Prepared<'a> {
    program: &'a OsStr,
    arguments: &'a [OsString],
}

impl<'a> Prepared<'a> {
    /// Refuses what could only fail later, or work at twice the memory.
    pub(super) fn new(command: &'a [OsString], leased: Size) -> Result<Self, UsageError> {
        let (program, arguments) = command.split_first().expect("required");
        let prepared = Self { program, arguments };
        if prepared.naming().is_none() {
            let message = "no argument contains {} or {fd}: write one in place of the memory";
            return Err(UsageError(message.to_owned()));
        }
        mistakes::check(arguments, leased)?;
        Ok(prepared)
    }

    /// Returns a program that maps the memory privately: it may know the path from its environment
    /// alone.
    pub(super) fn with_image(command: &'a [OsString]) -> Self {
        let (program, arguments) = command.split_first().expect("required");
        Self { program, arguments }
    }

    /// Returns the argument that names the memory.
    fn naming(&self) -> Option<&'a OsStr> {
        self.arguments.iter().find(|argument| names_memory(argument)).map(OsString::as_os_str)
    }

    /// Returns a warning if a part of the memory has no use.
    pub(super) fn unused(&self, leased: Size) -> Option<String> {
        mistakes::unused(self.arguments, leased)
    }

    /// Returns true if QEMU, if it is that, maps the memory at a multiple of 2 MiB.
    pub(super) fn is_aligned(&self) -> bool {
        let naming = self.naming().unwrap_or_default().to_string_lossy();
        !naming.contains("memory-backend-file") || naming.contains("align")
    }

    /// Becomes the program. Returns why not.
    pub(super) fn start(&self, file: &OwnedFd) -> anyhow::Error {
        if let Err(errno) = rustix::io::fcntl_setfd(file, FdFlags::empty()) {
            return not_started(self.program, errno.into());
        }
        let number = file.as_raw_fd().to_string();
        let path = format!("/proc/self/fd/{number}");
        let fill_in = |argument: &OsString| {
            let with_number = replaced(argument.as_bytes(), NUMBER, number.as_bytes());
            OsString::from_vec(replaced(&with_number, PATH, path.as_bytes()))
        };
        let arguments = self.arguments.iter().map(fill_in);
        let mut command = Command::new(self.program);
        not_started(self.program, command.args(arguments).env(VARIABLE, &path).exec())
    }
}

/// Returns true if an argument has a placeholder of the memory.
pub(super) fn names_memory(argument: &OsStr) -> bool {
    [PATH, NUMBER].iter().any(|mark| find(argument.as_bytes(), mark).is_some())
}

fn find(text: &[u8], mark: &[u8]) -> Option<usize> {
    text.windows(mark.len()).position(|window| window == mark)
}

fn replaced(text: &[u8], mark: &[u8], by: &[u8]) -> Vec<u8> {
    match find(text, mark) {
        None => text.to_vec(),
        Some(at) => {
            let rest = replaced(&text[at + mark.len()..], mark, by);
            [&text[..at], by, &rest].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(Into::into).collect()
    }

    #[test]
    fn program_without_the_memory_among_its_arguments_is_refused() {
        assert!(Prepared::new(&words("cat /dev/null"), Size(4 << 20)).is_err());
        for good in ["cat {}", "cat fd={fd}", "cat a{}b{}"] {
            Prepared::new(&words(good), Size(4 << 20)).unwrap();
        }
    }

    #[test]
    fn marks_are_replaced_wherever_they_stand() {
        assert_eq!(replaced(b"{}", PATH, b"/p"), b"/p");
        assert_eq!(replaced(b"a{}b{}c", PATH, b"{}x"), b"a{}xb{}xc");
        assert_eq!(replaced(b"none", PATH, b"x"), b"none");
    }
}
