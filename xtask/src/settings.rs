//! Settings of the machine that tests need, changed while they run and put back: at the end, on an
//! error and on a signal that ends us.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// At least so many huge pages, by size in KiB.
const HUGE_PAGES: [(u64, u64); 2] = [(2048, 512), (1 << 20, 1)];

/// What was changed, and what stood there before.
#[derive(Debug, Default)]
struct Changes(Vec<(PathBuf, String)>);

impl Changes {
    fn write(&mut self, path: &Path, before: &str, now: &str) {
        // Refused, it is not changed: the tests that need it say so and count as skipped.
        if fs::write(path, now).is_ok() {
            self.0.push((path.to_owned(), before.to_owned()));
        }
    }

    fn at_least(&mut self, path: &Path, number: u64) {
        let Ok(before) = fs::read_to_string(path) else { return };
        if before.trim().parse().is_ok_and(|before: u64| before < number) {
            self.write(path, before.trim(), &number.to_string());
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

/// The settings that are in force as long as this lives.
#[derive(Debug)]
pub(crate) struct Settings(Arc<Mutex<Changes>>);

impl Settings {
    /// Reserves huge pages. What this machine or this user cannot do is left as it is.
    pub(crate) fn for_tests() -> Result<Self> {
        let changes = Arc::new(Mutex::new(Changes::default()));
        put_back_on_signals(Arc::clone(&changes))?;
        let mut locked = changes.lock().unwrap_or_else(PoisonError::into_inner);
        for (kib, pages) in HUGE_PAGES {
            let pool = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages");
            locked.at_least(Path::new(&pool), pages);
        }
        drop(locked);
        Ok(Self(changes))
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).undo();
    }
}

fn put_back_on_signals(changes: Arc<Mutex<Changes>>) -> Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot await signals")?;
    thread::spawn(move || {
        for signal in signals.forever() {
            changes.lock().unwrap_or_else(PoisonError::into_inner).undo();
            let _ = emulate_default_handler(signal);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_raised_if_need_be_and_put_back() {
        let path = std::env::temp_dir().join(format!("hugekit-xtask-{}", std::process::id()));
        for (before, during) in [("3\n", "8"), ("8\n", "8\n"), ("none\n", "none\n")] {
            fs::write(&path, before).unwrap();
            let mut changes = Changes::default();
            changes.at_least(&path, 8);
            assert_eq!(fs::read_to_string(&path).unwrap(), during);
            changes.undo();
            assert_eq!(fs::read_to_string(&path).unwrap().trim(), before.trim());
        }
        fs::remove_file(path).unwrap();
        let mut changes = Changes::default();
        changes.at_least(Path::new("/nonexistent/number"), 8);
        assert!(changes.0.is_empty());
    }
}
