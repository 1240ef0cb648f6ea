//! Tensors of torch, which have no buffer, as arrays that share their memory.

use pyo3::prelude::*;

/// The array that shares a tensor's memory; `None` for what is no tensor. torch is never imported for that: a
/// program that has tensors has done so.
pub(crate) fn as_array<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = object.py();
    let modules = py.import("sys")?.getattr("modules")?;
    let Ok(tensor) = modules.get_item("torch").and_then(|torch| torch.getattr("Tensor")) else {
        return Ok(None);
    };
    if !object.is_instance(&tensor)? {
        return Ok(None);
    }
    py.import("hugekit._tensors")?.call_method1("array_of", (object,)).map(Some)
}

/// Returns the array that shares a tensor's memory; anything else as it is.
pub(crate) fn or_array(given: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    Ok(as_array(&given)?.unwrap_or(given))
}
