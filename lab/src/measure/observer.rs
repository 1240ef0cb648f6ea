//! The other side of a run: told of each step, asked whether to go on.

/// A watcher of a run, which may stop it.
pub trait Observer {
    /// Called at least once a round.
    ///
    /// # Errors
    /// [`Interrupted`] to stop the run here.
    fn check(&self) -> Result<(), Interrupted> {
        Ok(())
    }

    /// An experiment begins: its number, counted from 1, of so many.
    fn experiment_begins(&self, _name: &str, _number: usize, _of: usize) {}

    /// An experiment has ended, and what was found in one line.
    fn experiment_ends(&self, _name: &str, _finding: &str) {}

    /// A new stage begins, such as `stores 16MiB`.
    fn begin(&self, _stage: &str) {}

    /// The progress of the stage, from 0 to 1.
    fn progress(&self, _fraction: f64) {}

    /// A case is about to be measured once.
    fn turn_begins(&self) {}

    /// The case of this index was measured once.
    fn turn_ends(&self, _case: usize) {}

    /// All rounds are done: the samples of each case, by index.
    fn group_ends(&self, _samples: &[Vec<f64>]) {}
}

/// An observer that watches nothing.
#[derive(Clone, Copy, Debug)]
pub struct Quiet;

impl Observer for Quiet {}

/// The observer stopped the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;
