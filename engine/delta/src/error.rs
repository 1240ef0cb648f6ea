//! Errors of deltas.

use std::io;

use crate::format::StateId;

/// The reason why a delta cannot be written, read or applied. Offsets are in bytes from the start
/// of the delta.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// The bytes are not a delta.
    #[error("not a delta: its first bytes are others")]
    NoDelta,
    /// A newer version of hugekit has written the delta.
    #[error("the delta has version {found}, this hugekit reads version {known}: update hugekit")]
    Newer {
        /// The version of the delta.
        found: u32,
        /// The newest version that this library reads.
        known: u32,
    },
    /// The bytes of the delta are not the bytes that were written.
    #[error("the delta is damaged at byte {at}: {what}")]
    Damaged {
        /// The offset of the fault.
        at: u64,
        /// The fault.
        what: &'static str,
    },
    /// The delta ends too early.
    #[error("the delta is truncated: it ends at byte {at}")]
    Truncated {
        /// The offset of its end.
        at: u64,
    },
    /// The delta begins with another state than the state of the target.
    #[error(
        "the delta begins with state {expected}, the base is {}",
        .found.map_or("unknown".to_owned(), |found| found.to_string())
    )]
    OtherBase {
        /// The state at which the delta begins.
        expected: StateId,
        /// The state of the target, if it is known.
        found: Option<StateId>,
    },
    /// The delta has states of another length than the target.
    #[error("the delta is for a state of {delta} bytes, the base has {state}")]
    OtherLength {
        /// Bytes of the delta's states.
        delta: u64,
        /// Bytes of the target.
        state: u64,
    },
    /// The bytes that were passed to save a state are not as many as the state has.
    #[error("the state has {length} bytes, {given} were given")]
    NotWhole {
        /// Bytes that were passed, or would have been passed.
        given: u64,
        /// Bytes of the state.
        length: u64,
    },
    /// Changes were passed in another order than that of their offsets, or beyond the end of the
    /// state.
    #[error(
        "a change of {len} bytes at {offset}: it must begin at {next} or later, and end by {length}"
    )]
    OutOfOrder {
        /// The offset of the change.
        offset: u64,
        /// The length of the change.
        len: u64,
        /// The lowest offset that the change may have.
        next: u64,
        /// Bytes of the state.
        length: u64,
    },
    /// There are no deltas to merge.
    #[error("no deltas to merge: name at least one")]
    Nothing,
    /// Reading or writing the delta or the target failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}
