//! Warm-ups: page caches of files on huge pages.

use std::path::PathBuf;

use hugekit_warm::{WarmMode, WarmOptions, Warmer};
use pyo3::prelude::*;

use crate::errors::of_warm;
use crate::progress::Teller;
use crate::tend::as_python;

/// Put the page cache of a file on huge pages. Every process that maps the file afterwards gets one
/// page fault for each 2 MiB, without a change of the process: ``numpy.memmap``, ``mmap``, a loader
/// of model weights. Parts of the file that are not huge yet are dropped from the cache and read
/// again. The file needs as much memory as it has data. Ctrl-C ends the call after at most 64 MiB.
///
/// Args:
///     path: a regular file of at least 2 MiB that this user may read.
///     check: only count huge units. The file is not read, and nothing changes. By default False.
///     fill_holes: fill holes of the file with memory, too. By default 2 MiB without data are
///         skipped.
///     progress: called with the bytes that were read again; see :func:`clear`.
///
/// Returns:
///     The output of ``hugekit warm --json``: ``bytes``; the numbers of ``units`` of 2 MiB, of
///         ``huge``, ``already_huge`` and ``made_huge`` units, and of ``holes``; ``seconds``; and
///         ``left``: None, or the number of the other units and the reason.
///
/// Raises:
///     OSError: the file cannot be read, or was truncated or replaced during the call (EBUSY).
///     PermissionError: the call checks a file of another user.
///     ValueError: the file is not regular, is shorter than 2 MiB, or consists of one hole.
///     MemoryError: the machine or a control group has less memory than the file. Nothing was
///         dropped.
///
/// >>> with tempfile.NamedTemporaryFile() as file:
/// ...     file.write(bytes(8 << 20))
/// ...     file.flush()
/// ...     report = hugekit.warm(file.name)
/// 8388608
/// >>> report["units"], report["huge"] == 4 or report["left"]["why"]["reason"] != "not_made"
/// (4, True)
#[pyfunction]
#[pyo3(signature = (path, *, check=false, fill_holes=false, progress=None))]
pub(crate) fn warm<'py>(
    py: Python<'py>,
    path: PathBuf,
    check: bool,
    fill_holes: bool,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mode = if check { WarmMode::Check } else { WarmMode::Make };
    let options = WarmOptions { mode, fill_holes, ..WarmOptions::default() };
    let teller = Teller::new(progress)?;
    let tell = |done, total| teller.tell_or_look(done, total);
    let run = || Warmer::new(options).progress(&tell).cancel(teller.cancel()).run(&path);
    let warmed = py.detach(run).map_err(|error| of_warm(error, &path));
    as_python(py, &teller.result(warmed)?.report)
}
