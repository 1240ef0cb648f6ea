//! numpy arrays on huge pages.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyTuple};

use crate::buffer::Buffer;
use crate::numbers::Number;
use crate::pool::{Pool, default_region};
use crate::region::Region;
use crate::shared::SharedMemory;

/// Make a zeroed array on huge pages, or on the best pages that the machine has.
///
/// The memory comes from a pool, which has cleared it before. ``numpy.zeros`` clears page by page
/// at the first access. The memory returns to the pool when the array and all views of it are
/// deleted.
///
/// Args:
///     shape: a number, or a tuple of numbers.
///     dtype: any dtype without Python objects. By default float64.
///     order: "C" or "F".
///     pool: the pool for the array. By default process-wide pools, which grow.
///     threads: the number of threads that clear memory that is still dirty. By default the pool's
///         number.
///     shared: share the array with processes that this process forks afterwards, such as the
///         workers of a DataLoader. Each process sees the writes of the others, as after torch's
///         ``share_memory_()``. The memory is then separate from any pool, populated at once, and
///         freed when the last process has deleted it. :func:`fork` and snapshots do not support
///         such memory. By default False.
///
/// Raises:
///     MemoryError: less memory is available.
///     ValueError: a negative shape, more bytes than the process has addresses for, an unknown
///         order, or a pool for shared memory.
///     TypeError: a dtype that holds Python objects.
///
/// Children of a fork do not inherit the memory unless it is ``shared``: an access to it ends the
/// child with SIGSEGV (see the package's documentation).
///
/// >>> array = hugekit.zeros((1000, 1000), "f4")
/// >>> array.shape, array.dtype.name, float(array.sum())
/// ((1000, 1000), 'float32', 0.0)
#[pyfunction]
#[pyo3(signature = (shape, dtype=None, *, order="C", pool=None, threads=None, shared=false),
    text_signature = "(shape, dtype=None, *, order='C', pool=None, threads=None, shared=False)")]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub(crate) fn zeros<'py>(
    py: Python<'py>,
    shape: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    order: &str,
    pool: Option<&Pool>,
    threads: Option<Number>,
    shared: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let numpy = py.import("numpy")?;
    let dtype = match dtype {
        Some(dtype) => {
            numpy.call_method1("dtype", (dtype,)).map_err(|error| no_dtype(dtype, error))?
        }
        None => numpy.call_method1("dtype", ("f8",))?,
    };
    if dtype.getattr("hasobject")?.is_truthy()? {
        return Err(PyTypeError::new_err(format!(
            "the dtype {dtype} holds references to Python objects, and memory of hugekit is bytes: give a dtype of \
             numbers or of text, or write numpy.zeros(shape, {dtype})"
        )));
    }
    if !["C", "F"].contains(&order) {
        return Err(PyValueError::new_err(format!(
            "order is {order:?}, and can be \"C\" or \"F\""
        )));
    }
    let bytes = bytes_of(shape, dtype.getattr("itemsize")?.extract()?)?;
    if bytes == 0 {
        let order = [("order", order)].into_py_dict(py)?;
        return numpy.call_method("zeros", (shape, dtype), Some(&order));
    }
    let memory = match pool {
        Some(_) if shared => {
            return Err(PyValueError::new_err(
                "pool and shared=True exclude each other: leave out one of them",
            ));
        }
        None if shared => SharedMemory::new(py, bytes, threads)?.into_pyobject(py)?.into_any(),
        Some(pool) => {
            pool.region(py, Number(bytes), threads, None, None, None)?.into_pyobject(py)?.into_any()
        }
        None => default_region(py, bytes, threads)?.into_pyobject(py)?.into_any(),
    };
    shaped(&numpy, memory, 0, shape, &dtype, order)
}

/// Make an array on huge pages. The array is zeroed, as by :func:`zeros`, because a pool allocates
/// only zeroed memory.
///
/// >>> bool(hugekit.empty(1000).any())
/// False
#[pyfunction]
#[pyo3(signature = (shape, dtype=None, *, order="C", pool=None, threads=None, shared=false),
    text_signature = "(shape, dtype=None, *, order='C', pool=None, threads=None, shared=False)")]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub(crate) fn empty<'py>(
    py: Python<'py>,
    shape: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    order: &str,
    pool: Option<&Pool>,
    threads: Option<Number>,
    shared: bool,
) -> PyResult<Bound<'py, PyAny>> {
    zeros(py, shape, dtype, order, pool, threads, shared)
}

/// Returns numpy's error about a dtype. For a dtype of torch, the error contains the remedy.
fn no_dtype(dtype: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    match dtype.str() {
        Ok(name) if name.to_string_lossy().starts_with("torch.") => {
            let name = name.to_string_lossy();
            PyTypeError::new_err(format!(
                "{name} is no dtype of numpy: write {:?}, and torch.from_numpy(array) for a tensor on the array's memory",
                name.trim_start_matches("torch.")
            ))
        }
        _ => error,
    }
}

/// Returns the number of bytes of an array, if the process has addresses for this many bytes.
fn bytes_of(shape: &Bound<'_, PyAny>, item: usize) -> PyResult<usize> {
    let extents: Vec<Number> = match shape.extract::<Number>() {
        Err(error) if error.is_instance_of::<PyTypeError>(shape.py()) => extents_of(shape)?,
        extent => vec![extent?],
    };
    if extents.iter().any(|extent| extent.0 == 0) {
        return Ok(0);
    }
    let mut items = extents.into_iter();
    let bytes = items.try_fold(item, |bytes, Number(extent)| bytes.checked_mul(extent));
    let most = isize::MAX as usize;
    bytes.filter(|&bytes| bytes <= most).ok_or_else(|| {
        let message = format!(
            "{shape} items of {item} bytes are too many: a process has addresses for {most} bytes"
        );
        PyValueError::new_err(message)
    })
}

/// Returns the numbers of a tuple, or of another sequence.
fn extents_of(shape: &Bound<'_, PyAny>) -> PyResult<Vec<Number>> {
    shape.extract().map_err(|error: PyErr| {
        if !error.is_instance_of::<PyTypeError>(shape.py()) {
            return error;
        }
        let said =
            shape.repr().map_or_else(|_| "no such thing".to_owned(), |said| said.to_string());
        PyTypeError::new_err(format!(
            "shape is {said}, and can be an integer or a tuple of integers, such as (1000, 1000)"
        ))
    })
}

/// Returns an array on a part of a region or of other memory. The array keeps the memory alive.
fn shaped<'py>(
    numpy: &Bound<'py, PyModule>,
    memory: Bound<'py, PyAny>,
    offset: usize,
    shape: &Bound<'py, PyAny>,
    dtype: &Bound<'py, PyAny>,
    order: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let py = numpy.py();
    let keywords = [("buffer", memory)].into_py_dict(py)?;
    keywords.set_item("dtype", dtype)?;
    keywords.set_item("offset", offset)?;
    keywords.set_item("order", order)?;
    numpy.call_method("ndarray", (shape,), Some(&keywords))
}

/// Make an array with the same elements. Neither array sees later writes to the other.
///
/// The array must be made by :func:`zeros` or :func:`empty`, or on a :class:`Region`, or be a
/// contiguous view of such an array. The whole region is forked, so the pool must have as many free
/// bytes.
///
/// Raises:
///     MemoryError: the pool has fewer free bytes than the region.
///     PermissionError: this process may not handle page faults.
///     ValueError: the array is not on a region, or not contiguous.
///     TypeError: the object is not a numpy array. For a tensor, fork ``tensor.numpy()``.
///
/// >>> pool = hugekit.Pool(8 << 20, backing="base")
/// >>> template = pool.zeros(100_000)
/// >>> clone = hugekit.fork(template)
/// >>> clone[0] = 1
/// >>> float(template[0]), float(clone[0])
/// (0.0, 1.0)
#[pyfunction]
pub(crate) fn fork<'py>(py: Python<'py>, array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let numpy = py.import("numpy")?;
    let (region, offset) = place_of(array, NOT_FORKED)?;
    let flags = array.getattr_opt("flags")?.ok_or_else(|| no_array_to_fork(array))?;
    let order = if flags.getattr("c_contiguous")?.is_truthy()? { "C" } else { "F" };
    let fork = region.fork(py, None, None)?.into_pyobject(py)?.into_any();
    shaped(&numpy, fork, offset, &array.getattr("shape")?, &array.getattr("dtype")?, order)
}

/// Return the region of an array, and the array's offset in it, in bytes.
///
/// Raises:
///     ValueError: the array is not on a region.
///
/// >>> region, offset = hugekit.region_of(hugekit.zeros(1000)[10:])
/// >>> len(region), offset
/// (8000, 80)
#[pyfunction]
pub(crate) fn region_of<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyTuple>> {
    let (region, offset) = place_of(array, NO_REGION)?;
    (region, offset).into_pyobject(py)
}

fn no_array_to_fork(object: &Bound<'_, PyAny>) -> PyErr {
    let kind = object.get_type();
    PyTypeError::new_err(format!(
        "{} is no numpy array: write torch.from_numpy(hugekit.fork(tensor.numpy())) for a tensor, and region.fork() \
         for a hugekit.Region",
        kind.name().map_or_else(|_| "this".to_owned(), |name| name.to_string())
    ))
}

const NOT_FORKED: &str = "only arrays on a hugekit.Region can be forked, and the memory of this one is not that of \
    one: make it by hugekit.zeros or hugekit.empty, not shared; or copy it once, by new = hugekit.empty_like(array) and \
    hugekit.copy(new, array); or take one moment of any array, by hugekit.snapshot(array)";

const NO_REGION: &str = "the memory of this array is not that of a hugekit.Region: arrays of hugekit.zeros, \
    hugekit.empty and numpy.frombuffer(region) are, unless they are shared; those of numpy are not";

/// Returns the region of an array and the array's offset in it. `elsewhere` is the message of the
/// error if the array is on no region.
fn place_of(array: &Bound<'_, PyAny>, elsewhere: &'static str) -> PyResult<(Region, usize)> {
    let buffer = Buffer::of(array, false)?;
    if buffer.len() == 0 {
        return Err(PyValueError::new_err("the array has no bytes, so it is on no hugekit.Region"));
    }
    let start = buffer.start().addr();
    let region = Region::around(start, buffer.len());
    let region = region.ok_or_else(|| PyValueError::new_err(elsewhere))?;
    let offset = start - region.shared().as_ptr().addr();
    Ok((region, offset))
}
