//! What a thread that serves a VM waits for.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io;
use rustix::time::Timespec;

use super::{Stop, Vm};

/// Rung by one thread to wake another one.
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

    /// Waits; whether it was rung.
    pub(crate) fn await_ring(&self, most: Duration) -> bool {
        let most = Timespec::try_from(most).ok();
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], most.as_ref()).is_ok_and(|rung| rung > 0)
    }

    pub(crate) fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Vm {
    /// Waits until there is a message, the bell was rung, or the time is over; `None` is for ever.
    pub(super) fn wait(
        &self,
        stop: &Bell,
        bell: &Bell,
        time: Option<Duration>,
    ) -> Result<(), Stop> {
        let awaited = [self.process.as_fd(), stop.as_fd(), self.faults.as_fd(), bell.as_fd()];
        let mut waited = awaited.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut waited, time.as_ref()) {
            Ok(_) | Err(io::Errno::INTR) => {}
            Err(errno) => return Err(Stop::Failed(super::VmError::Thread(errno.into()))),
        }
        let is_ready = |index: usize| !waited[index].revents().is_empty();
        match (is_ready(0), is_ready(1)) {
            (true, _) => Err(Stop::Ended),
            (_, true) => Err(Stop::Asked),
            _ => Ok(()),
        }
    }
}
