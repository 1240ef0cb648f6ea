//! Application of deltas to a state.

use std::io::{Read, Seek, SeekFrom};

use crate::error::DeltaError;
use crate::format::StateId;
use crate::reader::{Change, Header, Reader};
use crate::target::Target;

/// The content of a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// The header of the delta.
    pub header: Header,
    /// The state at which the delta ends.
    pub state: StateId,
    /// The number of changes in the delta.
    pub changes: u64,
    /// Bytes that the delta replaces.
    pub bytes: u64,
    /// Bytes that the delta makes zero.
    pub zeroes: u64,
    /// The length of the delta itself in bytes.
    pub size: u64,
}

/// Reads a delta to its end, checks all of it, and returns its content.
///
/// # Errors
/// [`DeltaError`], with the offset, if the bytes are not a delta or are damaged.
pub fn inspect(delta: impl Read) -> Result<Contents, DeltaError> {
    let mut reader = Reader::new(delta)?;
    let header = reader.header();
    let (mut changes, mut bytes, mut zeroes) = (0, 0, 0);
    while let Some(change) = reader.next()? {
        changes += 1;
        match change {
            Change::Bytes { bytes: put, .. } => bytes += put.len() as u64,
            Change::Zeroes { len, .. } => zeroes += len,
        }
    }
    let size = reader.position();
    let state = reader.finish()?;
    Ok(Contents { header, state, changes, bytes, zeroes, size })
}

/// Applies a delta to a state. `current` is the state of `target`, if it is known. The delta is
/// read twice, because all of it is checked before the first byte of `target` changes. Returns the
/// new state of `target`.
///
/// # Errors
/// - If the delta is damaged, or has another base or length, `target` is unchanged.
/// - If the delta was changed between the two readings, or if `target` returned an error, `target`
///   contains neither state.
pub fn apply(
    target: &mut (impl Target + ?Sized),
    current: Option<StateId>,
    delta: &mut (impl Read + Seek),
) -> Result<StateId, DeltaError> {
    let start = delta.stream_position()?;
    let Contents { header, state, .. } = inspect(&mut *delta)?;
    header.check_applies_to(target.length()?, current)?;
    delta.seek(SeekFrom::Start(start))?;
    let mut reader = Reader::new(delta)?;
    same(&reader.header(), &header)?;
    if header.base.is_none() {
        target.clear(0, header.length)?;
    }
    while let Some(change) = reader.next()? {
        match change {
            Change::Bytes { offset, bytes } => target.put(offset, bytes)?,
            Change::Zeroes { offset, len } => target.clear(offset, len)?,
        }
    }
    same(&reader.finish()?, &state)?;
    Ok(state)
}

/// Checks that a value that was read twice is the same.
fn same<T: PartialEq>(found: &T, expected: &T) -> Result<(), DeltaError> {
    let what = "it was changed while it was read";
    if found == expected { Ok(()) } else { Err(DeltaError::Damaged { at: 0, what }) }
}
