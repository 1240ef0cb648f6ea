//! Saved microVMs as OCI images.

use std::path::PathBuf;

use hugekit_vm::oci::{PackOptions, UnpackOptions};
use pyo3::prelude::*;

use crate::errors::Raised;
use crate::tend::as_python;

/// Pack a saved VM as an OCI image layout, which skopeo and oras copy to any registry. The same
/// files make the same layout.
///
/// Args:
///     state: the file with the state of the VM's devices, such as ``vmstate`` of a checkpoint.
///     memory: the file with the VM's memory, such as ``memory`` of a checkpoint.
///     output: the folder to make. It is complete or absent. Ctrl-C has an effect when it is
///         complete.
///     deltas: folders of later checkpoints, the oldest first, each with ``vmstate`` and
///         ``memory.delta``.
///     working_set: the file with the memory that the VM touches first, as ``hugekit pager`` has
///         recorded it. By default the file beside ``memory``, if it is of this memory.
///     tag: the tag of the image in the layout.
///
/// Returns:
///     The output of ``hugekit image pack --json``, such as ``digest``, ``data_bytes`` and
///         ``total_bytes``.
///
/// Raises:
///     ValueError: the output exists, or a delta does not follow on the memory before it.
///     OSError: a file cannot be read, is written meanwhile, or the output cannot be written.
///
/// >>> with tempfile.TemporaryDirectory() as folder:
/// ...     state, memory = folder + "/vmstate", folder + "/memory"
/// ...     with open(state, "wb") as file:
/// ...         file.write(b"the devices")
/// ...     with open(memory, "wb") as file:
/// ...         file.write(bytes(1 << 20) + b"x" * 4096)
/// ...     packed = hugekit.pack_vm(state, memory, folder + "/layout")
/// ...     back = hugekit.unpack_vm(folder + "/layout", folder + "/back")
/// ...     with open(back["memory"][0], "rb") as file:
/// ...         file.read() == bytes(1 << 20) + b"x" * 4096
/// 11
/// 1052672
/// True
/// >>> packed["memory_bytes"], packed["data_bytes"], back["written_bytes"]
/// (1052672, 4096, 4096)
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
#[pyo3(signature = (state, memory, output, *, deltas=Vec::new(), working_set=None, tag=None))]
pub(crate) fn pack_vm(
    py: Python<'_>,
    state: PathBuf,
    memory: PathBuf,
    output: PathBuf,
    deltas: Vec<PathBuf>,
    working_set: Option<PathBuf>,
    tag: Option<String>,
) -> PyResult<Bound<'_, PyAny>> {
    let options = PackOptions::of_files(state, memory, output);
    let options = PackOptions { deltas, working_set, tag, ..options };
    let packed = py.detach(|| hugekit_vm::oci::pack(&options, &|_, _| ()));
    as_python(py, &packed.map_err(Raised::from)?)
}

/// Unpack a VM from an OCI image layout, into the folder of a checkpoint: ``vmstate`` and
/// ``memory``. All digests and hashes are compared. Zeroes of the memory are holes.
///
/// Args:
///     layout: the folder of the layout; of a layout with several images, ``LAYOUT:TAG``.
///     output: the folder to make. It is complete or absent. Ctrl-C has an effect when it is
///         complete.
///     keep_deltas: leave deltas as files, in the folders ``000001``, ``000002`` and so on, instead
///         of applying them.
///
/// Returns:
///     The output of ``hugekit image unpack --json``: the paths ``state`` and ``memory``, a list of
///         the memory file and its deltas, ``memory_bytes`` and ``written_bytes``.
///
/// Raises:
///     ValueError: the output exists, or something in the layout contradicts its digest or hash.
///     OSError: the layout cannot be read, or the output cannot be written.
///     MemoryError: the file system has no room for the memory.
///
/// >>> try:
/// ...     hugekit.unpack_vm("no-layout", "saved")
/// ... except OSError as error:
/// ...     print(error.strerror)
/// no-layout of the layout cannot be read: No such file or directory (os error 2)
#[pyfunction]
#[pyo3(signature = (layout, output, *, keep_deltas=false))]
pub(crate) fn unpack_vm(
    py: Python<'_>,
    layout: PathBuf,
    output: PathBuf,
    keep_deltas: bool,
) -> PyResult<Bound<'_, PyAny>> {
    let options = UnpackOptions { layout, output, keep_deltas, threads: None };
    let unpacked = py.detach(|| hugekit_vm::oci::unpack(&options, &|_, _| ()));
    as_python(py, &unpacked.map_err(Raised::from)?)
}
