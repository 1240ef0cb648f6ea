//! Why a delta is refused.

use std::io;

use crate::format::StateId;

/// Why a delta cannot be written, read or applied. Places are bytes from the delta's beginning.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// It is something else.
    #[error("it is no delta: it does not begin as one")]
    NoDelta,
    /// A newer hugekit has written it.
    #[error("it is a delta of version {found}, and this hugekit reads version {known}: update it")]
    Newer {
        /// Its version.
        found: u32,
        /// The one that is read.
        known: u32,
    },
    /// Its bytes are not what was written.
    #[error("the delta is damaged at byte {at}: {what}")]
    Damaged {
        /// Where what is wrong begins.
        at: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// It ends too early.
    #[error("the delta ends at byte {at}, before it is whole")]
    Truncated {
        /// Where it ends.
        at: u64,
    },
    /// It begins with another state than the one that is there.
    #[error("the delta begins with state {expected}, and {} is there", .found.map_or("no known one".to_owned(), |found| found.to_string()))]
    OtherBase {
        /// The state that it begins with.
        expected: StateId,
        /// The state that is there, if it is known.
        found: Option<StateId>,
    },
    /// It is of a state of another length.
    #[error("the delta is of a state of {delta} bytes, and there are {state}")]
    OtherLength {
        /// Bytes of the delta's states.
        delta: u64,
        /// Bytes that are there.
        state: u64,
    },
    /// The state that was given to be saved is shorter or longer than it was said to be.
    #[error("{given} bytes of a state of {length} were given")]
    NotWhole {
        /// Bytes that were given, or would have been.
        given: u64,
        /// Bytes of the state.
        length: u64,
    },
    /// Changes were given in another order than that of their offsets, or beyond the state.
    #[error(
        "a change of {len} bytes at {offset} comes before byte {next}, or lies beyond the state's {length}"
    )]
    OutOfOrder {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        len: u64,
        /// Where it could have begun.
        next: u64,
        /// Bytes of the state.
        length: u64,
    },
    /// No deltas were given to be merged.
    #[error("there is nothing to merge")]
    Nothing,
    /// The file, or whatever it comes from or goes to, has refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}
