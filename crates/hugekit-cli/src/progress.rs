//! Progress on standard error, results as they come, and the signals that end a run.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hugekit_lab::{Interrupted, Observer};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::text::write_out;
use crate::time_left::TimeLeft;

/// Exit code of a run that Ctrl-C ended: 128 + SIGINT, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Bytes of a transfer, with their rate and the time that is left: on standard error if that is a terminal, and else
/// hidden.
pub(crate) fn of_bytes(name: &str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{spinner} {msg} {wide_bar} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left",
    );
    let bar = ProgressBar::new(total).with_style(style.expect("the template is constant"));
    bar.set_message(name.to_owned());
    // It lives also while a file does not answer.
    bar.enable_steady_tick(TICK);
    bar
}

/// Steps of a command that prints results as they come: on standard error if that is a terminal, and else hidden.
pub(crate) fn of_steps(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg:40} {wide_bar} {elapsed}");
    let bar = ProgressBar::new(steps).with_style(style.expect("the template is constant"));
    // It takes a thread.
    if !bar.is_hidden() {
        bar.enable_steady_tick(TICK);
    }
    bar
}

/// Between two pictures of a spinner.
const TICK: Duration = Duration::from_millis(100);

/// Steps of the bar.
const STEPS: u64 = 1000;

/// Watches a run from a terminal. Without one on standard error, the bar stays silent.
pub(crate) struct Terminal {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
    left: RefCell<Option<TimeLeft>>,
    results: Option<Results>,
}

/// How results are printed as they come.
pub(crate) struct Results {
    /// Above the first one.
    pub(crate) heading: String,
    /// The text of one, by the experiment's name and its finding.
    pub(crate) line: fn(&str, &str) -> String,
}

impl Terminal {
    /// From here on, SIGINT, SIGTERM and SIGHUP end the run at the next case instead of the
    /// process, so that settings are put back.
    pub(crate) fn new() -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        let style = ProgressStyle::with_template("{spinner} {msg:32} {wide_bar} {elapsed}{prefix}");
        let bar = ProgressBar::new(STEPS).with_style(style.expect("the template is constant"));
        Ok(Self { bar, stop, left: RefCell::new(None), results: None })
    }

    /// From here on, what experiments have found is printed when they end.
    pub(crate) fn print_results(&mut self, results: Results) {
        self.results = Some(results);
    }

    /// Where it cannot be printed, the run goes on: the record has it all, and who prints last says so.
    fn print(&self, text: &str) {
        let _ = self.bar.suspend(|| write_out(text));
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
