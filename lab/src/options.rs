//! The user's wishes for a run.

use std::path::PathBuf;

use hugekit_machine::size::Size;

/// The user's wishes for a run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// End within 15 s per experiment.
    pub quick: bool,
    /// Memory to measure on, in bytes; chosen by what is free if not given.
    pub memory: Option<Size>,
    /// Exactly this many rounds, instead of as many as the time allows.
    pub rounds: Option<usize>,
    /// Only routines of this name, beside libc's and the engine's own choice.
    pub routine: Option<String>,
    /// True if huge-page settings may be changed during the run.
    pub setup: bool,
    /// The `hugekit` command, for what starts it as users do: brokers and their clients.
    pub hugekit: Option<PathBuf>,
}
