//! The signals that end the command.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hugekit::Cancel;
use hugekit_daemon::{EndingSignals, Notices};
use hugekit_sys::poll;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use hugekit_terminal::outcome::INTERRUPTED;

/// The time between two attempts to tell the service manager.
const RETRY: Duration = Duration::from_millis(100);

/// The first signal stops the call after the window that is being read; a second one ends the command at once.
pub(super) struct StopSignals(Arc<Inner>);

struct Inner {
    came: EndingSignals,
    cancel: Cancel,
}

impl StopSignals {
    pub(super) fn new() -> io::Result<Self> {
        let is_second = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_shutdown(
                signal,
                INTERRUPTED.into(),
                Arc::clone(&is_second),
            )?;
            flag::register(signal, Arc::clone(&is_second))?;
        }
        let inner = Arc::new(Inner { came: EndingSignals::new()?, cancel: Cancel::new() });
        let watched = Arc::clone(&inner);
        std::thread::Builder::new().spawn(move || {
            while poll::readable([watched.came.as_fd()], None) == Ok([false]) {}
            watched.cancel.cancel();
        })?;
        Ok(Self(inner))
    }

    pub(super) fn cancel(&self) -> &Cancel {
        &self.0.cancel
    }

    /// Waits for a signal.
    pub(super) fn wait(&self, notices: &mut Notices) -> io::Result<()> {
        loop {
            let longest = notices.is_waiting().then_some(RETRY);
            if poll::readable([self.0.came.as_fd()], longest)? == [true] {
                return Ok(());
            }
            notices.retry();
        }
    }
}
