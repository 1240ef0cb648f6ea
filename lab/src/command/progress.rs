//! Progress on standard error, results as they come, and the signals that end a run.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hugekit_lab::{Interrupted, Observer};
use hugekit_terminal::text::write_out;
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::time_left::TimeLeft;

/// Steps of the bar.
const STEPS: u64 = 1000;

/// Watches a run from a terminal. Without one on standard error, the bar stays silent.
pub(super) struct Terminal {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
    left: RefCell<Option<TimeLeft>>,
    results: Option<Results>,
}

/// The printing of results during the run.
pub(super) struct Results {
    /// Above the first one.
    pub(super) heading: String,
    /// The text of one, by the experiment's name and its finding.
    pub(super) line: fn(&str, &str) -> String,
}

impl Terminal {
    /// From here on, SIGINT, SIGTERM and SIGHUP end the run at the next case instead of the
    /// process, so that settings are put back.
    pub(super) fn new() -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        let style = ProgressStyle::with_template("{spinner} {msg:32} {wide_bar} {elapsed}{prefix}");
        let bar = ProgressBar::new(STEPS).with_style(style.expect("the template is constant"));
        Ok(Self { bar, stop, left: RefCell::new(None), results: None })
    }

    /// From here on, what experiments have found is printed when they end.
    pub(super) fn print_results(&mut self, results: Results) {
        self.results = Some(results);
    }

    /// Prints a result. If that fails, the run continues: the record has the result, and the last print returns the error.
    fn print(&self, text: &str) {
        let _ = self.bar.suspend(|| write_out(text));
    }

    /// Takes the bar off the screen.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Terminal {
    fn check(&self) -> Result<(), Interrupted> {
        if self.stop.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }

    fn experiment_begins(&self, name: &str, number: usize, of: usize) {
        if let Some(results) = self.results.as_ref().filter(|_| number == 1) {
            self.print(&results.heading);
        }
        let mut left = self.left.borrow_mut();
        let left = left.get_or_insert_with(|| TimeLeft::of(of, Instant::now()));
        left.start_experiment(number, Instant::now());
        self.bar.set_message(name.to_owned());
        self.bar.set_prefix(left.words(Instant::now()));
    }

    fn experiment_ends(&self, name: &str, finding: &str) {
        if let Some(results) = &self.results {
            self.print(&(results.line)(name, finding));
        }
    }

    fn begin(&self, stage: &str) {
        self.bar.set_position(0);
        self.bar.set_message(stage.to_owned());
    }

    fn progress(&self, fraction: f64) {
        self.bar.set_position((fraction * STEPS as f64) as u64);
        if let Some(left) = &*self.left.borrow() {
            self.bar.set_prefix(left.words(Instant::now()));
        }
    }
}
