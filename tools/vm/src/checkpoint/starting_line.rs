//! Children start together: when all of them are restored, paused, and have devices of their own. So no child has run if
//! another one lacks a device.

use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::checkpoint::children::Child;
use crate::checkpoint::fork_error::ForkError;
use crate::checkpoint::growing::ChildNews;
use crate::devices::{Host, NewDisks};
use crate::vmm::LoadMemory;

/// The line. Each child has a thread.
#[derive(Debug)]
pub(crate) struct StartingLine<'a> {
    /// The VMMs of the children, in the order of their numbers.
    hosts: &'a [Host],
    disks: &'a NewDisks,
    /// True if children run then.
    resume: bool,
    line: Mutex<Line>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Line {
    /// True when the first child has made ready what the others need.
    is_prepared: bool,
    /// Children at the line.
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

    /// Notes that nothing is left that the first child has to make ready.
    pub(crate) fn prepared(&self) {
        self.change(|line| line.is_prepared = true);
    }

    /// Restores a child. The first one prepares for all when it is restored, and the others wait for that; `None` if
    /// another one has failed.
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

    /// Has all that wait give up.
    pub(crate) fn fail(&self) {
        self.change(|line| line.has_failed = true);
    }

    fn change(&self, change: impl FnOnce(&mut Line)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits; whether none has failed.
    fn wait(&self, has_come: impl Fn(&Line) -> bool) -> bool {
        let is_waiting = |line: &mut Line| !has_come(line) && !line.has_failed;
        let waited = self.changed.wait_while(self.lock(), is_waiting);
        !waited.unwrap_or_else(PoisonError::into_inner).has_failed
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
