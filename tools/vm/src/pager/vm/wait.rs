//! Waits of a thread that serves a VM.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use hugekit_sys::poll::readable;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io;

use super::{ServedVm, Stop};

/// A bell by which one thread wakes another thread.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn ring(&self) {
        let _ = io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn hush(&self) {
        let _ = io::read(&self.0, &mut [0; 8]);
    }

    /// Waits. Returns true if the bell was rung.
    pub(crate) fn await_ring(&self, most: Duration) -> bool {
        readable([self.as_fd()], Some(most)) == Ok([true])
    }

    pub(crate) fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl ServedVm {
    /// Waits until there is a message, until the bell is rung, or until the time is over. `None`
    /// means no time limit.
    pub(super) fn wait(&self, stop: &Bell, time: Option<Duration>) -> Result<(), Stop> {
        let awaited = [self.process.as_fd(), stop.as_fd(), self.faults.as_fd(), self.bell.as_fd()];
        match readable(awaited, time) {
            Ok([true, ..]) => Err(Stop::Ended),
            Ok([_, true, ..]) => Err(Stop::Asked),
            Ok(_) => Ok(()),
            Err(errno) => Err(Stop::Failed(super::VmError::Thread(errno.into()))),
        }
    }
}
