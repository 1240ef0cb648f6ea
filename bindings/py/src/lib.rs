//! The Python package `hugekit`: this module, `hugekit._hugekit`, and a few lines of Python that
//! import it.
//!
//! Every function converts its arguments, releases the GIL if the work is long, calls the library
//! once and converts its error to a Python exception. Memory is passed by the buffer protocol. So
//! nothing here is compiled against numpy, and any object with a buffer works. The stable ABI
//! contains this protocol since 3.11.
#![allow(
    clippy::doc_markdown,
    reason = "the documentation is Python's, in the form that it has there"
)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod array;
mod buffer;
mod checkpoint;
mod copied;
mod destination;
mod errors;
mod image;
mod kinds;
mod numbers;
mod oci;
mod pool;
mod progress;
mod region;
mod restoring;
mod shared;
mod snapshot;
mod staging;
mod strided;
mod taking;
mod tend;
mod view;
mod vm;
mod warm;
mod work;

use pyo3::prelude::*;

/// The GIL makes a snapshot of several arrays one moment. A free-threaded interpreter enables the
/// GIL for this module, and reports this.
#[pymodule(gil_used = true)]
mod _hugekit {
    use hugekit_doctor::examine;
    use pyo3::exceptions::PyOSError;
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::array::{empty, fork, region_of, zeros};
    #[pymodule_export]
    use crate::checkpoint::{ArrayChain, Moment};
    #[pymodule_export]
    use crate::errors::SnapshotLost;
    #[pymodule_export]
    use crate::image::Image;
    #[pymodule_export]
    use crate::oci::{pack_vm, unpack_vm};
    #[pymodule_export]
    use crate::pool::{Pool, default_pools, trim};
    #[pymodule_export]
    use crate::region::{Pin, Region};
    #[pymodule_export]
    use crate::restoring::StoredState;
    #[pymodule_export]
    use crate::shared::SharedMemory;
    #[pymodule_export]
    use crate::snapshot::{Reserve, Snapshot, snapshot};
    #[pymodule_export]
    use crate::staging::{Kept, Staging, stage};
    #[pymodule_export]
    use crate::tend::Tender;
    #[pymodule_export]
    use crate::view::View;
    #[pymodule_export]
    use crate::vm::{checkpoint_vm, fork_vm};
    #[pymodule_export]
    use crate::warm::warm;
    #[pymodule_export]
    use crate::work::{clear, copy, set_learning};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// Return the properties of this machine for huge-page memory, with a remedy for each limit.
    ///
    /// Returns:
    ///     The output of ``hugekit doctor --json``: ``machine``, and ``lines`` with ``topic``,
    ///         ``name``, ``value``, ``verdict`` ("ok", "note", "limited", "missing", "unknown") and
    ///         ``remedy``.
    ///
    /// Raises:
    ///     OSError: neither /proc nor /sys can be read.
    ///
    /// >>> report = hugekit.doctor()
    /// >>> report["machine"]["memory_bytes"] > 0
    /// True
    /// >>> sorted(report["lines"][0])
    /// ['name', 'remedy', 'topic', 'value', 'verdict']
    #[pyfunction]
    fn doctor(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let unreadable = || PyOSError::new_err("neither /proc nor /sys can be read");
        let report =
            py.detach(|| examine(&hugekit_machine::Root::default())).ok_or_else(unreadable)?;
        let json = serde_json::to_string(&report)
            .map_err(|error| PyOSError::new_err(error.to_string()))?;
        py.import("json")?.call_method1("loads", (json,))
    }
}
