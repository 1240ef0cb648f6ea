//! A tender in a thread of its own.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::Tender;
use crate::status::Status;

/// A tender that works in a thread of its own until it is dropped. The drop lasts a tenth of a
/// second and leaves all memory as it is.
///
/// A forked child does not have the thread, and the child's copy of this value does nothing.
#[derive(Debug)]
pub struct Tending {
    stop: Arc<AtomicBool>,
    said: Arc<Mutex<BTreeMap<i32, Status>>>,
    /// The process that owns the thread.
    owner: u32,
    thread: Option<JoinHandle<()>>,
}

impl Tending {
    pub(crate) fn new(mut tender: Tender) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let said = Arc::new(Mutex::new(BTreeMap::new()));
        let (stopped, saying) = (Arc::clone(&stop), Arc::clone(&said));
        let run = move || {
            tender.run(&stopped, &mut |status| {
                let mut said = saying.lock().unwrap_or_else(PoisonError::into_inner);
                said.insert(status.pid, status.clone());
            });
        };
        let thread = Builder::new().name("hugekit-tend".into()).spawn(run)?;
        Ok(Self { stop, said, owner: std::process::id(), thread: Some(thread) })
    }

    /// Returns the last status of each process that has a status: after its first pass, or after a
    /// fork.
    #[must_use]
    pub fn said(&self) -> Vec<Status> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.values().cloned().collect()
    }

    /// Returns true if all processes have ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Tending {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A forked child would wait for a thread that only its parent has.
        if self.owner == std::process::id()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}
