//! Conversion of Python's unbounded integers to the library's. An integer that does not fit is a
//! `ValueError` with the number.

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;

/// A number of bytes, items or threads, an offset or an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number(pub(crate) usize);

impl<'py> FromPyObject<'_, 'py> for Number {
    type Error = PyErr;

    /// A value that is not an integer keeps its `TypeError`.
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        object.extract::<usize>().map(Self).or_else(|error| {
            if !error.is_instance_of::<PyOverflowError>(object.py()) {
                return Err(error);
            }
            let (number, most) = (shown(object)?, usize::MAX);
            Err(PyValueError::new_err(if object.lt(0)? {
                format!("{number} is below zero")
            } else {
                format!("{number} is more than {most}, beyond which there are no addresses")
            }))
        })
    }
}

/// Returns the number as text, or its number of digits: Python refuses to print thousands of
/// digits.
fn shown(object: Borrowed<'_, '_, PyAny>) -> PyResult<String> {
    let bits: u64 = object.call_method0("__index__")?.call_method0("bit_length")?.extract()?;
    Ok(if bits <= 256 { object.str()?.to_string() } else { format!("a number of {bits} bits") })
}
