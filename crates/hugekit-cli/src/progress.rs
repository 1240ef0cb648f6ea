//! Progress on standard error, and the signals that end a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hugekit_lab::{Interrupted, Observer};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Exit code of a run that Ctrl-C ended: 128 + SIGINT, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Steps of the bar.
const STEPS: u64 = 1000;

/// Watches a run from a terminal. Without one on standard error, the bar stays silent.
pub(crate) struct Terminal {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

impl Terminal {
    /// From here on, SIGINT, SIGTERM and SIGHUP end the run at the next case instead of the
    /// process, so that settings are put back.
    pub(crate) fn new() -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        let style = ProgressStyle::with_template("{msg:24} {wide_bar} {percent:>3}% {elapsed}");
        let bar = ProgressBar::new(STEPS).with_style(style.expect("the template is constant"));
        Ok(Self { bar, stop })
    }

    /// Takes the bar off the screen.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Terminal {
    fn check(&self) -> Result<(), Interrupted> {
        if self.stop.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }

    fn begin(&self, stage: &str) {
        self.bar.reset();
        self.bar.set_message(stage.to_owned());
    }

    fn progress(&self, fraction: f64) {
        self.bar.set_position((fraction * STEPS as f64) as u64);
    }
}
