//! Saving: SAVE writes all entries while every client waits. BGSAVE takes a snapshot, and another thread writes the
//! blocks of it that have changed since the save before, or now and then all of it.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use hugekit::Cancel;
use hugekit::snapshot::Stats;
use hugekit_delta::Chain;
use rustix::process::setpriority_process;

use super::arena::{Unsaved, Watched};
use super::dump::Dumper;
use super::folder::{Folder, Name};
use super::image::Taker;
use super::load::{self, Saved};
use super::slabs::Point;
use super::store::Store;

/// When a save is due by itself, and when it is all of the store instead of what has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Seconds from one save to the next, if anything was changed; 0 if clients have to ask.
    pub every: u64,
    /// Deltas that may follow on an image.
    pub deltas: u64,
    /// How long they may be together, in hundredths of the image.
    pub percent: u64,
}

impl Policy {
    /// Whether another delta may follow.
    fn takes_another(&self, saved: &Saved) -> bool {
        let most = saved.full_bytes.saturating_mul(self.percent) / 100;
        saved.deltas < self.deltas && saved.delta_bytes < most
    }
}

/// A save in the background.
#[derive(Debug)]
struct Running {
    thread: JoinHandle<Written>,
    began: Instant,
    changes: u64,
    cancel: Arc<Cancel>,
}

/// What the thread that saves gives back.
#[derive(Debug)]
struct Written {
    pages: Vec<u8>,
    /// What another delta can follow on.
    saved: Option<Saved>,
    result: Result<(Wrote, Vec<Watched>)>,
}

impl Written {
    fn nothing(error: anyhow::Error) -> Self {
        Self { pages: Vec::new(), saved: None, result: Err(error) }
    }
}

/// What one save has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wrote {
    pub is_full: bool,
    /// Bytes of blocks that have changed.
    pub changed: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Granules that the server copied because it wrote them before they were saved, and the longest of these writes.
    pub copied: u64,
    pub longest_write: Duration,
}

/// What is known of saves, and what the next one goes on with.
#[derive(Debug)]
pub struct Saver {
    folder: Arc<Folder>,
    nice: i32,
    pub policy: Policy,
    running: Option<Running>,
    /// The image and the deltas that are on the disk; `None` if the next save has to begin anew.
    saved: Option<Saved>,
    /// When a save in the background began, or the server.
    began: Instant,
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
    /// How long the server stood still for the last one in the background, and at most for any.
    pub stood_still: Duration,
    pub stood_still_longest: Duration,
    pub wrote: Wrote,
}

impl Saver {
    pub fn new(folder: Folder, nice: i32, policy: Policy, changes: u64, now: u64) -> Self {
        let last = Last {
            saved_at: now / 1000,
            changes,
            succeeded: true,
            took: None,
            stood_still: Duration::ZERO,
            stood_still_longest: Duration::ZERO,
            wrote: Wrote::default(),
        };
        let (folder, began) = (Arc::new(folder), Instant::now());
        Self { folder, nice, policy, running: None, saved: None, began, last }
    }

    /// Loads what was saved last, if anything was. Returns how many entries it had.
    pub fn load(&mut self, store: &mut Store, now: u64) -> Result<Option<u64>> {
        let Some(loaded) = load::load(&self.folder, store, now)? else { return Ok(None) };
        loaded.notes.iter().for_each(|note| eprintln!("{note}"));
        self.saved = loaded.saved;
        self.last.changes = store.changes();
        Ok(Some(loaded.entries))
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Deltas that follow on the image, and their bytes.
    pub fn deltas(&self) -> (u64, u64) {
        self.saved.as_ref().map_or((0, 0), |saved| (saved.deltas, saved.delta_bytes))
    }

    /// Saves all entries while every client waits.
    pub fn save(&mut self, store: &Store, now: u64) -> Result<()> {
        let began = Instant::now();
        self.saved = None;
        let saved = self.folder.save(Name::Whole, |file| {
            let mut dumper = Dumper::new(file, now)?;
            dumper.write_all(store.bytes())?;
            Ok(dumper.finish().map(|_| ())?)
        });
        self.ended(saved, began.elapsed(), store.changes(), now)
    }

    /// Takes a snapshot, and saves it in the background.
    pub fn start(&mut self, store: &mut Store, now: u64) -> Result<()> {
        self.began = Instant::now();
        let started = self.try_start(store);
        self.last.stood_still = self.began.elapsed();
        self.last.stood_still_longest = self.last.stood_still_longest.max(self.last.stood_still);
        match started {
            Ok(running) => {
                self.running = Some(running);
                Ok(())
            }
            Err(error) => {
                store.saved(Vec::new(), Vec::new());
                self.ended(Err(error), self.began.elapsed(), 0, now)
            }
        }
    }

    fn try_start(&mut self, store: &mut Store) -> Result<Running> {
        let before = self.saved.take().filter(|saved| self.policy.takes_another(saved));
        let saved = before.unwrap_or_else(|| begin_anew(store));
        let read = Arc::new(AtomicUsize::new(0));
        let point = store.snapshot(Arc::clone(&read)).context("no snapshot")?;
        if let Some(lost) = &point.lost {
            eprintln!("what has changed is not known, and everything is read: {lost}");
        }
        let (folder, nice, cancel) = (Arc::clone(&self.folder), self.nice, Arc::new(Cancel::new()));
        let asked = Arc::clone(&cancel);
        let work = move || {
            // Clients that wait for an answer come first.
            let _ = setpriority_process(None, nice);
            write(&folder, saved, point, &|next| {
                read.store(next, Ordering::Release);
                if asked.is_cancelled() { Err(io::Error::other("it was stopped")) } else { Ok(()) }
            })
        };
        let thread = std::thread::Builder::new().name("save".to_owned()).spawn(work)?;
        Ok(Running { thread, began: self.began, changes: store.changes(), cancel })
    }

    /// Looks whether a save in the background is over, or due.
    pub fn look(&mut self, store: &mut Store, now: u64) {
        if self.running.as_ref().is_some_and(|running| running.thread.is_finished()) {
            let _ = self.wait(store, now);
        }
        let is_due =
            self.policy.every > 0 && self.began.elapsed() >= Duration::from_secs(self.policy.every);
        if is_due && self.running.is_none() && store.changes() != self.last.changes {
            // What prevents it was said.
            let _ = self.start(store, now);
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
        let panicked = |_| Written::nothing(anyhow!("its thread panicked"));
        let Written { pages, saved, result } = thread.join().unwrap_or_else(panicked);
        self.saved = saved;
        let (watched, ended) = match result {
            Ok((wrote, watched)) => {
                self.last.wrote = wrote;
                (watched, Ok(()))
            }
            Err(error) => (Vec::new(), Err(error)),
        };
        store.saved(pages, watched);
        self.ended(ended, began.elapsed(), changes, now)
    }

    fn ended(&mut self, saved: Result<()>, took: Duration, changes: u64, now: u64) -> Result<()> {
        self.last.took = Some(took);
        self.last.succeeded = saved.is_ok();
        match &saved {
            Ok(()) => {
                (self.last.saved_at, self.last.changes) = (now / 1000, changes);
                eprintln!("saved in {took:.2?}");
            }
            Err(error) => eprintln!("not saved, what was saved before is kept: {error:#}"),
        }
        saved
    }
}

/// An image without deltas, which nothing is known of yet.
fn begin_anew(store: &mut Store) -> Saved {
    let generation = fastrand::u64(..);
    store.begin_generation(generation);
    let chain = Chain::new(store.memory().1 as u64);
    Saved { generation, chain, full_bytes: 0, deltas: 0, delta_bytes: 0 }
}

/// Writes the next state of a chain. `progress` is told which byte of the arena comes next, and may end it.
fn write(
    folder: &Folder,
    mut saved: Saved,
    point: Point,
    progress: &dyn Fn(usize) -> io::Result<()>,
) -> Written {
    let before = saved.chain.state();
    let name = match before {
        None => Name::Whole,
        Some(_) => Name::Delta { generation: saved.generation, number: saved.deltas + 1 },
    };
    let Point { pages, entries, .. } = point;
    let written =
        folder.save(name, |file| write_state(file, &mut saved.chain, &pages, entries, progress));
    let result = written.map(|(written, watched)| {
        let wrote = count(&mut saved, &written, watched.iter().map(Watched::stats));
        (wrote, watched)
    });
    // After an error, the chain may have a state that is not on the disk.
    let is_sound = result.is_ok() || before.is_some() && saved.chain.state() == before;
    Written { pages, saved: is_sound.then_some(saved), result }
}

fn write_state(
    file: &File,
    chain: &mut Chain,
    pages: &[u8],
    entries: Vec<Unsaved>,
    progress: &dyn Fn(usize) -> io::Result<()>,
) -> Result<(hugekit_delta::Saved, Vec<Watched>)> {
    let (length, is_full) = (chain.length(), chain.state().is_none());
    let mut taker = Taker::new(chain.save_changes(file)?, is_full, pages)?;
    let mut watched = Vec::new();
    for part in entries {
        watched.push(part.write_to(|offset, bytes| {
            taker.put(offset, bytes)?;
            progress(offset + bytes.len())
        })?);
    }
    Ok((taker.finish(length)?.finish()?, watched))
}

/// Counts a file in.
fn count(
    saved: &mut Saved,
    written: &hugekit_delta::Saved,
    parts: impl Iterator<Item = Stats>,
) -> Wrote {
    let hugekit_delta::Saved { is_full, changed, written: bytes, .. } = *written;
    if is_full {
        saved.full_bytes = bytes;
    } else {
        (saved.deltas, saved.delta_bytes) = (saved.deltas + 1, saved.delta_bytes + bytes);
    }
    let wrote = Wrote { is_full, changed, bytes, ..Wrote::default() };
    parts.fold(wrote, |wrote, part| Wrote {
        copied: wrote.copied + part.copied_by_writers,
        longest_write: wrote.longest_write.max(part.longest_fault),
        ..wrote
    })
}
