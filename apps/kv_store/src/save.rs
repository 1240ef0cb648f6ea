//! Saving: a dump takes the place of the one before when it is on the disk, all of it, and not before.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use hugekit::Cancel;
use hugekit::snapshot::Stats;
use rustix::process::setpriority_process;

use super::dump::{self, Dumper};
use super::slabs::Point;
use super::store::Store;

const DUMP: &str = "dump.hkv";
/// What a save writes until it is whole. One that was killed leaves it behind, and the next one overwrites it.
const PARTIAL: &str = "dump.hkv.part";

/// Where dumps are. No other process may use it meanwhile.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    pub fn open(path: &Path) -> Result<Self> {
        let path = path.to_owned();
        let lock = path.join("dump.hkv.lock");
        let open = File::options().create(true).truncate(false).write(true).open(&lock);
        let file = open.with_context(|| format!("cannot open {}", lock.display()))?;
        let locked = file.try_lock();
        locked.with_context(|| format!("{} is in use by another server", path.display()))?;
        Ok(Self { path, _lock: file })
    }

    /// Loads the dump, if there is one. Returns how many entries it had.
    pub fn load(&self, store: &mut Store, now: u64) -> Result<Option<u64>> {
        let path = self.path.join(DUMP);
        if !path.try_exists().with_context(|| format!("{}", path.display()))? {
            return Ok(None);
        }
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let len = file.metadata()?.len();
        let take = |entry: &super::store::Entry<'_>| {
            if entry.is_gone(now) { Ok(()) } else { store.set(entry, now) }
        };
        let loaded = dump::read(file, len, take)
            .with_context(|| format!("{} is left as it is, and nothing served", path.display()))?;
        Ok(Some(loaded))
    }

    /// Writes a dump of what `fill` writes. If it fails, the one before is still there.
    fn save(&self, now: u64, fill: impl FnOnce(&mut Dumper<File>) -> Result<()>) -> Result<u64> {
        let partial = self.path.join(PARTIAL);
        let saved = write_whole(&partial, now, fill).and_then(|entries| {
            fs::rename(&partial, self.path.join(DUMP)).context("rename")?;
            File::open(&self.path).and_then(|folder| folder.sync_all()).context("fsync")?;
            Ok(entries)
        });
        if saved.is_err() {
            // Not there, or no matter: the next save overwrites it.
            let _ = fs::remove_file(&partial);
        }
        saved.with_context(|| format!("cannot save to {}", partial.display()))
    }
}

fn write_whole(
    path: &Path,
    now: u64,
    fill: impl FnOnce(&mut Dumper<File>) -> Result<()>,
) -> Result<u64> {
    let mut dumper = Dumper::new(File::create(path)?, now)?;
    fill(&mut dumper)?;
    let (file, entries) = dumper.finish()?;
    file.sync_all()?;
    Ok(entries)
}

/// A save in the background.
#[derive(Debug)]
struct Running {
    /// Gives the copy of the pages back.
    thread: JoinHandle<(Result<Stats>, Vec<u8>)>,
    began: Instant,
    changes: u64,
    cancel: Arc<Cancel>,
}

/// What is known of saves.
#[derive(Debug)]
pub struct Saver {
    folder: Arc<Folder>,
    nice: i32,
    running: Option<Running>,
    pub last: Last,
}

/// Of the saves that are over.
#[derive(Clone, Debug)]
pub struct Last {
    /// Seconds since 1970 of the last one that succeeded, or of the start.
    pub saved_at: u64,
    /// Changes that it had.
    pub changes: u64,
    pub succeeded: bool,
    pub took: Option<Duration>,
    /// How long the server stood still for the last one in the background.
    pub stood_still: Duration,
    pub snapshot: Stats,
}

impl Saver {
    pub fn new(folder: Folder, nice: i32, changes: u64, now: u64) -> Self {
        let last = Last {
            saved_at: now / 1000,
            changes,
            succeeded: true,
            took: None,
            stood_still: Duration::ZERO,
            snapshot: Stats::default(),
        };
        Self { folder: Arc::new(folder), nice, running: None, last }
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Saves while every client waits.
    pub fn save(&mut self, store: &Store, now: u64) -> Result<()> {
        let began = Instant::now();
        let saved = self.folder.save(now, |dumper| Ok(dumper.write_all(store.bytes())?));
        self.ended(saved.map(|_| ()), began.elapsed(), store.changes(), now)
    }

    /// Takes a snapshot, and saves it in the background.
    pub fn start(&mut self, store: &mut Store, now: u64) -> Result<()> {
        let began = Instant::now();
        let started = self.try_start(store, now, began);
        self.last.stood_still = began.elapsed();
        match started {
            Ok(running) => {
                self.running = Some(running);
                Ok(())
            }
            Err(error) => {
                store.saved(Vec::new());
                self.ended(Err(error), began.elapsed(), 0, now)
            }
        }
    }

    fn try_start(&self, store: &mut Store, now: u64, began: Instant) -> Result<Running> {
        let read = Arc::new(AtomicUsize::new(0));
        let Point { pages, entries } = store.snapshot(Arc::clone(&read)).context("no snapshot")?;
        let (folder, nice, cancel) = (Arc::clone(&self.folder), self.nice, Arc::new(Cancel::new()));
        let asked = Arc::clone(&cancel);
        let work = move || {
            // Clients that wait for an answer come first.
            let _ = setpriority_process(None, nice);
            let progress = |bytes: usize, _| read.store(bytes, Ordering::Release);
            let mut stats = Stats::default();
            let saved = folder.save(now, |dumper| {
                dumper.write_all(&pages)?;
                stats = entries.write_to_with(dumper, Some(&progress), Some(&asked))?;
                Ok(())
            });
            (saved.map(|_| stats), pages)
        };
        let thread = std::thread::Builder::new().name("save".to_owned()).spawn(work)?;
        Ok(Running { thread, began, changes: store.changes(), cancel })
    }

    /// Looks whether a save in the background is over.
    pub fn look(&mut self, store: &mut Store, now: u64) {
        if self.running.as_ref().is_some_and(|running| running.thread.is_finished()) {
            let _ = self.wait(store, now);
        }
    }

    /// Stops a save in the background, and waits for its end.
    pub fn stop(&mut self, store: &mut Store, now: u64) {
        if let Some(running) = &self.running {
            running.cancel.cancel();
            let _ = self.wait(store, now);
        }
    }

    fn wait(&mut self, store: &mut Store, now: u64) -> Result<()> {
        let Some(Running { thread, began, changes, .. }) = self.running.take() else {
            bail!("no save runs");
        };
        let panicked = |_| (Err(anyhow!("its thread panicked")), Vec::new());
        let (stats, pages) = thread.join().unwrap_or_else(panicked);
        store.saved(pages);
        let saved = stats.map(|stats| self.last.snapshot = stats);
        self.ended(saved, began.elapsed(), changes, now)
    }

    fn ended(&mut self, saved: Result<()>, took: Duration, changes: u64, now: u64) -> Result<()> {
        self.last.took = Some(took);
        self.last.succeeded = saved.is_ok();
        match &saved {
            Ok(()) => {
                (self.last.saved_at, self.last.changes) = (now / 1000, changes);
                eprintln!("saved in {took:.2?}");
            }
            Err(error) => eprintln!("not saved, the dump before is kept: {error:#}"),
        }
        saved
    }
}
