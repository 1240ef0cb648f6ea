//! Processes that map a file.

use std::fmt;
use std::io::{self, ErrorKind};

use hugekit_machine::Root;
use hugekit_machine::processes::{MappingLine, ProcessFolder, numbers};
use serde::Serialize;

/// Other processes that map a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileUsers {
    /// The numbers of the processes, ascending. Processes that this process may not inspect are
    /// missing.
    pub pids: Vec<i32>,
    /// The number of processes that this process may not inspect. They may map the file or not.
    pub hidden: usize,
}

impl FileUsers {
    /// Finds the processes that map the file which this process has mapped at `address`. The kernel names it there by the
    /// same numbers in all of them; stat(2) has other ones on some file systems.
    ///
    /// # Errors
    /// `/proc` cannot be read, or nothing is mapped at the address.
    pub(crate) fn of_mapping_at(root: &Root, address: usize) -> io::Result<Self> {
        let own = std::process::id() as i32;
        let maps = ProcessFolder::own()?.read("maps")?;
        let is_there = |line: &MappingLine<'_>| line.addresses.contains(&(address as u64));
        let mapped = lines(&maps).find(is_there).ok_or(ErrorKind::NotFound)?;
        let identity = (mapped.device, mapped.inode);
        let mut users = Self::default();
        for pid in numbers(root)?.into_iter().filter(|&pid| pid != own) {
            match ProcessFolder::within(root, pid).and_then(|process| process.read("maps")) {
                Ok(maps) => {
                    let maps_it = lines(&maps).any(|line| (line.device, line.inode) == identity);
                    users.pids.extend(maps_it.then_some(pid));
                }
                Err(error) if error.kind() == ErrorKind::PermissionDenied => users.hidden += 1,
                // It has ended meanwhile.
                Err(_) => {}
            }
        }
        users.pids.sort_unstable();
        Ok(users)
    }
}

fn lines(maps: &[u8]) -> impl Iterator<Item = MappingLine<'_>> {
    maps.split(|&byte| byte == b'\n').filter_map(MappingLine::parse)
}

impl fmt::Display for FileUsers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let but_last = self.pids.len().saturating_sub(1);
        match self.pids.split_at(but_last) {
            (_, []) => f.write_str("no process that this user may look at"),
            ([], [pid]) => write!(f, "process {pid}"),
            (others, last) => {
                let others: Vec<_> = others.iter().map(i32::to_string).collect();
                write!(f, "processes {} and {}", others.join(", "), last[0])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_listed_as_people_say_it() {
        let said = |pids: &[i32]| FileUsers { pids: pids.to_vec(), hidden: 1 }.to_string();
        assert_eq!(said(&[5]), "process 5");
        assert_eq!(said(&[5, 6, 7]), "processes 5, 6 and 7");
        assert_eq!(said(&[]), "no process that this user may look at");
    }

    #[test]
    fn address_without_a_file_is_an_error() {
        let nothing = FileUsers::of_mapping_at(&Root::default(), 1).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::NotFound);
    }
}
