//! Running microVMs: saved, and forked.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use hugekit_vm::checkpoint::{CheckpointOptions, ChildOptions, ForkOptions, OwnDevices, RunningVm};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::Raised;
use crate::tend::as_python;

/// Save a running VM of stock Firecracker. The VM is paused for some milliseconds, and its memory
/// is copied while it runs. ``hugekit pager`` must have restored the VM and have left it.
///
/// Args:
///     api: the path of the socket of Firecracker's API.
///     output: the folder to make, with the files ``vmstate`` and ``memory``. After the call it is
///         complete or absent. Ctrl-C has an effect only when it is complete.
///     previous: folders of earlier checkpoints of the VM: a full checkpoint, and then each delta
///         since. ``output`` then has the file ``memory.delta`` instead of ``memory``.
///     collapse: put memory on huge pages before the pause, because the pause is longer on base
///         pages. By default True.
///     pid: the number of the process of Firecracker. By default the process that listens at the
///         socket. Any other process is refused, unless the socket belongs to a ``proxy``.
///
/// Returns:
///     The output of ``hugekit checkpoint --json -``, such as ``paused_ms``, ``complete_ms`` and
///         ``copied_bytes``.
///
/// Raises:
///     ValueError: the output exists, or the VM has no userfaultfd.
///     OSError: a pager or another checkpoint uses the VM (EBUSY), Firecracker does not answer, or
///         the output cannot be written. The VM continues to run.
///
/// >>> try:
/// ...     report = hugekit.checkpoint_vm("no.sock", "saved")
/// ... except OSError as error:
/// ...     print(error.strerror)
/// the VMM did not answer to "connect to no.sock": No such file or directory (os error 2)
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
#[pyo3(signature = (api, output, *, previous=Vec::new(), collapse=true, pid=None, proxy=false))]
pub(crate) fn checkpoint_vm(
    py: Python<'_>,
    api: PathBuf,
    output: PathBuf,
    previous: Vec<PathBuf>,
    collapse: bool,
    pid: Option<i32>,
    proxy: bool,
) -> PyResult<Bound<'_, PyAny>> {
    let vm = RunningVm { pid, api, collapse, proxy };
    let options = CheckpointOptions { vm, output, previous };
    let saved = py.detach(|| hugekit_vm::checkpoint::checkpoint(&options));
    as_python(py, &saved.map_err(Raised::from)?)
}

/// A child to start.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Child<'py> {
    command: Vec<OsString>,
    api: PathBuf,
    #[pyo3(default)]
    net: BTreeMap<String, String>,
    #[pyo3(default)]
    vsock: Option<PathBuf>,
    #[pyo3(default)]
    disks: BTreeMap<String, PathBuf>,
    #[pyo3(default)]
    load: Option<Bound<'py, PyAny>>,
}

impl Child<'_> {
    fn options(self, py: Python<'_>) -> PyResult<ChildOptions> {
        let Self { command, api, net, vsock, disks, load } = self;
        let mut options = ChildOptions::new(command, api);
        options.own = OwnDevices { net, vsock, disks };
        let Some(load) = load else { return Ok(options) };
        let json: String = py.import("json")?.call_method1("dumps", (load,))?.extract()?;
        options.load = serde_json::from_str(&json)
            .map_err(|error| PyValueError::new_err(format!("load is not an object: {error}")))?;
        Ok(options)
    }
}

/// Start children from a running VM of stock Firecracker, without a file. The VM is paused for some
/// milliseconds, and the children run from that moment. The VM must meet the conditions of
/// :func:`checkpoint_vm`. Complete children run independently of this process, and can be saved and
/// forked.
///
/// Args:
///     api: the path of the socket of Firecracker's API.
///     children: from 1 to 64 dicts. ``command`` is the command that starts Firecracker, as a list.
///         ``api`` is the path of the child's API, which the command must contain, too. ``net`` is
///         a dict with the tap of each network device. ``vsock`` is the path of the child's socket.
///         ``disks`` is a dict with the new file for each disk that the VM writes; the disk is
///         copied during the pause. The dict ``load`` adds fields to the request that restores the
///         child, such as ``huge_pages``. The standard streams of the command are ``/dev/null``.
///     resume: let the children run. By default True.
///     collapse, pid, proxy: as for :func:`checkpoint_vm`.
///
/// Returns:
///     The output of ``hugekit fork --json -``, and for each child ``program``: the number of the
///         process of its command. It is a child of this process: wait for its end by
///         :func:`os.waitpid`.
///
/// Raises:
///     ValueError: the number of children is wrong, the socket of a child exists, or two VMs would
///         use the same tap, socket or disk.
///     OSError: as for :func:`checkpoint_vm`, or a child cannot be started or restored. All
///         children have ended then, and the VM continues to run.
///
/// >>> try:
/// ...     hugekit.fork_vm("no.sock", [])
/// ... except ValueError as error:
/// ...     print(error)
/// 0 children: from 1 to 64 can be forked at once
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
#[pyo3(signature = (api, children, *, resume=true, collapse=true, pid=None, proxy=false))]
pub(crate) fn fork_vm<'py>(
    py: Python<'py>,
    api: PathBuf,
    children: Vec<Child<'py>>,
    resume: bool,
    collapse: bool,
    pid: Option<i32>,
    proxy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let children = children.into_iter().map(|child| child.options(py));
    let vm = RunningVm { pid, api, collapse, proxy };
    let options = ForkOptions { vm, children: children.collect::<PyResult<_>>()?, resume };
    let forked = py.detach(|| hugekit_vm::checkpoint::fork(&options)).map_err(Raised::from)?;
    let report = as_python(py, &forked.report)?;
    for (program, child) in forked.programs.iter().zip(report.get_item("children")?.try_iter()?) {
        child?.set_item("program", program.id())?;
    }
    Ok(report)
}
