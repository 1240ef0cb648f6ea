//! Memory of Python objects, by the buffer protocol.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::kinds::Decided;

/// The contiguous memory of an object. It keeps the object alive and the memory at its address
/// until it is dropped.
pub(crate) struct Buffer {
    view: Box<ffi::Py_buffer>,
}

// SAFETY: the fields are written once, and read-only after that; releasing attaches to the interpreter.
unsafe impl Send for Buffer {}
// SAFETY: the fields are only read while it is shared.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Returns the memory of an array or of another object with a buffer, in C or Fortran order, or
    /// of a tensor on the CPU.
    pub(crate) fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        Self::of_memory(&Decided::of(object)?.memory, writable)
    }

    /// Returns the memory of an object that `kinds.rs` has accepted.
    pub(crate) fn of_memory(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        let access = if writable { ffi::PyBUF_WRITABLE } else { 0 };
        let flags = ffi::PyBUF_ANY_CONTIGUOUS | ffi::PyBUF_FORMAT | access;
        match Self::get(object, flags) {
            Ok(buffer) => buffer.checked(),
            // Some of numpy's types, such as dates, have no buffer; as bytes they have.
            Err(error) => match as_bytes(object)? {
                Some(bytes) => Self::get(&bytes, ffi::PyBUF_ANY_CONTIGUOUS | access)
                    .map_err(|error| refusal(object, error, writable)),
                None => Err(refusal(object, error, writable)),
            },
        }
    }

    fn get(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut view = Box::<ffi::Py_buffer>::new_uninit();
        // SAFETY: an object of this interpreter, and a place for the answer.
        let refused = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) };
        if refused != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: filled, because it was not refused.
        Ok(Self { view: unsafe { view.assume_init() } })
    }

    /// Checks that the memory consists of bytes, which can be cleared and copied. References to
    /// objects cannot.
    fn checked(self) -> PyResult<Self> {
        if has_objects(self.format()) {
            return Err(has_references(&String::from_utf8_lossy(self.format())));
        }
        Ok(self)
    }

    fn format(&self) -> &[u8] {
        if self.view.format.is_null() {
            return b"B";
        }
        // SAFETY: not null, a text that lives as long as the view.
        unsafe { CStr::from_ptr(self.view.format) }.to_bytes()
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.view.buf.cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.view.len.unsigned_abs()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A thread that ends after the interpreter cannot give anything back to it.
        Python::try_attach(|_| {
            // SAFETY: filled by `PyObject_GetBuffer`, and released once.
            unsafe { ffi::PyBuffer_Release(&raw mut *self.view) }
        });
    }
}

/// Returns an error that explains the mistake in the program's terms and names the correct code.
/// Errors of other kinds do not change.
fn refusal(object: &Bound<'_, PyAny>, error: PyErr, writable: bool) -> PyErr {
    let py = object.py();
    let kind = object.get_type();
    let is_about_that =
        error.is_instance_of::<PyBufferError>(py) || error.is_instance_of::<PyValueError>(py);
    let is_read_only =
        writable && is_about_that && Buffer::get(object, ffi::PyBUF_ANY_CONTIGUOUS).is_ok();
    if is_read_only {
        let message = format!(
            "{kind} is read-only here, and would be written: give a copy, such as array.copy() or bytearray(data), or \
             set array.flags.writeable",
            kind = name_of(&kind)
        );
        // Not of the very class, which may be made of other arguments.
        return match error.is_instance_of::<PyBufferError>(py) {
            true => PyBufferError::new_err(message),
            false => PyValueError::new_err(message),
        };
    }
    if object.hasattr("__array_interface__").unwrap_or(false) || has_buffer(object) {
        return error;
    }
    PyTypeError::new_err(no_memory(object, &name_of(&kind)))
}

fn has_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: an object of this interpreter.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
}

fn name_of(kind: &Bound<'_, PyType>) -> String {
    kind.name().map_or_else(|_| "object".to_owned(), |name| name.to_string())
}

/// Returns the message that an object cannot be used as memory, with the reason.
fn no_memory(object: &Bound<'_, PyAny>, kind: &str) -> String {
    let has = |method: &str| object.hasattr(method).unwrap_or(false);
    if has("state_dict") {
        return format!("{kind} is no array: write {}.state_dict()", kind.to_lowercase());
    }
    if has("keys") {
        return format!(
            "{kind} is no array: name each array by itself, as in {{\"a.b\": array}}, or give the {kind} to \
             hugekit.Checkpointer, which takes nested ones"
        );
    }
    if has("__next__") {
        return format!("{kind} is no array: write list(...) for the arrays that it yields");
    }
    let instead = if has("__iter__") { "write numpy.array(...), or give" } else { "give" };
    format!(
        "{kind} is no array: {instead} a numpy array, a CPU tensor of torch, or another object with a buffer, such as \
         a bytearray"
    )
}

pub(crate) fn has_references(dtype: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "the array's dtype {dtype} holds references to Python objects, and hugekit works on bytes: write \
         array.astype(dtype) with a dtype of numbers or of text, which is a copy"
    ))
}

pub(crate) fn not_contiguous() -> PyErr {
    PyValueError::new_err(
        "the array is not contiguous, neither in C nor in Fortran order: write numpy.ascontiguousarray(array), which is \
         a copy, or give the array that this is a view of",
    )
}

/// Returns true if a format of the struct module contains an object. Names stand between colons.
fn has_objects(format: &[u8]) -> bool {
    format.split(|&byte| byte == b':').step_by(2).any(|types| types.contains(&b'O'))
}

/// Returns a numpy array without a buffer of its own as bytes, only if that needs no copy.
fn as_bytes<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = object.py();
    let Some(dtype) = object.getattr_opt("dtype")? else { return Ok(None) };
    if dtype.getattr("hasobject")?.is_truthy()? {
        return Err(has_references(&dtype.to_string()));
    }
    if !object.getattr("flags")?.getattr("forc")?.is_truthy()? {
        return Err(not_contiguous());
    }
    let order = [("order", "K")];
    let flat = object.call_method(
        "ravel",
        (),
        Some(&pyo3::types::IntoPyDict::into_py_dict(order, py)?),
    )?;
    Ok(Some(flat.call_method1("view", ("u1",))?))
}
