//! The decision of `hugekit._kinds` about an object: hugekit keeps all of it, or refuses it.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

static NDARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static DECIDED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The memory of an object.
pub(crate) struct Decided<'py> {
    /// An array of numpy's own class, or an object with a buffer and without a dtype.
    pub(crate) memory: Bound<'py, PyAny>,
    /// The name of the elements, if the array has unsigned integers instead of them.
    pub(crate) elements: Option<String>,
}

impl<'py> Decided<'py> {
    /// Decides about an object. An object that has more than its bytes is refused by a `TypeError`
    /// that names the correct code.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        if is_array(object)? {
            return Ok(Self { memory: object.clone(), elements: None });
        }
        let decide = DECIDED.get_or_try_init(py, || {
            Ok::<_, PyErr>(py.import("hugekit._kinds")?.getattr("decided")?.unbind())
        })?;
        let (memory, elements) = decide.bind(py).call1((object,))?.extract()?;
        Ok(Self { memory, elements })
    }
}

/// Returns true if the object is an array of numpy's own class.
pub(crate) fn is_array(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let ndarray = NDARRAY.import(object.py(), "numpy", "ndarray")?;
    Ok(object.get_type().is(ndarray))
}
