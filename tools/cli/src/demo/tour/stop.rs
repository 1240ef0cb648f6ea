//! The signals that end the tour.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hugekit_daemon::EndingSignals;
use hugekit_sys::poll;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use hugekit_terminal::outcome::INTERRUPTED;

/// A signal came: children are ended and files removed.
#[derive(Debug)]
pub(super) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// The signals that end the tour. Each wait of the tour ends when one comes.
pub(super) struct TourStop {
    flag: Arc<AtomicBool>,
    came: EndingSignals,
}

impl TourStop {
    /// Installs the handlers. The first signal ends the tour in an orderly way, a second signal
    /// ends it at once.
    pub(super) fn new() -> std::io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&flag))?;
            flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Self { flag, came: EndingSignals::new()? })
    }

    pub(super) fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    pub(super) fn check(&self) -> Result<(), Interrupted> {
        if self.flag.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }

    /// Waits until the descriptor can be read or has ended, or this long: whether it can be.
    pub(super) fn wait_for(
        &self,
        readable: impl AsFd,
        at_most: Option<Duration>,
    ) -> anyhow::Result<bool> {
        let [is_readable, _] = poll::readable([readable.as_fd(), self.came.as_fd()], at_most)?;
        self.check()?;
        Ok(is_readable)
    }

    /// Rests this long.
    pub(super) fn rest(&self, duration: Duration) -> anyhow::Result<()> {
        self.wait_for(&self.came, Some(duration)).map(drop)
    }
}
