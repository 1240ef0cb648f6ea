//! Chains of deltas, applied to the memory of an image as they are read: no merged file is written before.
//!
//! Each delta is read once and in order, because its checksums follow on each other. A damaged delta has already
//! changed the memory when that is seen; it is no image's yet.

use hugekit_delta::{Change, DeltaError, Reader, StateId};

use crate::canvas::Canvas;
use crate::error::ImageError;
use crate::raw::Raw;

/// The bytes that each delta begins with.
const MAGIC: &[u8] = b"HKDELTA\0";

/// Whether a source is a delta, and no raw memory file.
pub(crate) fn is_delta(source: &Raw) -> Result<bool, ImageError> {
    source.begins_with(MAGIC)
}

/// Bytes of the states of a delta.
pub(crate) fn length(delta: &Raw) -> Result<u64, ImageError> {
    let reader = Reader::new(delta.stream()).map_err(refused(delta))?;
    Ok(reader.header().length)
}

/// Brings memory that is in state `current`, if that is known, forward by deltas in their order.
pub(crate) fn apply(
    deltas: &[Raw],
    mut current: Option<StateId>,
    canvas: &Canvas,
) -> Result<(), ImageError> {
    for delta in deltas {
        let applied = apply_one(delta, current, canvas);
        current = Some(applied.map_err(|error| match error {
            // What was changed meanwhile may look like damage.
            ImageError::Delta { .. } => delta.check().err().unwrap_or(error),
            other => other,
        })?);
    }
    Ok(())
}

fn apply_one(
    delta: &Raw,
    current: Option<StateId>,
    canvas: &Canvas,
) -> Result<StateId, ImageError> {
    let refused = refused(delta);
    let mut reader = Reader::new(delta.stream()).map_err(&refused)?;
    let (header, bytes) = (reader.header(), canvas.bytes());
    if header.length != bytes as u64 {
        let error = DeltaError::OtherLength { delta: header.length, state: bytes as u64 };
        return Err(refused(error));
    }
    match header.base {
        None => canvas.clear(0..bytes)?,
        Some(expected) if current != Some(expected) => {
            return Err(refused(DeltaError::OtherBase { expected, found: current }));
        }
        Some(_) => {}
    }
    while let Some(change) = reader.next().map_err(&refused)? {
        let at = change.offset() as usize;
        match change {
            Change::Bytes { bytes, .. } => canvas.overwrite(at, bytes)?,
            Change::Zeroes { len, .. } => canvas.clear(at..at + len as usize)?,
        }
    }
    reader.finish().map_err(refused)
}

fn refused(delta: &Raw) -> impl Fn(DeltaError) -> ImageError {
    let nth = delta.nth();
    move |source| ImageError::Delta { nth, source }
}
