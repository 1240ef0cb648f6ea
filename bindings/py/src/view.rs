//! Snapshots as arrays that are filled on request.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;

use hugekit::Snapshot;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBool, PyDict, PyEllipsis, PySlice, PyString, PyTuple};

use crate::buffer::Buffer;
use crate::copied::CopiedBytes;
use crate::errors::Raised;
use crate::numbers::Number;
use crate::snapshot::Kind;

/// A read-only array of a snapshot. Bytes are copied when they are first requested.
/// :meth:`Snapshot.view` makes it.
///
/// An index that is a number or a slice returns the same as in numpy, and reads only the bytes
/// between the first and the last byte of the result. ``numpy.asarray(view)`` reads everything.
/// Bytes that were read never change. They use memory until the view and the arrays made of it are
/// deleted.
///
/// Raises:
///     SnapshotLost: bytes that were not read before are read, and the snapshot is lost.
///     TypeError: an index is not a number, a slice or the name of a field.
#[pyclass(frozen, generic, module = "hugekit")]
pub(crate) struct View {
    /// The bytes to read; `None` if the view is empty.
    pages: Option<Py<Pages>>,
    /// The whole array, filled or not, for this module only.
    all: Py<PyAny>,
    /// The start of the snapshotted array.
    origin: usize,
}

/// The bytes of one array.
#[pyclass(frozen)]
struct Pages {
    content: PagesContent,
    /// Keeps the memory that is not read yet at its address.
    _owner: Option<Arc<Buffer>>,
}

enum PagesContent {
    /// The bytes of the view within the array.
    Protected(hugekit::snapshot::View<Arc<Snapshot>>, Range<usize>),
    /// All bytes are read.
    Copied(Arc<CopiedBytes>),
}

/// The bytes that a view shows.
pub(crate) enum ShownBytes {
    /// The offset in it at which the array begins.
    Protected(Arc<Snapshot>, usize),
    /// A copy that was made at once.
    Copied(Arc<CopiedBytes>),
}

/// The source of a view.
pub(crate) struct Shown {
    /// `None` if there are no bytes.
    pub(crate) content: Option<ShownBytes>,
    /// `None` if nothing of the array's own memory is shown.
    pub(crate) owner: Option<Arc<Buffer>>,
    pub(crate) len: usize,
    /// `None` for an object that is not an array, which has bytes.
    pub(crate) kind: Option<Kind>,
}

impl View {
    pub(crate) fn of(py: Python<'_>, shown: Shown) -> PyResult<Self> {
        let Shown { content, owner, len, kind } = shown;
        let origin = owner.as_ref().map_or(0, |owner| owner.start().addr());
        let pages = content
            .map(|content| {
                let content = match content {
                    ShownBytes::Copied(bytes) => PagesContent::Copied(bytes),
                    ShownBytes::Protected(snapshot, offset) => {
                        let view = hugekit::snapshot::View::of(snapshot).map_err(Raised::from)?;
                        PagesContent::Protected(view, offset..offset + len)
                    }
                };
                Py::new(py, Pages { content, _owner: owner })
            })
            .transpose()?;
        let keywords = [("buffer", &pages)].into_py_dict(py)?;
        let numpy = py.import("numpy")?;
        let all = match kind {
            Some(kind) => {
                keywords.set_item("order", kind.order())?;
                keywords.set_item("dtype", kind.dtype)?;
                numpy.call_method("ndarray", (kind.shape,), Some(&keywords))?
            }
            None => {
                keywords.set_item("dtype", "u1")?;
                numpy.call_method("ndarray", (len,), Some(&keywords))?
            }
        };
        all.getattr("flags")?.setattr("writeable", false)?;
        Ok(Self { pages, all: all.unbind(), origin })
    }

    /// Reads the bytes that an array of a part shows.
    fn fill(&self, part: &Bound<'_, PyAny>) -> PyResult<()> {
        let Some(pages) = &self.pages else { return Ok(()) };
        let py = part.py();
        let bytes = bytes_of(part)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let first = bytes_of(self.all.bind(py))?.start;
        pages.get().read(py, bytes.start - first..bytes.end - first)
    }
}

#[pymethods]
impl View {
    /// Return ``nbytes`` bytes at an address in the array, read-only. This is for structures that
    /// hold pointers into the array itself.
    ///
    /// Raises:
    ///     ValueError: the address is outside the array.
    ///     SnapshotLost: the snapshot is lost.
    ///
    /// >>> text = numpy.frombuffer(bytearray(b"what it was"), "u1")
    /// >>> pointer = text.ctypes.data + 5
    /// >>> with hugekit.snapshot(text) as moment:
    /// ...     bytes(moment.view().rebase(pointer, 6))
    /// b'it was'
    fn rebase<'py>(
        &self,
        py: Python<'py>,
        address: Number,
        nbytes: Number,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (Number(address), Number(nbytes)) = (address, nbytes);
        let start = address.wrapping_sub(self.origin);
        let elsewhere = || {
            let message = format!("{nbytes} bytes at {address:#x} are outside the array");
            PyValueError::new_err(message)
        };
        let pages = self.pages.as_ref().ok_or_else(elsewhere)?;
        let end = start.checked_add(nbytes).ok_or_else(elsewhere)?;
        if end > pages.get().len() {
            return Err(elsewhere());
        }
        pages.get().read(py, start..end)?;
        // SAFETY: an object of this interpreter, with a buffer.
        let all = unsafe {
            Bound::from_owned_ptr_or_err(py, ffi::PyMemoryView_FromObject(pages.as_ptr()))?
        };
        all.get_item(PySlice::new(py, start.cast_signed(), end.cast_signed(), 1))
    }

    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = index.py();
        let part = match index.cast::<PyString>() {
            Ok(field) => self.all.bind(py).get_item(field)?,
            Err(_) => self.all.bind(py).get_item(plain(index)?)?,
        };
        self.fill(&part)?;
        // A single element as numpy has it.
        let is_one = part.getattr("ndim")?.extract::<usize>()? == 0;
        if is_one && !says_ellipsis(index) { part.get_item(PyTuple::empty(py)) } else { Ok(part) }
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let all = self.all.bind(py);
        self.fill(all)?;
        let numpy = py.import("numpy")?;
        let keywords = PyDict::new(py);
        keywords.set_item("dtype", dtype)?;
        match copy {
            None => numpy.call_method("asarray", (all,), Some(&keywords)),
            Some(copy) => {
                keywords.set_item("copy", copy)?;
                numpy.call_method("array", (all,), Some(&keywords))
            }
        }
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.all.bind(py).len()
    }

    /// The shape of the array.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.all.bind(py).getattr("shape")
    }

    /// The dtype of the array.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.all.bind(py).getattr("dtype")
    }

    /// The number of bytes of the array, read or not.
    #[getter]
    fn nbytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.all.bind(py).getattr("nbytes")
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<hugekit.View of {}, {}>", self.shape(py)?, self.dtype(py)?))
    }
}

impl Pages {
    /// Fills bytes of the array, by their offsets in it.
    fn read(&self, py: Python<'_>, bytes: Range<usize>) -> PyResult<()> {
        let PagesContent::Protected(view, range) = &self.content else { return Ok(()) };
        let bytes = range.start + bytes.start..range.start + bytes.end;
        py.detach(|| view.bytes(bytes).map(|_| ())).map_err(|error| Raised::from(error).into())
    }

    fn len(&self) -> usize {
        match &self.content {
            PagesContent::Protected(_, range) => range.len(),
            PagesContent::Copied(bytes) => bytes.len(),
        }
    }
}

#[pymethods]
impl Pages {
    /// # Safety
    /// Called by the interpreter.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let start = match &slf.get().content {
            PagesContent::Protected(view, range) => {
                view.bytes(range.start..range.start).map_err(Raised::from)?.as_ptr()
            }
            PagesContent::Copied(bytes) => bytes.as_ptr(),
        };
        let (start, len) = (start.cast_mut(), slf.get().len().cast_signed());
        // SAFETY: the memory is mapped and readable for as long as the object lives, to which the view refers; nothing
        // is read of it before it is filled, and no thread writes it, because it is given out to be read only.
        let refused =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), len, 1, flags) };
        if refused != 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}

/// Returns an index for which numpy reads nothing yet, and always returns an array.
fn plain<'py>(index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    let py = index.py();
    let given: Vec<_> = match index.cast::<PyTuple>() {
        Ok(several) => several.iter().collect(),
        Err(_) => vec![index.clone()],
    };
    let mut plain = given.into_iter().map(|one| plain_one(&one)).collect::<PyResult<Vec<_>>>()?;
    if !says_ellipsis(index) {
        plain.push(PyEllipsis::get(py).to_owned().into_any());
    }
    PyTuple::new(py, plain)
}

fn plain_one<'py>(one: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = one.py();
    if one.is_none() || one.is(PyEllipsis::get(py)) || one.is_instance_of::<PySlice>() {
        return Ok(one.clone());
    }
    let number = || py.import("operator")?.call_method1("index", (one,));
    let is_truth = one.is_instance_of::<PyBool>() || one.get_type().name()? == "bool";
    let refusal = || {
        PyTypeError::new_err(
            "a view is indexed by numbers, slices, or the name of a field; numpy.asarray(view) by anything",
        )
    };
    if is_truth {
        return Err(refusal());
    }
    number()
        .map_err(|error| if error.is_instance_of::<PyTypeError>(py) { refusal() } else { error })
}

fn says_ellipsis(index: &Bound<'_, PyAny>) -> bool {
    let ellipsis = PyEllipsis::get(index.py());
    match index.cast::<PyTuple>() {
        Ok(several) => several.iter().any(|one| one.is(ellipsis)),
        Err(_) => index.is(ellipsis),
    }
}

/// Returns the addresses from an array's first byte to its last one.
fn bytes_of(array: &Bound<'_, PyAny>) -> PyResult<Range<usize>> {
    let interface = array.getattr("__array_interface__")?;
    let (start, _): (usize, bool) = interface.get_item("data")?.extract()?;
    let shape: Vec<usize> = array.getattr("shape")?.extract()?;
    let strides: Vec<isize> = array.getattr("strides")?.extract()?;
    if shape.contains(&0) {
        return Ok(start..start);
    }
    let (mut first, mut last) = (start, start);
    for (count, stride) in shape.into_iter().zip(strides) {
        let reach = stride.unsigned_abs() * (count - 1);
        if stride < 0 { first -= reach } else { last += reach }
    }
    Ok(first..last + array.getattr("itemsize")?.extract::<usize>()?)
}
