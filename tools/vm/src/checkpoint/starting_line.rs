//! A common start of children: all of them are restored, paused, and have devices of their own
//! before one runs. So no child has run if another child lacks a device.

use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::checkpoint::children::Child;
use crate::checkpoint::fork_error::ForkError;
use crate::checkpoint::growing::ChildNews;
use crate::devices::{Host, NewDisks};
use crate::vmm::LoadMemory;

/// The starting line. Each child has a thread.
#[derive(Debug)]
pub(crate) struct StartingLine<'a> {
    /// The VMMs of the children, in the order of their numbers.
    hosts: &'a [Host],
    disks: &'a NewDisks,
    /// True if the children run after the start.
    resume: bool,
    line: Mutex<Line>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Line {
    /// True when the first child has prepared everything that the others need.
    is_prepared: bool,
    /// The number of children at the line.
    ready: usize,
    has_failed: bool,
}

impl<'a> StartingLine<'a> {
    pub(crate) fn new(hosts: &'a [Host], disks: &'a NewDisks, resume: bool) -> Self {
        Self { hosts, disks, resume, line: Mutex::default(), changed: Condvar::new() }
    }

    pub(crate) fn disks(&self) -> &NewDisks {
        self.disks
    }

    /// Records that the first child has nothing more to prepare.
    pub(crate) fn prepared(&self) {
        self.change(|line| line.is_prepared = true);
    }

    /// Restores a child. The first child, once restored, prepares for all, and the others wait for
    /// this. `None` if another child has failed.
    pub(crate) fn start(
        &self,
        child: &Child<'_>,
        state: &Path,
        memory: LoadMemory<'_>,
        prepare: impl FnOnce(&Child<'_>) -> Result<(), ForkError>,
    ) -> Option<ChildNews> {
        if child.number > 1 && !self.wait(|line| line.is_prepared) {
            return None;
        }
        let load = || {
            child.load(state, memory)?;
            if child.number == 1 {
                prepare(child)?;
                self.prepared();
            }
            child.set_disks(&self.hosts[child.number - 1], self.disks)
        };
        if let Err(error) = load() {
            return Some(ChildNews::Failed(error));
        }
        self.change(|line| line.ready += 1);
        if !self.wait(|line| line.ready == self.hosts.len()) {
            return None;
        }
        let started = if self.resume { child.resume() } else { Ok(()) };
        let restored = |()| ChildNews::Restored(child.number, Instant::now());
        Some(started.map_or_else(ChildNews::Failed, restored))
    }

    /// Makes all waiting threads give up.
    pub(crate) fn fail(&self) {
        self.change(|line| line.has_failed = true);
    }

    fn change(&self, change: impl FnOnce(&mut Line)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits. Returns true if no child has failed.
    fn wait(&self, has_come: impl Fn(&Line) -> bool) -> bool {
        let is_waiting = |line: &mut Line| !has_come(line) && !line.has_failed;
        let waited = self.changed.wait_while(self.lock(), is_waiting);
        !waited.unwrap_or_else(PoisonError::into_inner).has_failed
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
