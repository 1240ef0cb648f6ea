//! States brought forward by deltas.

use std::io::{Read, Seek, SeekFrom};

use crate::error::DeltaError;
use crate::format::StateId;
use crate::reader::{Change, Header, Reader};
use crate::target::Target;

/// The content of a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Its header.
    pub header: Header,
    /// The state that it leads to.
    pub state: StateId,
    /// The number of changes.
    pub changes: u64,
    /// Bytes that it puts in their places.
    pub bytes: u64,
    /// Bytes that it makes zero.
    pub zeroes: u64,
    /// Bytes of the delta itself.
    pub size: u64,
}

/// Reads a delta to its end, and checks all of it.
///
/// # Errors
/// It is none, or damaged, with the place.
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

/// Brings a state forward: `current` is the one that is there, if it is known. All of the delta is checked before the
/// first byte is changed, so it is read twice. Returns the state that is there then.
///
/// # Errors
/// The delta is damaged, or of another base or length: nothing was changed. Or it was changed between the two
/// readings, or the target has refused: it holds neither state.
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
