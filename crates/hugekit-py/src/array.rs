//! numpy arrays on huge pages.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyTuple};

use crate::buffer::Buffer;
use crate::numbers::Number;
use crate::pool::{Pool, default_region};
use crate::region::Region;

/// A zeroed array on huge pages, or on what the machine has instead.
///
/// Its memory comes from a pool, clean: what ``numpy.zeros`` leaves to page faults, one after the other, was done
/// before. It goes back when the array and all views of it are gone.
///
/// Args:
///     shape: a number, or a tuple of numbers.
///     dtype: of anything but Python objects; float64 if not said.
///     order: "C" or "F".
///     pool: where the memory comes from; process-wide pools, which grow, if not said.
///     threads: how many clear what is not clean yet; as the pool says if not said.
///
/// Raises:
///     MemoryError: so much is not there.
///     ValueError: a shape below zero or of more bytes than there are addresses, or an order that is none.
///     TypeError: a dtype that holds Python objects.
///
/// A process forked from this one has no such memory (see the package's documentation).
///
/// >>> array = hugekit.zeros((1000, 1000), "f4")
/// >>> array.shape, array.dtype.name, float(array.sum())
/// ((1000, 1000), 'float32', 0.0)
#[pyfunction]
#[pyo3(signature = (shape, dtype=None, *, order="C", pool=None, threads=None))]
pub(crate) fn zeros<'py>(
    py: Python<'py>,
    shape: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    order: &str,
    pool: Option<&Pool>,
    threads: Option<Number>,
) -> PyResult<Bound<'py, PyAny>> {
    let numpy = py.import("numpy")?;
    let dtype = match dtype {
        Some(dtype) => numpy.call_method1("dtype", (dtype,))?,
        None => numpy.call_method1("dtype", ("f8",))?,
    };
    if dtype.getattr("hasobject")?.is_truthy()? {
        return Err(PyTypeError::new_err(format!("{dtype} holds references to Python objects")));
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
    let region = match pool {
        Some(pool) => pool.region(py, Number(bytes), threads, None, None, None)?,
        None => default_region(py, bytes, threads)?,
    };
    shaped(&numpy, region, 0, shape, &dtype, order)
}

/// An array on huge pages; as :func:`zeros`, because clean memory is all that pools allocate.
///
/// >>> bool(hugekit.empty(1000).any())
/// False
#[pyfunction]
#[pyo3(signature = (shape, dtype=None, *, order="C", pool=None, threads=None))]
pub(crate) fn empty<'py>(
    py: Python<'py>,
    shape: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    order: &str,
    pool: Option<&Pool>,
    threads: Option<Number>,
) -> PyResult<Bound<'py, PyAny>> {
    zeros(py, shape, dtype, order, pool, threads)
}

/// How many bytes, if there can be so many.
fn bytes_of(shape: &Bound<'_, PyAny>, item: usize) -> PyResult<usize> {
    let extents: Vec<Number> = match shape.extract::<Number>() {
        Err(error) if error.is_instance_of::<PyTypeError>(shape.py()) => shape.extract()?,
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
            "{shape} items of {item} bytes are more than the {most} bytes that there are addresses for"
        );
        PyValueError::new_err(message)
    })
}

/// An array on part of a region, which it keeps alive.
fn shaped<'py>(
    numpy: &Bound<'py, PyModule>,
    region: Region,
    offset: usize,
    shape: &Bound<'py, PyAny>,
    dtype: &Bound<'py, PyAny>,
    order: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let py = numpy.py();
    let keywords = [("buffer", region.into_pyobject(py)?.into_any())].into_py_dict(py)?;
    keywords.set_item("dtype", dtype)?;
    keywords.set_item("offset", offset)?;
    keywords.set_item("order", order)?;
    numpy.call_method("ndarray", (shape,), Some(&keywords))
}

/// An array with the same elements, of which each side changes its own: in microseconds, whatever its size.
///
/// Only for arrays of :func:`zeros`, :func:`empty` and on a :class:`Region`, and contiguous views of them. All of the
/// region is forked: the pool must have as many bytes left.
///
/// Raises:
///     MemoryError: the pool has not as many bytes left.
///     PermissionError: this process may not serve faults.
///     ValueError: the array lies elsewhere, or is not contiguous.
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
    let (region, offset) = place_of(array)?;
    let order =
        if array.getattr("flags")?.getattr("c_contiguous")?.is_truthy()? { "C" } else { "F" };
    let fork = region.fork(py, None, None)?;
    shaped(&numpy, fork, offset, &array.getattr("shape")?, &array.getattr("dtype")?, order)
}

/// The region that an array lies on, and where in it the array begins, in bytes.
///
/// Raises:
///     ValueError: it lies on none.
///
/// >>> region, offset = hugekit.region_of(hugekit.zeros(1000)[10:])
/// >>> len(region), offset
/// (8000, 80)
#[pyfunction]
pub(crate) fn region_of<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyTuple>> {
    let (region, offset) = place_of(array)?;
    (region, offset).into_pyobject(py)
}

fn place_of(array: &Bound<'_, PyAny>) -> PyResult<(Region, usize)> {
    let buffer = Buffer::of(array, false)?;
    let start = buffer.start().addr();
    let region = Region::around(start, buffer.len()).filter(|_| buffer.len() > 0);
    let elsewhere = || PyValueError::new_err("the memory is not that of a hugekit.Region");
    let region = region.ok_or_else(elsewhere)?;
    let offset = start - region.shared().as_ptr().addr();
    Ok((region, offset))
}
