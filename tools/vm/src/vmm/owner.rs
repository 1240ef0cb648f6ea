//! The user and the group as which a process opens files.

use std::io;
use std::os::fd::AsFd;

use hugekit_machine::processes::ProcessFolder;
use rustix::fs::{Gid, Uid, fchown};
use rustix::process::{getegid, geteuid};

/// A user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    uid: u32,
    gid: u32,
}

impl Owner {
    pub(crate) fn of_this_process() -> Self {
        Self { uid: geteuid().as_raw(), gid: getegid().as_raw() }
    }

    pub(crate) fn of(process: &ProcessFolder) -> io::Result<Self> {
        let status = process.read("status")?;
        // The fourth number is the one for files.
        let number = |key: &str| {
            let text = String::from_utf8_lossy(&status);
            let line = text.lines().find_map(|line| line.strip_prefix(key).map(str::to_owned))?;
            line.split_whitespace().nth(3)?.parse().ok()
        };
        let owner = number("Uid:").zip(number("Gid:")).map(|(uid, gid)| Self { uid, gid });
        owner.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    #[cfg(test)]
    pub(crate) fn of_nobody() -> Self {
        Self { uid: 65534, gid: 65534 }
    }

    /// Gives a file of this process's user to the owner.
    pub(crate) fn give(self, file: impl AsFd) -> io::Result<()> {
        if self != Self::of_this_process() {
            fchown(file, Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_of_this_process_is_the_one_in_proc() {
        let own = ProcessFolder::own().unwrap();
        assert_eq!(Owner::of(&own).unwrap(), Owner::of_this_process());
    }
}
