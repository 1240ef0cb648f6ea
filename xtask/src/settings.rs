//! Settings of the machine that tests need, changed while they run and put back: at the end, on an
//! error and on a signal that ends us.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use procfs::{Current, Meminfo};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// Tests get at least this many free huge pages, by size in KiB, as far as the share of memory allows.
const HUGE_PAGES: [(u64, u64); 2] = [(2048, 512), (1 << 20, 1)];

/// Of the available memory, at most one part in this many becomes huge pages of one size.
const SHARE: u64 = 4;

static CHANGES: Mutex<Changes> = Mutex::new(Changes(Vec::new()));

/// The child that is ended with this process; 0 is none.
static CHILD: AtomicU32 = AtomicU32::new(0);

/// Has a signal that ends this process end a child, too, which is in a process group of its own.
pub(crate) fn end_on_signals(child: u32) {
    CHILD.store(child, Ordering::Relaxed);
}

/// The setting that was changed, and the value that stood there before.
#[derive(Debug, Default)]
struct Changes(Vec<(PathBuf, String)>);

impl Changes {
    fn write(&mut self, path: &Path, before: &str, now: &str) {
        // If the kernel refuses, the tests that need the setting are skipped with a reason.
        if fs::write(path, now).is_ok() {
            println!("{}: {now} instead of {before} until the tests end", path.display());
            self.0.push((path.to_owned(), before.to_owned()));
        }
    }

    /// Raises the number of reserved pages until `number` of them are free and promised to no mapping.
    fn at_least_free(&mut self, folder: &Path, number: u64) {
        let read = |name| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        let counts = (read("nr_hugepages"), read("free_hugepages"), read("resv_hugepages"));
        let (Some(all), Some(free), Some(promised)) = counts else { return };
        let missing = number.saturating_sub(free.saturating_sub(promised));
        if missing > 0 {
            let now = (all + missing).to_string();
            self.write(&folder.join("nr_hugepages"), &all.to_string(), &now);
        }
    }

    /// Has khugepaged scan all memory without rest.
    fn no_rest_for_khugepaged(&mut self, folder: &Path) {
        for (name, now) in [
            ("scan_sleep_millisecs", "0"),
            ("alloc_sleep_millisecs", "0"),
            ("pages_to_scan", "65536"),
        ] {
            let path = folder.join(name);
            if let Ok(before) = fs::read_to_string(&path) {
                self.write(&path, before.trim(), now);
            }
        }
    }

    /// Puts everything back, the last change first.
    fn undo(&mut self) {
        while let Some((path, before)) = self.0.pop() {
            if let Err(error) = fs::write(&path, &before) {
                eprintln!("{} is not {before} again: {error}", path.display());
            }
        }
    }
}

/// Settings that stay changed as long as this value lives.
#[derive(Debug)]
pub(crate) struct Settings;

impl Settings {
    /// Reserves huge pages and lets khugepaged work without rest, as far as this machine and this user permit.
    pub(crate) fn for_soak() -> Result<Self> {
        let settings = Self::for_tests()?;
        let folder = Path::new("/sys/kernel/mm/transparent_hugepage/khugepaged");
        changes().no_rest_for_khugepaged(folder);
        Ok(settings)
    }

    /// Reserves huge pages, of at most a quarter of the available memory, as far as this machine and this user permit.
    pub(crate) fn for_tests() -> Result<Self> {
        put_back_on_signals()?;
        let available = Meminfo::current().ok().and_then(|memory| memory.mem_available);
        for (kib, pages) in HUGE_PAGES {
            let folder = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB");
            let affordable = available.unwrap_or(0) / SHARE / (kib << 10);
            changes().at_least_free(Path::new(&folder), pages.min(affordable));
        }
        Ok(Self)
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        changes().undo();
    }
}

fn changes() -> MutexGuard<'static, Changes> {
    CHANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn put_back_on_signals() -> Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot await signals")?;
    thread::spawn(move || {
        for signal in signals.forever() {
            let child = CHILD.load(Ordering::Relaxed);
            if child != 0 {
                let child = Pid::from_raw(child.cast_signed());
                let _ = child.map(|child| kill_process(child, Signal::TERM));
            }
            changes().undo();
            let _ = emulate_default_handler(signal);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_missing_are_added_and_put_back() {
        let folder = std::env::temp_dir().join(format!("hugekit-xtask-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let all = folder.join("nr_hugepages");
        for (before, free, promised, during) in [
            ("3", "3", "0", "8"),
            ("8", "8", "0", "8"),
            ("20", "5", "4", "27"),
            ("?", "5", "0", "?"),
        ] {
            fs::write(&all, before).unwrap();
            fs::write(folder.join("free_hugepages"), free).unwrap();
            fs::write(folder.join("resv_hugepages"), promised).unwrap();
            let mut changes = Changes::default();
            changes.at_least_free(&folder, 8);
            assert_eq!(fs::read_to_string(&all).unwrap(), during);
            changes.undo();
            assert_eq!(fs::read_to_string(&all).unwrap(), before);
        }
        fs::remove_dir_all(folder).unwrap();
        let mut changes = Changes::default();
        changes.no_rest_for_khugepaged(Path::new("/nonexistent"));
        changes.at_least_free(Path::new("/nonexistent"), 8);
        assert!(changes.0.is_empty());
    }
}
