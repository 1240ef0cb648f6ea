//! Bars on standard error for commands that take a while.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Returns the number of bytes of a transfer, with their rate and the time that is left: on
/// standard error if that is a terminal, and else hidden.
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
