//! Saving: an image of the memory first, then deltas of what changed since the save before.
//!
//! BGSAVE takes a snapshot, and a thread writes it while clients go on. SAVE does the same, and all
//! clients wait for the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use hugekit::snapshot::{Changes, Epoch, SnapshotStats};
use hugekit_delta::{Chain, Saved, StateId};
use rustix::process::setpriority_process;

use super::folder::{Folder, IMAGE, delta};
use super::load;
use super::store::Store;

/// When a save begins by itself, and when it is an image.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Seconds between saves, if anything changed; 0 to save only when a client asks.
    pub every: u64,
    /// Deltas that may follow on an image, if they are shorter than it together.
    pub deltas: u64,
}

/// The image and its deltas on the disk.
#[derive(Debug)]
pub struct Files {
    /// Compares what is saved next with the files.
    pub chain: Chain,
    /// `None` before the image is there.
    pub image: Option<StateId>,
    pub image_bytes: u64,
    pub deltas: u64,
    pub delta_bytes: u64,
}

/// The result of a save, and the files unless they have to begin anew.
type Written = (Option<Files>, Result<(Saved, Epoch)>);

/// What is known of the last save.
#[derive(Clone, Debug, Default)]
pub struct Last {
    /// Seconds since 1970 of the last save that succeeded, or of the start.
    pub saved_at: u64,
    /// Changes of the store that this save has.
    pub changes: u64,
    pub has_failed: bool,
    pub saved: Option<Saved>,
    /// How long clients waited for the snapshot, and what writers copied during the save.
    pub snapshot: Duration,
    pub stats: SnapshotStats,
}

#[derive(Debug)]
pub struct Saver {
    folder: Arc<Folder>,
    policy: Policy,
    files: Option<Files>,
    /// The thread that saves, and the changes of the store that it saves.
    running: Option<(JoinHandle<Written>, u64)>,
    began: Instant,
    pub last: Last,
}

impl Saver {
    /// Loads the last state into the store, if there is one.
    pub fn new(folder: Folder, policy: Policy, store: &mut Store, now: u64) -> Result<Self> {
        let files = load::load(&folder, store, now)?;
        let last = Last { saved_at: now / 1000, changes: store.changes, ..Last::default() };
        let (folder, began) = (Arc::new(folder), Instant::now());
        Ok(Self { folder, policy, files, running: None, began, last })
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Takes a snapshot, and saves it in the background.
    pub fn start(&mut self, store: &mut Store, now: u64) -> Result<()> {
        ensure!(!self.is_running(), "Background save already in progress");
        self.began = Instant::now();
        let most = self.policy.deltas;
        let is_open = |files: &Files| files.deltas < most && files.delta_bytes < files.image_bytes;
        // Without files that a delta can follow on, the save is an image.
        let files = self.files.take().filter(is_open).unwrap_or_else(|| {
            store.saved(None);
            let chain = Chain::new(store.bytes().len() as u64);
            Files { chain, image: None, image_bytes: 0, deltas: 0, delta_bytes: 0 }
        });
        let next = Arc::new(AtomicUsize::new(0));
        let snapshot = store.snapshot(Arc::clone(&next)).context("no snapshot");
        self.last.snapshot = self.began.elapsed();
        let folder = Arc::clone(&self.folder);
        let spawn = |changes| {
            Ok(thread::Builder::new().spawn(move || {
                // Clients come first.
                let _ = setpriority_process(None, 19);
                write(&folder, files, changes, &next)
            })?)
        };
        match snapshot.and_then(spawn) {
            Ok(thread) => self.running = Some((thread, store.changes)),
            Err(error) => self.end(store, (None, Err(error)), 0, now)?,
        }
        Ok(())
    }

    /// Notices that a save has ended, and begins one that is due.
    pub fn look(&mut self, store: &mut Store, now: u64) {
        if self.running.as_ref().is_some_and(|(thread, _)| thread.is_finished()) {
            // The log has the error, here and below.
            let _ = self.wait(store, now);
        }
        let every = self.policy.every;
        let is_due = every > 0 && self.began.elapsed() >= Duration::from_secs(every);
        if is_due && !self.is_running() && store.changes != self.last.changes {
            let _ = self.start(store, now);
        }
    }

    /// Waits for the end of a save, if one runs.
    pub fn wait(&mut self, store: &mut Store, now: u64) -> Result<()> {
        let Some((thread, changes)) = self.running.take() else { return Ok(()) };
        let panicked = |_| (None, Err(anyhow!("the thread panicked")));
        self.end(store, thread.join().unwrap_or_else(panicked), changes, now)
    }

    fn end(&mut self, store: &mut Store, written: Written, changes: u64, now: u64) -> Result<()> {
        let (files, result) = written;
        (self.files, self.last.has_failed) = (files, result.is_err());
        let (saved, epoch) = result.inspect_err(|error| {
            eprintln!("not saved, the last save is kept: {error:#}");
            store.saved(None);
        })?;
        self.last.stats = epoch.stats();
        (self.last.saved, self.last.saved_at, self.last.changes) =
            (Some(saved), now / 1000, changes);
        store.saved(Some(epoch));
        Ok(())
    }
}

/// Writes the next file. `next` has the offset of the bytes that follow.
fn write(folder: &Folder, mut files: Files, changes: Changes, next: &AtomicUsize) -> Written {
    let before = files.chain.state();
    let name = files.image.map_or(IMAGE.to_owned(), |image| delta(image, files.deltas + 1));
    let written = folder.save(&name, |file| {
        let mut saving = files.chain.save_changes(file)?;
        let epoch = changes.deliver(|offset, bytes| {
            saving.put(offset as u64, bytes)?;
            next.store(offset + bytes.len(), Ordering::Release);
            Ok(())
        })?;
        Ok((saving.finish()?, epoch))
    });
    match &written {
        Ok((saved, _)) if saved.is_full => {
            (files.image, files.image_bytes) = (Some(saved.state), saved.written);
        }
        Ok((saved, _)) => {
            (files.deltas, files.delta_bytes) =
                (files.deltas + 1, files.delta_bytes + saved.written);
        }
        // The chain may be at a state that is not on the disk.
        Err(_) if before.is_none() || files.chain.state() != before => return (None, written),
        Err(_) => {}
    }
    (Some(files), written)
}
