//! Tenders: memory of processes kept on huge pages, so that they fork fast.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use hugekit_tend::{PassReport, TendOptions, Tending};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::Raised;

/// The time between two checks for Ctrl-C.
const PAUSE: Duration = Duration::from_millis(20);

/// A tender of a process: it keeps the private memory of the process on huge pages, from outside.
/// The process then forks in about a tenth of the time. The process is this process or another. Its
/// bytes do not change, and nothing needs to be undone.
///
/// A tender that is used as a context manager works in a thread of its own. It makes a pass over
/// the memory at once, and another pass whenever the last forked child has ended. :meth:`collapse`
/// makes one pass now, for example before workers are forked.
///
/// Args:
///     pid: the number of the process. By default this process.
///     density: collapse a 2 MiB range only if at least this share of it is populated, from 0 to 1.
///     growth: the most memory for filling holes, as a share of the private memory of the process.
///         Holes are filled with zeroes.
///     cpu_share: the most CPU time for the tender, as a share of one CPU.
///     bytes_per_second: the most bytes to collapse per second.
///     keep_free: bytes of available memory to leave for other programs.
///
/// Raises:
///     ValueError: there is no such process.
///     PermissionError: the process belongs to another user.
///     OSError: the process has another tender (EBUSY), or the kernel is older than Linux 6.1
///         (EOPNOTSUPP).
///
/// >>> import multiprocessing
/// >>> try:
/// ...     with hugekit.Tender() as tender:
/// ...         with multiprocessing.get_context("fork").Pool(1) as pool:
/// ...             answer = pool.apply(abs, (-2,))
/// ... except OSError:    # not here
/// ...     answer = 2
/// >>> answer
/// 2
#[pyclass(frozen, module = "hugekit")]
pub(crate) struct Tender {
    pid: i32,
    state: Mutex<TenderState>,
}

enum TenderState {
    Idle(hugekit_tend::Tender),
    /// A pass is running, or its thread could not be started.
    Away,
    Running(Tending),
    Ended,
}

impl Tender {
    fn state(&self) -> MutexGuard<'_, TenderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the tender from its place.
    fn idle(&self) -> PyResult<hugekit_tend::Tender> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, TenderState::Away) {
            TenderState::Idle(tender) => Ok(tender),
            other => {
                let said = match other {
                    TenderState::Ended => "the tender has ended",
                    _ => "the tender is at work already",
                };
                *state = other;
                Err(PyRuntimeError::new_err(said))
            }
        }
    }
}

#[pymethods]
impl Tender {
    #[new]
    #[pyo3(
        signature = (
            pid=None,
            *,
            density=TendOptions::default().density,
            growth=TendOptions::default().growth,
            cpu_share=TendOptions::default().cpu_share,
            bytes_per_second=TendOptions::default().bytes_per_second,
            keep_free=TendOptions::default().keep_free
        ),
        text_signature = "(pid=None, *, density=0.5, growth=0.2, cpu_share=1.0, bytes_per_second=1073741824, keep_free=268435456)"
    )]
    fn new(
        pid: Option<i32>,
        density: f64,
        growth: f64,
        cpu_share: f64,
        bytes_per_second: u64,
        keep_free: u64,
    ) -> PyResult<Self> {
        let pid = pid.unwrap_or(std::process::id() as i32);
        let options = TendOptions {
            density,
            growth,
            cpu_share,
            bytes_per_second,
            keep_free,
            ..TendOptions::default()
        };
        let builder = hugekit_tend::Tender::builder().process(pid).options(options);
        let tender = builder.build().map_err(Raised::from)?;
        Ok(Self { pid, state: Mutex::new(TenderState::Idle(tender)) })
    }

    /// The number of the process.
    #[getter]
    fn pid(&self) -> i32 {
        self.pid
    }

    /// Make one pass over the memory now. Ctrl-C ends the pass within a tenth of a second.
    ///
    /// Returns:
    ///     The output of ``hugekit tend --once --json``: the memory ``before`` and ``after`` as
    ///         ``huge`` of ``all`` bytes, the number of 2 MiB ranges that were ``collapsed``, the
    ///         bytes of holes that were ``filled``, and the ``hindrance`` if the pass ended early.
    ///
    /// Raises:
    ///     RuntimeError: the tender works in its own thread, or has ended.
    ///     ValueError: the process has ended.
    fn collapse<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut tender = self.idle()?;
        let passed = py.detach(|| pass(&mut tender));
        *self.state() = TenderState::Idle(tender);
        as_python(py, &passed?)
    }

    /// The work of the tender's own thread, as ``hugekit tend --json`` prints it. None before its
    /// first pass.
    #[getter]
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let said = match &*self.state() {
            TenderState::Running(tending) => tending.said().pop(),
            _ => None,
        };
        said.map(|said| as_python(py, &said)).transpose()
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        let tending = slf.idle()?.spawn()?;
        *slf.state() = TenderState::Running(tending);
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        let ended = std::mem::replace(&mut *self.state(), TenderState::Ended);
        // It ends within a tenth of a second.
        py.detach(|| drop(ended));
    }
}

/// Makes one pass, in another thread, while this thread checks for Ctrl-C.
fn pass(tender: &mut hugekit_tend::Tender) -> PyResult<PassReport> {
    let stop = AtomicBool::new(false);
    let (passed, interrupted) = thread::scope(|scope| {
        let pass = scope.spawn(|| tender.pass(&stop));
        let mut interrupted = Ok(());
        while !pass.is_finished() {
            if interrupted.is_ok() {
                interrupted = look_for_signals();
                stop.store(interrupted.is_err(), Ordering::Relaxed);
            }
            thread::sleep(PAUSE);
        }
        (pass.join().expect("a pass does not panic"), interrupted)
    });
    interrupted?;
    let report = passed.map_err(Raised::from)?.pop();
    Ok(report.expect("one process, one report"))
}

fn look_for_signals() -> PyResult<()> {
    Python::attach(|py| {
        py.check_signals()?;
        Ok(())
    })
}

pub(crate) fn as_python<'py>(
    py: Python<'py>,
    data: &impl Serialize,
) -> PyResult<Bound<'py, PyAny>> {
    let json =
        serde_json::to_string(data).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    py.import("json")?.call_method1("loads", (json,))
}
