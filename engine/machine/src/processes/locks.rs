//! Locks on files, from `/proc/locks`.

use crate::Root;

/// Returns the process that holds a lock of `flock(2)` on a file, by the file's device and inode. `None` if no process
/// does, or if the kernel does not show it in this PID namespace.
#[must_use]
pub fn holder_of_lock(root: &Root, device: u64, inode: u64) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let locks = root.read_if_present("/proc/locks").ok()??;
    holder(&locks, &format!("{major:02x}:{minor:02x}:{inode}"))
}

/// Finds the holder in lines such as `3: FLOCK  ADVISORY  WRITE 4711 00:16:12345 0 EOF`. 0 is a
/// process of another PID namespace.
fn holder(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let at = fields.iter().position(|field| *field == "FLOCK")?;
        // A line of a process that waits has an arrow before the kind.
        let is_held = !fields[..at].contains(&"->") && *fields.get(at + 4)? == file;
        fields.get(at + 3).filter(|_| is_held)?.parse().ok().filter(|&pid| pid != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::Synthetic;

    #[test]
    fn holder_of_a_lock_is_neither_a_waiter_nor_of_another_namespace() {
        let machine = Synthetic::new();
        let locks = "1: POSIX  ADVISORY  WRITE 7 00:16:12 0 0\n\
            2: FLOCK  ADVISORY  WRITE 8 00:16:13 0 EOF\n\
            3: FLOCK  ADVISORY  WRITE 9 00:16:12 0 EOF\n\
            3: -> FLOCK  ADVISORY  WRITE 10 00:16:14 0 EOF\n\
            4: FLOCK  ADVISORY  WRITE 0 00:16:15 0 EOF\n";
        machine.file("/proc/locks", locks);
        let holder = |inode| holder_of_lock(&machine.root(), rustix::fs::makedev(0, 0x16), inode);
        assert_eq!(holder(12), Some(9));
        assert_eq!(holder(14), None, "it waits");
        assert_eq!(holder(15), None, "of another namespace");
    }
}
