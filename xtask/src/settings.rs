//! Settings of the machine that tests need, changed while they run and put back by the last run: at the end, on an error
//! and on a signal that ends us. After a kill the next run does so.

mod originals;

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use procfs::{Current, Meminfo};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use self::originals::Originals;

/// Tests get at least this many free huge pages, by size in KiB, as far as the share of memory allows.
const HUGE_PAGES: [(u64, u64); 2] = [(2048, 512), (1 << 20, 1)];

/// At most one part in this many of the available memory becomes huge pages of one size.
const SHARE: u64 = 4;

/// The file of the values before: gone at the next boot, as the changes are. Only root, who can change settings, can
/// make it.
const STATE: &str = "/run/hugekit-xtask.settings";

static CHANGES: Mutex<Changes> = Mutex::new(Changes(None));

/// The child that is ended with this process; 0 is none.
static CHILD: AtomicU32 = AtomicU32::new(0);

/// Has a signal that ends this process end a child, too, which is in a process group of its own.
pub(crate) fn end_on_signals(child: u32) {
    CHILD.store(child, Ordering::Relaxed);
}

/// Changes of settings, which are made only if their values can be kept for the end.
#[derive(Debug, Default)]
struct Changes(Option<Originals>);

impl Changes {
    fn begin(state: &Path) -> Self {
        let originals = Originals::join(state);
        // Without permission nothing can be changed: the tests that need a setting are skipped with a reason.
        if let Err(error) = &originals
            && error.kind() != ErrorKind::PermissionDenied
        {
            eprintln!("no settings are changed for tests: {}: {error}", state.display());
        }
        Self(originals.ok())
    }

    fn write(&self, path: &Path, before: &str, now: &str) {
        let changed = self.0.as_ref().map(|originals| originals.change(path, before, now));
        // If the kernel refuses, the tests that need the setting are skipped with a reason.
        if matches!(changed, Some(Ok(()))) {
            println!("{}: {now} instead of {before} until the tests end", path.display());
        }
    }

    /// Raises the number of reserved pages until `number` of them are free and promised to no mapping.
    fn at_least_free(&self, folder: &Path, number: u64) {
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
    fn no_rest_for_khugepaged(&self, folder: &Path) {
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

    /// Puts everything back, unless another run is left that does so.
    fn undo(&mut self) {
        if let Some(Err(error)) = self.0.take().map(Originals::leave) {
            eprintln!("the settings are not put back: {error}");
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
        *changes() = Changes::begin(Path::new(STATE));
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
        let folder = tempfile::tempdir().unwrap();
        let (state, folder) = (folder.path().join("state"), folder.path());
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
            let mut changes = Changes::begin(&state);
            changes.at_least_free(folder, 8);
            assert_eq!(fs::read_to_string(&all).unwrap(), during);
            changes.undo();
            assert_eq!(fs::read_to_string(&all).unwrap(), before);
        }
        let mut changes = Changes::begin(&state);
        changes.no_rest_for_khugepaged(Path::new("/nonexistent"));
        changes.at_least_free(Path::new("/nonexistent"), 8);
        changes.undo();
    }

    #[test]
    fn settings_whose_values_cannot_be_kept_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (state, all) = (folder.path().join("absent/state"), folder.path().join("nr_hugepages"));
        for name in ["nr_hugepages", "free_hugepages", "resv_hugepages"] {
            fs::write(folder.path().join(name), "0").unwrap();
        }
        let mut changes = Changes::begin(&state);
        changes.at_least_free(folder.path(), 8);
        assert_eq!(fs::read_to_string(&all).unwrap(), "0");
        changes.undo();
    }
}
