//! Why a delta is refused.

use std::io;

use crate::format::StateId;

/// The reason why a delta cannot be written, read or applied. Places are bytes from the delta's beginning.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// It is something else.
    #[error("not a delta: its first bytes are others")]
    NoDelta,
    /// A newer hugekit has written it.
    #[error("the delta has version {found}, this hugekit reads version {known}: update hugekit")]
    Newer {
        /// Its version.
        found: u32,
        /// The one that is read.
        known: u32,
    },
    /// Its bytes are not those that were written.
    #[error("the delta is damaged at byte {at}: {what}")]
    Damaged {
        /// The place of the fault.
        at: u64,
        /// The fault.
        what: &'static str,
    },
    /// It ends too early.
    #[error("the delta is truncated: it ends at byte {at}")]
    Truncated {
        /// The place of its end.
        at: u64,
    },
    /// It begins with another state than the one that is there.
    #[error(
        "the delta begins with state {expected}, the base is {}",
        .found.map_or("unknown".to_owned(), |found| found.to_string())
    )]
    OtherBase {
        /// The state that it begins with.
        expected: StateId,
        /// The state that is there, if it is known.
        found: Option<StateId>,
    },
    /// It is of a state of another length.
    #[error("the delta is for a state of {delta} bytes, the base has {state}")]
    OtherLength {
        /// Bytes of the delta's states.
        delta: u64,
        /// Bytes that are there.
        state: u64,
    },
    /// The state that was given to be saved is shorter or longer than it was said to be.
    #[error("the state has {length} bytes, {given} were given")]
    NotWhole {
        /// Bytes that were given, or would have been.
        given: u64,
        /// Bytes of the state.
        length: u64,
    },
    /// Changes were given in another order than that of their offsets, or beyond the state.
    #[error(
        "a change of {len} bytes at {offset}: it must begin at {next} or later, and end by {length}"
    )]
    OutOfOrder {
        /// The offset of the change.
        offset: u64,
        /// The length of the change.
        len: u64,
        /// The least offset that it could have.
        next: u64,
        /// Bytes of the state.
        length: u64,
    },
    /// No deltas were given to be merged.
    #[error("no deltas to merge: name at least one")]
    Nothing,
    /// The file, or whatever it comes from or goes to, has refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}
