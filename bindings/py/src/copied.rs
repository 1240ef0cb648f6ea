//! Memory that cannot be protected, and is copied at once: others could write to it, or the kernel merges or maps it.
#![allow(unsafe_code)]

use std::ops::Range;

use hugekit::snapshot::Builder;
use hugekit::{CopyOptions, SnapshotError};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;

use crate::errors::Raised;

/// Returns the memory that an error is about and its reason, if a copy would do instead of a snapshot.
pub(crate) fn refused(error: &SnapshotError) -> Option<(Range<usize>, String)> {
    match error {
        SnapshotError::Unsuitable { mapping, reason } if mapping.is_readable => {
            Some((mapping.addresses.clone(), reason.to_string()))
        }
        _ => None,
    }
}

/// Returns the reasons why some of these ranges are to be copied, after one of them was refused.
pub(crate) fn reasons(
    ranges: &[Range<usize>],
    error: SnapshotError,
) -> PyResult<Vec<Option<String>>> {
    let Some((addresses, reason)) = refused(&error) else { return Err(Raised::from(error).into()) };
    let found = Builder::unsuitable(ranges).map_err(Raised::from)?;
    let mut reasons: Vec<_> =
        found.into_iter().map(|reason| reason.map(|reason| reason.to_string())).collect();
    if reasons.iter().all(Option::is_none) {
        // The kernel told only when it was to protect the memory.
        for (range, known) in ranges.iter().zip(&mut reasons) {
            *known = (range.start < addresses.end && addresses.start < range.end)
                .then(|| reason.clone());
        }
    }
    match reasons.iter().all(Option::is_none) {
        true => Err(Raised::from(error).into()),
        false => Ok(reasons),
    }
}

/// Copies memory of this process. The caller holds the GIL, so that no Python code writes meanwhile.
///
/// # Safety
/// The memory can be read during the call. A thread that writes to it meanwhile does not hold the GIL, and its bytes mean
/// nothing to us.
pub(crate) unsafe fn copy(memory: *const [u8]) -> PyResult<Vec<u8>> {
    let len = memory.len();
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| {
        PyMemoryError::new_err(format!(
            "not enough memory: {len} bytes cannot be protected and are copied at once"
        ))
    })?;
    // SAFETY: as many bytes were just allocated, which nobody else knows; the caller vouches for the memory.
    let copied =
        unsafe { CopyOptions::new().run_raw(bytes.as_mut_ptr(), memory.cast::<u8>(), len) };
    copied.map_err(Raised::from)?;
    // SAFETY: all of them are written.
    unsafe { bytes.set_len(len) };
    Ok(bytes)
}
