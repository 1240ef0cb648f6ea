//! Memory that cannot be protected, and is copied immediately: other processes could write to the
//! memory, the kernel merges or maps the memory, or this process may not handle the faults of
//! system calls.
#![allow(unsafe_code)]

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use hugekit::fault::FaultMode;
use hugekit::region::ForkError;
use hugekit::snapshot::Builder;
use hugekit::{CopyOptions, ErrorKind, HUGE_PAGE_BYTES, SnapshotError, error_chain};
use hugekit_machine::Root;
use hugekit_machine::available::Available;
use hugekit_sys::private_pages::PrivateBytes;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;

use crate::errors::Raised;

/// The default mode of fault handling: a thread, which also handles faults of system calls. In
/// place, system calls would fail in code that does not know of snapshots.
pub(crate) const BY_DEFAULT: FaultMode = FaultMode::Threaded { threads: 1 };

/// The length in bytes from which a copy first checks the available memory.
const LOOK: usize = 64 << 20;

/// Memory that cannot be protected, and the reason.
enum Refused {
    Range(Range<usize>, String),
    /// No memory of this process can be protected.
    All(String),
}

/// Returns the memory that an error refuses, if a copy can replace the snapshot. `asked` is the
/// mode that the program requested. [`tell_noted`] logs the reason.
fn refused(error: &SnapshotError, asked: Option<FaultMode>) -> Option<Refused> {
    match error {
        SnapshotError::Unsuitable { mapping, reason } if mapping.is_readable => {
            Some(Refused::Range(mapping.addresses.clone(), reason.to_string()))
        }
        _ if asked.is_some() => None,
        SnapshotError::Fork(differs @ ForkError::FaultModeDiffers { .. }) => {
            Some(Refused::All(error_chain(differs).to_string()))
        }
        // A process that was another user's may not read what the kernel says of it.
        SnapshotError::Fault(_) | SnapshotError::Fork(ForkError::Fault(_)) => {
            Some(Refused::All(note_once(error)))
        }
        _ if error.kind() == ErrorKind::NotPermitted => Some(Refused::All(note_once(error))),
        _ => None,
    }
}

/// Returns the reason why memory is copied, or the error if copying is refused.
pub(crate) fn reason(
    error: SnapshotError,
    asked: Option<FaultMode>,
    strict: bool,
) -> PyResult<String> {
    let refused = if strict { None } else { refused(&error, asked) };
    match refused {
        Some(Refused::Range(_, reason) | Refused::All(reason)) => Ok(reason),
        None => Err(Raised::from(error).into()),
    }
}

/// A line for the log. Logging runs Python code, so the line waits until all arrays of a moment are
/// taken.
static NOTED: Mutex<Option<String>> = Mutex::new(None);

/// Stores the reason why no memory of this process can be protected, once in a process. Returns the
/// reason.
fn note_once(error: &SnapshotError) -> String {
    static IS_NOTED: AtomicBool = AtomicBool::new(false);
    let reason = error_chain(error).to_string();
    if !IS_NOTED.swap(true, Relaxed) {
        let remedy =
            error.remedy().map_or_else(String::new, |remedy| format!("; remedy: {remedy}"));
        let line =
            format!("memory is copied at once, and not when it is written: {reason}{remedy}");
        *NOTED.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
    }
    reason
}

/// Logs the stored line, as a warning of `hugekit`. An error of the log does not make a save fail.
pub(crate) fn tell_noted(py: Python<'_>) {
    let Some(line) = NOTED.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let log = || {
        let logger = py.import("logging")?.call_method1("getLogger", ("hugekit",))?;
        logger.call_method1("warning", ("%s", line))
    };
    let _: PyResult<_> = log();
}

/// Returns the reasons why some of these ranges must be copied, after one of them was refused.
pub(crate) fn reasons(
    ranges: &[Range<usize>],
    error: SnapshotError,
    asked: Option<FaultMode>,
) -> PyResult<Vec<Option<String>>> {
    let (addresses, reason) = match refused(&error, asked) {
        Some(Refused::Range(addresses, reason)) => (addresses, reason),
        Some(Refused::All(reason)) => return Ok(vec![Some(reason); ranges.len()]),
        None => return Err(Raised::from(error).into()),
    };
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

/// Checks that `len` bytes are available: the kernel would end a process. `wanted` is for the error.
pub(crate) fn check_available(len: usize, wanted: &str) -> PyResult<()> {
    if len < LOOK {
        return Ok(());
    }
    let available = Available::of_this_process(&Root::default()).bytes;
    if len as u64 <= available {
        return Ok(());
    }
    Err(PyMemoryError::new_err(format!(
        "not enough memory: {wanted}, and {available} are available"
    )))
}

/// A copy of memory, on huge pages if it is large.
#[derive(Debug)]
pub(crate) struct CopiedBytes {
    memory: PrivateBytes,
    /// The bytes that are written.
    len: usize,
}

impl CopiedBytes {
    /// Makes a copy of this many bytes, all of which `write` writes. Python cannot run meanwhile,
    /// so `write` must be fast.
    ///
    /// # Safety
    /// `write` writes this many bytes to its pointer.
    pub(crate) unsafe fn filled(
        len: usize,
        write: impl FnOnce(*mut u8) -> PyResult<()>,
    ) -> PyResult<Self> {
        let wanted = format!("{len} bytes cannot be protected and are copied at once");
        check_available(len, &wanted)?;
        let short = |_| PyMemoryError::new_err(format!("not enough memory: {wanted}"));
        let align = if len < HUGE_PAGE_BYTES { 1 } else { HUGE_PAGE_BYTES };
        let memory = PrivateBytes::new(len, align).map_err(short)?;
        if len >= HUGE_PAGE_BYTES {
            // Without them it is slower.
            let _ = memory.want_huge_pages();
        }
        write(memory.start())?;
        Ok(Self { memory, len })
    }

    /// Copies memory of this process. The caller holds the GIL, so that no Python code writes meanwhile.
    ///
    /// # Safety
    /// The memory can be read during the call. A thread that writes to it meanwhile does not hold
    /// the GIL, so either value of its bytes is correct.
    pub(crate) unsafe fn of(memory: *const [u8]) -> PyResult<Self> {
        let write = |to: *mut u8| {
            // SAFETY: as many bytes were just mapped, which nobody else knows; the caller vouches for the memory.
            let copied =
                unsafe { CopyOptions::new().run_raw(to, memory.cast::<u8>(), memory.len()) };
            copied.map(drop).map_err(|error| Raised::from(error).into())
        };
        // SAFETY: all of the bytes are copied.
        unsafe { Self::filled(memory.len(), write) }
    }
}

impl Deref for CopiedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes were written when this was made, and nobody writes to them later.
        unsafe { std::slice::from_raw_parts(self.memory.start(), self.len) }
    }
}
