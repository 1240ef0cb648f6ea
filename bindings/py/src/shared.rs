//! Memory that forked children inherit, below an array.
#![allow(unsafe_code)]

use std::ffi::c_int;

use hugekit::HUGE_PAGE_BYTES;
use hugekit::pool::{Backing, InheritedMemory};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::Raised;
use crate::numbers::Number;
use crate::progress::threads;

/// The memory of an array of ``zeros(shape, shared=True)``. It belongs to no pool.
#[pyclass(frozen, module = "hugekit")]
pub(crate) struct SharedMemory(InheritedMemory);

impl SharedMemory {
    pub(crate) fn new(py: Python<'_>, bytes: usize, number: Option<Number>) -> PyResult<Self> {
        let builder = hugekit::Pool::builder(bytes).name("shared").threads(threads(number));
        // Less would take a huge page of its own all the same.
        let builder =
            if bytes < HUGE_PAGE_BYTES { builder.backing(Backing::Base) } else { builder };
        let made = py.detach(|| builder.build_inherited());
        made.map(Self).map_err(|error| Raised::from(error).into())
    }
}

#[pymethods]
impl SharedMemory {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        let (len, backing) = (self.0.len(), self.0.backing_report().backing);
        format!(
            "<hugekit.SharedMemory of {len} bytes on {backing} at {:#x}>",
            self.0.as_ptr().addr()
        )
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let memory = &slf.get().0;
        let (start, len) = (memory.as_ptr().cast(), memory.len().cast_signed());
        // SAFETY: the memory is mapped and writable for as long as the object lives, to which the view refers.
        let refused = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 0, flags) };
        if refused != 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}
