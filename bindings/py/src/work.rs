//! Clears and copies.
#![allow(unsafe_code)]

use hugekit::{ClearError, ClearOptions, CopyError, CopyOptions};
use hugekit_bulk::parallel::Report;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::errors::Raised;
use crate::kinds::Decided;
use crate::numbers::Number;
use crate::progress::{Teller, threads};

/// Below this many bytes the GIL is kept: releasing and acquiring it takes longer.
const LONG: usize = 256 << 10;

/// Set every byte of an array, or of another writable buffer, to zero.
///
/// Args:
///     array: an array or a buffer, contiguous in C or Fortran order, without Python objects.
///     threads: the number of threads, the calling thread included. By default as many as are
///         useful.
///     progress: a function that is called as ``progress(done, total)`` in bytes, or a progress bar
///         with a method ``update``, such as tqdm's. An exception in the call ends the work. The
///         attribute ``hugekit_done`` of the exception then lists the bytes that are done, as pairs
///         of offsets.
///
/// Raises:
///     ValueError: the array is not contiguous, or read-only (BufferError for some objects), or
///         ``threads`` is 0.
///     TypeError: the object has no buffer, or holds Python objects.
///
/// >>> array = numpy.ones((1000, 1000))
/// >>> hugekit.clear(array)
/// >>> bool(array.any())
/// False
#[pyfunction]
#[pyo3(signature = (array, *, threads=None, progress=None))]
pub(crate) fn clear(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    threads: Option<Number>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let buffer = Buffer::of(array, true)?;
    let number = threads;
    if progress.is_none() && buffer.len() < LONG && number.is_none_or(|Number(number)| number != 0)
    {
        // SAFETY: the buffer is writable and stays in its place. That no other thread accesses it meanwhile is for the
        // program to see to, as with numpy's own functions.
        unsafe { ClearOptions::new().run_raw(buffer.start(), buffer.len()) }
            .map_err(Raised::from)?;
        return Ok(());
    }
    let teller = Teller::new(progress)?;
    let tell = |done, total| teller.tell(done, total);
    let run = || -> Result<Report, ClearError> {
        let mut clear = ClearOptions::new().threads(self::threads(number));
        if !teller.is_silent() {
            clear = clear.progress(&tell).cancel(teller.cancel());
        }
        // SAFETY: the buffer is writable and stays in its place; that no other thread accesses it meanwhile is
        // for the program to see to, as with numpy's own functions.
        unsafe { clear.run_raw(buffer.start(), buffer.len()) }
    };
    teller.result_or_done(py, py.detach(run), ClearError::done)?;
    Ok(())
}

/// Copy the bytes of one array, or of another buffer, to another.
///
/// ``dst`` and ``src`` must have the same number of bytes. Arrays must also have the same shape,
/// dtype and order.
///
/// Args:
///     dst: the destination, writable and contiguous.
///     src: the source, contiguous. The source must not overlap ``dst``.
///     threads: the number of threads, the calling thread included. By default as many as are
///         useful.
///     progress: a function that is called as ``progress(done, total)`` in bytes, or a progress bar
///         with a method ``update``, such as tqdm's. An exception in the call ends the work. The
///         attribute ``hugekit_done`` of the exception then lists the bytes that are done, as pairs
///         of offsets.
///
/// Raises:
///     ValueError: lengths, shapes, dtypes or orders differ, source and destination overlap, or an
///         object is not contiguous.
///     TypeError: an object has no buffer, or holds Python objects.
///
/// >>> source = numpy.arange(1_000_000)
/// >>> copy = hugekit.empty_like(source)
/// >>> hugekit.copy(copy, source, threads=2)
/// >>> bool((copy == source).all())
/// True
#[pyfunction]
#[pyo3(signature = (dst, src, *, threads=None, progress=None))]
pub(crate) fn copy(
    py: Python<'_>,
    dst: &Bound<'_, PyAny>,
    src: &Bound<'_, PyAny>,
    threads: Option<Number>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let (dst, src) = (Decided::of(dst)?, Decided::of(src)?);
    let (to, from) =
        (Buffer::of_memory(&dst.memory, true)?, Buffer::of_memory(&src.memory, false)?);
    check_alike(&dst, &src)?;
    if to.len() != from.len() {
        let error = CopyError::LengthsDiffer { dst: to.len(), src: from.len() };
        return Err(Raised::from(error).into());
    }
    let teller = Teller::new(progress)?;
    let tell = |done, total| teller.tell(done, total);
    let run = || -> Result<Report, CopyError> {
        let mut copy = CopyOptions::new().threads(self::threads(threads));
        if !teller.is_silent() {
            copy = copy.progress(&tell).cancel(teller.cancel());
        }
        // SAFETY: `to` is writable and `from` readable, both are equally long and stay in their places, and an overlap
        // is refused. That no other thread writes to either meanwhile is for the program to see to, as with numpy's
        // own functions.
        unsafe { copy.run_raw(to.start(), from.start(), to.len()) }
    };
    let done = if to.len() < LONG && teller.is_silent() { run() } else { py.detach(run) };
    teller.result_or_done(py, done, CopyError::done)?;
    Ok(())
}

/// Switch learning on or off: clears and copies find the fastest routine by timing their own work.
/// By default on.
///
/// A program that needs the same routine every time switches learning off. Timings are then kept
/// but not used.
///
/// Args:
///     enabled: True to learn, for later operations of this process.
///
/// >>> hugekit.set_learning(False)
/// >>> hugekit.set_learning(True)
#[pyfunction]
pub(crate) fn set_learning(enabled: bool) {
    hugekit_bulk::learning::set_enabled(enabled);
}

/// Checks that the bytes of two arrays have the same meaning. Other objects with a buffer are
/// bytes.
fn check_alike(dst: &Decided<'_>, src: &Decided<'_>) -> PyResult<()> {
    if dst.elements != src.elements {
        let said = |of: &Decided<'_>| match &of.elements {
            Some(elements) => Ok(elements.clone()),
            None => Ok::<_, PyErr>(
                of.memory.getattr_opt("dtype")?.map_or("bytes".into(), |dtype| dtype.to_string()),
            ),
        };
        return Err(PyValueError::new_err(format!(
            "cannot copy elements of {} to elements of {}: write dst.copy_(src), which converts them, or give \
             src.view(dtype)",
            said(src)?,
            said(dst)?
        )));
    }
    let (dst, src) = (&dst.memory, &src.memory);
    if !dst.hasattr("dtype")? || !src.hasattr("dtype")? {
        return Ok(());
    }
    for name in ["dtype", "shape"] {
        let (to, from) = (dst.getattr(name)?, src.getattr(name)?);
        if !to.eq(&from)? {
            let instead = if name == "dtype" { "astype" } else { "reshape" };
            let message = format!(
                "cannot copy an array of {name} {from} to one of {name} {to}: write src.{instead}({to}), or \
                 numpy.copyto(dst, src)"
            );
            return Err(PyValueError::new_err(message));
        }
    }
    for order in ["c_contiguous", "f_contiguous"] {
        let has = |array: &Bound<'_, PyAny>| array.getattr("flags")?.getattr(order)?.is_truthy();
        if has(dst)? && has(src)? {
            return Ok(());
        }
    }
    Err(PyValueError::new_err(
        "cannot copy between arrays in C and in Fortran order: write numpy.copyto(dst, src), or make dst by \
         hugekit.empty_like(src)",
    ))
}
