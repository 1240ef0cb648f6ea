//! Saving: an image of the memory first, then deltas of what changed since the save before.
//!
//! BGSAVE takes a snapshot, and a thread writes it while clients go on. SAVE does the same, and all
//! clients wait for the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use hugekit::snapshot::{Changes, Epoch, SnapshotStats};
use hugekit_delta::{Chain, Saved, StateId};
use rustix::process::setpriority_process;

use super::folder::{Folder, IMAGE, delta};
use super::load;
use super::store::Store;

/// When a save begins by itself, and when it is an image.
#[derive(Args, Clone, Copy, Debug)]
pub struct Policy {
    /// Seconds between saves, if anything changed; 0 saves only by SAVE and BGSAVE
    #[arg(long, default_value_t = 0)]
    pub save_every: u64,
    /// Deltas after which a save is an image again; fewer if together they are as long as it
    #[arg(long, default_value_t = 60)]
    pub chain_deltas: u64,
}

/// The image and its deltas on the disk.
#[derive(Debug)]
pub struct Files {
    /// Compares the next state with the files.
    pub chain: Chain,
    /// The state and the length of the image, if there is one, and of each delta.
    pub saved: Vec<(StateId, u64)>,
}

impl Files {
    /// Whether a delta may follow, and not an image.
    fn is_open(&self, most_deltas: u64) -> bool {
        let deltas = self.saved.get(1..).unwrap_or_default();
        let bytes = deltas.iter().map(|(_, bytes)| bytes).sum::<u64>();
        (deltas.len() as u64) < most_deltas && bytes < self.saved[0].1
    }
}

/// The result of a save, and the files unless they have to begin anew.
type Written = (Option<Files>, Result<(Saved, Epoch)>);

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
    pub fn new(folder: Folder, policy: Policy, store: &mut Store) -> Result<Self> {
        let files = load::load(&folder, store)?;
        let last = Last { saved_at: store.now / 1000, changes: store.changes, ..Last::default() };
        let folder = Arc::new(folder);
        Ok(Self { folder, policy, files, running: None, began: Instant::now(), last })
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Takes a snapshot, and saves it in the background.
    pub fn start(&mut self, store: &mut Store) -> Result<()> {
        ensure!(!self.is_running(), "Background save already in progress");
        self.began = Instant::now();
        let open = self.files.take().filter(|files| files.is_open(self.policy.chain_deltas));
        // Without files that a delta can follow on, the save is an image.
        let files = open.unwrap_or_else(|| {
            store.saved(None);
            Files { chain: Chain::new(store.bytes().len() as u64), saved: Vec::new() }
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
            Err(error) => self.end(store, (None, Err(error)), 0)?,
        }
        Ok(())
    }

    /// Notices that a save has ended, and begins one that is due.
    pub fn look(&mut self, store: &mut Store) {
        if self.running.as_ref().is_some_and(|(thread, _)| thread.is_finished()) {
            // The log has the error, here and below.
            let _ = self.wait(store);
        }
        let every = self.policy.save_every;
        let is_due = every > 0 && self.began.elapsed() >= Duration::from_secs(every);
        if is_due && !self.is_running() && store.changes != self.last.changes {
            let _ = self.start(store);
        }
    }

    /// Waits for the end of a save, if one runs.
    pub fn wait(&mut self, store: &mut Store) -> Result<()> {
        let Some((thread, changes)) = self.running.take() else { return Ok(()) };
        let panicked = |_| (None, Err(anyhow!("the thread panicked")));
        self.end(store, thread.join().unwrap_or_else(panicked), changes)
    }

    fn end(&mut self, store: &mut Store, written: Written, changes: u64) -> Result<()> {
        let (files, result) = written;
        (self.files, self.last.has_failed) = (files, result.is_err());
        let (saved, epoch) = result.inspect_err(|error| {
            eprintln!("not saved, the last save is kept: {error:#}");
            store.saved(None);
        })?;
        self.last.stats = epoch.stats();
        (self.last.saved, self.last.changes) = (Some(saved), changes);
        self.last.saved_at = store.now / 1000;
        store.saved(Some(epoch));
        Ok(())
    }
}

/// Writes the next file. `next` has the offset of the bytes that follow.
fn write(folder: &Folder, mut files: Files, changes: Changes, next: &AtomicUsize) -> Written {
    let before = files.chain.state();
    let image = files.saved.first().map(|(image, _)| *image);
    let name = image.map_or(IMAGE.to_owned(), |image| delta(image, files.saved.len() as u64));
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
        Ok((saved, _)) => files.saved.push((saved.state, saved.written)),
        // The chain may be at a state that is not on the disk.
        Err(_) if before.is_none() || files.chain.state() != before => return (None, written),
        Err(_) => {}
    }
    (Some(files), written)
}
