//! The threads of this process.

use super::{Error, Root, text};
use hugekit_sys::injection::{Call, pass};

const TASKS: &str = "/proc/self/task";

/// Returns the IDs of all threads. The first thread has the ID of the process. Threads that start
/// or end meanwhile may be included or not.
///
/// # Errors
/// [`Error`] if `/proc/self/task` cannot be read.
pub fn ids(root: &Root) -> Result<Vec<u32>, Error> {
    let path = root.path(TASKS);
    let entries = pass(Call::Open).map_err(Into::into).and_then(|()| std::fs::read_dir(&path));
    let entries = entries.map_err(|source| Error::Unreadable { path, source })?;
    let name = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(entries.flatten().filter_map(name).collect())
}

/// Returns true if a thread blocks a signal now; `None` if the thread has ended.
///
/// # Errors
/// [`Error`] if the status of the thread cannot be read or understood.
pub fn blocks(root: &Root, thread: u32, signal: u32) -> Result<Option<bool>, Error> {
    let path = format!("{TASKS}/{thread}/status");
    let status = match root.read(&path) {
        Err(error) if error.is_not_found() || error.is_of_a_dead_thread() => return Ok(None),
        read => read?,
    };
    let mask = text::field(&status, "SigBlk:").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    let mask = mask.ok_or_else(|| Error::malformed(root.path(&path), "SigBlk", &status))?;
    Ok(Some(mask >> (signal - 1) & 1 == 1))
}

/// Returns true if a thread runs, or would run if it had a CPU, and the nanoseconds that it has
/// run. `None` if the thread has ended, or if the kernel does not count this (`CONFIG_SCHED_INFO`).
pub fn progress(root: &Root, thread: u32) -> Option<(bool, u64)> {
    let status = root.read(format!("{TASKS}/{thread}/status")).ok()?;
    let counts = root.read(format!("{TASKS}/{thread}/schedstat")).ok()?;
    let is_runnable = text::field(&status, "State:")?.starts_with('R');
    Some((is_runnable, counts.split_whitespace().next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Synthetic;
    use super::*;

    #[test]
    fn blocked_signals_of_a_mask_are_its_bits() {
        let machine = Synthetic::new();
        machine.file("/proc/self/task/7/status", "Name:\ta\nSigBlk:\t0000000000000040");
        machine.file("/proc/self/task/12/status", "nothing");
        let mut found = ids(&machine.root()).unwrap();
        found.sort_unstable();
        assert_eq!(found, [7, 12]);
        let blocks = |thread, signal| blocks(&machine.root(), thread, signal);
        assert_eq!(blocks(7, 7).unwrap(), Some(true));
        assert_eq!(blocks(7, 6).unwrap(), Some(false));
        assert_eq!(blocks(8, 7).unwrap(), None);
        assert!(matches!(blocks(12, 7), Err(Error::Malformed { .. })));
    }

    #[test]
    fn progress_of_a_thread_is_what_it_has_run() {
        let machine = Synthetic::new();
        machine.file("/proc/self/task/7/status", "State:\tR (running)\nSigBlk:\t0");
        machine.file("/proc/self/task/7/schedstat", "1234 5 6");
        machine.file("/proc/self/task/8/status", "State:\tS (sleeping)");
        machine.file("/proc/self/task/8/schedstat", "77 5 6");
        machine.file("/proc/self/task/9/status", "State:\tS (sleeping)");
        let of = |thread| progress(&machine.root(), thread);
        assert_eq!(of(7), Some((true, 1234)));
        assert_eq!(of(8), Some((false, 77)));
        assert_eq!((of(9), of(10)), (None, None));
    }
}
