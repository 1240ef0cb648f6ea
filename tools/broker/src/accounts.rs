//! Accounts: the users whose quotas and whose shares of connections a user counts for.
//!
//! `/etc/subuid` gives a user ranges of user numbers for user namespaces, usually 65,536 numbers.
//! All numbers of a range count as their owner. A range of root's is for containers, and counts as
//! one user that is not root.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use hugekit_machine::Root;
use hugekit_sys::input;

const RANGES: &str = "/etc/subuid";
const USERS: &str = "/etc/passwd";

/// The highest length of either file in bytes.
const LONGEST: u64 = 16 << 20;

/// The account of each user.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Users that count as themselves, because the administrator has given them quotas.
    named: BTreeSet<u32>,
    ranges: Vec<IdRange>,
    /// The version of the file from which the ranges were read.
    version: Option<FileVersion>,
}

/// The version of a file: inode number, length and time of the last change.
type FileVersion = (u64, u64, SystemTime);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IdRange {
    first: u32,
    count: u32,
    account: u32,
}

impl Accounts {
    pub(crate) fn new(named: BTreeSet<u32>) -> Self {
        Self { named, ..Self::default() }
    }

    /// Returns the account of a user, which is a user's number.
    pub(crate) fn account_of(&self, uid: u32) -> u32 {
        let has =
            |range: &&IdRange| uid.checked_sub(range.first).is_some_and(|nth| nth < range.count);
        let range = self.ranges.iter().find(has).filter(|_| uid != 0 && !self.named.contains(&uid));
        range.map_or(uid, |range| range.account)
    }

    /// Reads the file again if it has changed.
    pub(crate) fn refresh(&mut self, root: &Root) {
        let version = version(&root.path(RANGES)).ok();
        if version != self.version {
            let text = |file: &str| {
                let bytes =
                    input::open(&root.path(file)).and_then(|file| input::read(&file, LONGEST));
                String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
            };
            let users = text(USERS);
            self.ranges =
                text(RANGES).lines().filter_map(|line| IdRange::of(line, &users)).collect();
            self.version = version;
        }
    }
}

fn version(file: &Path) -> io::Result<FileVersion> {
    let found = fs::metadata(file)?;
    Ok((found.ino(), found.len(), found.modified()?))
}

impl IdRange {
    /// Parses a line `owner:first:count`. The owner is a name or a number.
    fn of(line: &str, users: &str) -> Option<Self> {
        let mut fields = line.trim().split(':');
        let (owner, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        let (first, count) = (first.parse().ok()?, count.parse().ok()?);
        let owner = owner.parse().ok().or_else(|| number_of(owner, users));
        // No lookup beyond the file: one in a directory service could make the broker wait.
        Some(Self { first, count, account: owner.filter(|&owner| owner != 0).unwrap_or(first) })
    }
}

fn number_of(name: &str, users: &str) -> Option<u32> {
    let mut users = users.lines().map(|line| line.split(':'));
    users.find_map(|mut user| if user.next()? == name { user.nth(1)?.parse().ok() } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(subuid: &[u8]) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("etc")).unwrap();
        fs::write(folder.path().join("etc/subuid"), subuid).unwrap();
        let users = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n";
        fs::write(folder.path().join("etc/passwd"), users).unwrap();
        let root = Root::at(folder.path());
        (folder, root)
    }

    #[test]
    fn ranges_count_as_their_owner() {
        let (folder, root) = machine(
            b"alice:100000:65536\n1001:165536:65536\nroot:300000:10\ngone:400000:10\n\xff:1:x\n\nbad:1\n",
        );
        let mut accounts = Accounts::new([100_005].into());
        accounts.refresh(&root);
        let of =
            |uids: &[u32]| uids.iter().map(|&uid| accounts.account_of(uid)).collect::<Vec<_>>();
        assert_eq!(of(&[0, 1000, 99_999, 300_010]), [0, 1000, 99_999, 300_010]);
        assert_eq!(of(&[100_000, 165_535, 165_536, 231_071]), [1000, 1000, 1001, 1001]);
        // Of root's own, of an owner without an account, and named by the administrator.
        assert_eq!(of(&[300_009, 400_003, 100_005]), [300_000, 400_000, 100_005]);
        // No range makes root another user, or a user root.
        let (_folder, all) = machine(b"alice:0:4294967295\n");
        accounts.refresh(&all);
        assert_eq!((accounts.account_of(0), accounts.account_of(7)), (0, 1000));
        fs::remove_file(folder.path().join("etc/subuid")).unwrap();
        accounts.refresh(&root);
        assert_eq!(accounts.account_of(100_000), 100_000);
    }
}
