//! Chains of deltas that are applied to the memory of an image while they are read. No merged file
//! is written before.
//!
//! Each delta is read once and in order, because each checksum depends on the one before. When
//! damage is found, the delta has already changed the memory, but the memory is not an image yet.

use std::cell::Cell;

use hugekit_delta::{Change, DeltaError, Reader, StateId};

use crate::canvas::Canvas;
use crate::error::ImageError;
use crate::meter::Meter;
use crate::raw::Raw;

/// The first bytes of each delta.
const MAGIC: &[u8] = b"HKDELTA\0";

/// Returns true if a source is a delta, and no raw memory file.
pub(crate) fn is_delta(source: &Raw) -> Result<bool, ImageError> {
    source.begins_with(MAGIC)
}

/// The memory that a delta is applied to.
#[derive(Clone, Copy)]
pub(crate) enum Base {
    /// There is no state yet: only a full delta can follow.
    Empty,
    /// The state of a raw memory file, which does not name its state. Any delta of the same length
    /// can follow.
    Unnamed,
    State(StateId),
}

impl Base {
    /// Checks that a delta may follow that begins with a state, or that is full.
    fn check(self, expected: Option<StateId>) -> Result<(), DeltaError> {
        match (self, expected) {
            (_, None) | (Self::Unnamed, _) => Ok(()),
            (Self::State(state), Some(expected)) if state == expected => Ok(()),
            (Self::State(state), Some(expected)) => {
                Err(DeltaError::OtherBase { expected, found: Some(state) })
            }
            (Self::Empty, Some(expected)) => Err(DeltaError::OtherBase { expected, found: None }),
        }
    }
}

/// Returns the number of bytes of the states of a delta.
pub(crate) fn length(delta: &Raw) -> Result<u64, ImageError> {
    let read = Cell::new(0);
    let reader = Reader::new(delta.stream(&read)).map_err(refused(delta))?;
    Ok(reader.header().length)
}

/// Brings memory forward by deltas in their order.
pub(crate) fn apply(
    deltas: &[Raw],
    mut base: Base,
    canvas: &Canvas,
    meter: &mut Meter<'_>,
) -> Result<(), ImageError> {
    for delta in deltas {
        let applied = apply_one(delta, base, canvas, meter);
        base = Base::State(applied.map_err(|error| match error {
            // What was changed meanwhile may look like damage.
            ImageError::Delta { .. } => delta.check().err().unwrap_or(error),
            other => other,
        })?);
        meter.finish(delta.bytes());
    }
    Ok(())
}

fn apply_one(
    delta: &Raw,
    base: Base,
    canvas: &Canvas,
    meter: &Meter<'_>,
) -> Result<StateId, ImageError> {
    let refused = refused(delta);
    let read = Cell::new(0);
    let mut reader = Reader::new(delta.stream(&read)).map_err(&refused)?;
    let (header, bytes) = (reader.header(), canvas.bytes());
    if header.length != bytes as u64 {
        let error = DeltaError::OtherLength { delta: header.length, state: bytes as u64 };
        return Err(refused(error));
    }
    base.check(header.base).map_err(&refused)?;
    if header.base.is_none() {
        canvas.clear(0..bytes)?;
    }
    while let Some(change) = reader.next().map_err(&refused)? {
        let at = change.offset() as usize;
        match change {
            Change::Bytes { bytes, .. } => canvas.overwrite(at, bytes)?,
            Change::Zeroes { len, .. } => canvas.clear(at..at + len as usize)?,
        }
        meter.check()?;
        meter.tell(read.get());
    }
    reader.finish().map_err(refused)
}

fn refused(delta: &Raw) -> impl Fn(DeltaError) -> ImageError {
    let nth = delta.nth();
    move |source| ImageError::Delta { nth, source }
}
