//! Conversion of the library's errors to Python's exceptions, by kind.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use hugekit::image::ImageError;
use hugekit::pool::FaultError;
use hugekit::region::ForkError;
use hugekit::{
    ClearError, CopyError, ErrorKind, PoolError, RegionError, SnapshotError, error_chain,
    system_error,
};
use hugekit_delta::DeltaError;
use hugekit_tend::TendError;
use hugekit_vm::checkpoint::{CheckpointError, ForkError as VmForkError};
use hugekit_vm::oci::OciError;
use hugekit_warm::WarmError;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

pyo3::create_exception!(
    hugekit,
    SnapshotLost,
    PyOSError,
    "The snapshot is lost: writers changed more than it may hold, or its memory was unmapped."
);

/// An error of the library before its conversion to Python.
pub(crate) struct Raised(PyErr);

impl From<Raised> for PyErr {
    fn from(Raised(error): Raised) -> Self {
        error
    }
}

fn raised(kind: ErrorKind, error: &(dyn Error + 'static), remedy: Option<String>) -> Raised {
    raised_with(kind, error_chain(error).to_string(), error, remedy)
}

fn raised_with(
    kind: ErrorKind,
    text: String,
    error: &(dyn Error + 'static),
    remedy: Option<String>,
) -> Raised {
    let os = |number: i32, text: String| PyOSError::new_err((number, text));
    let exception = match kind {
        ErrorKind::Invalid => PyValueError::new_err(text),
        ErrorKind::NoMemory => PyMemoryError::new_err(text),
        // Python makes a PermissionError of it.
        ErrorKind::NotPermitted => os(libc::EPERM, text),
        ErrorKind::Unsupported => os(libc::EOPNOTSUPP, text),
        ErrorKind::Conflict => os(libc::EBUSY, text),
        ErrorKind::Cancelled | ErrorKind::Forked => PyRuntimeError::new_err(text),
        ErrorKind::Lost => SnapshotLost::new_err(text),
        _ => os(system_error(error).unwrap_or(libc::EIO), text),
    };
    if let Some(remedy) = remedy {
        Python::attach(|py| {
            // Without the note, the error says what happened all the same.
            let _ = exception.add_note(py, format!("remedy: {remedy}"));
        });
    }
    Raised(exception)
}

impl From<ClearError> for Raised {
    fn from(error: ClearError) -> Self {
        raised(error.kind(), &error, None)
    }
}

impl From<CopyError> for Raised {
    fn from(error: CopyError) -> Self {
        raised(error.kind(), &error, None)
    }
}

impl From<PoolError> for Raised {
    fn from(error: PoolError) -> Self {
        raised(error.kind(), &error, error.remedy())
    }
}

impl From<RegionError> for Raised {
    fn from(error: RegionError) -> Self {
        raised(error.kind(), &error, None)
    }
}

impl From<ForkError> for Raised {
    fn from(error: ForkError) -> Self {
        raised(error.kind(), &error, error.remedy())
    }
}

impl From<SnapshotError> for Raised {
    fn from(error: SnapshotError) -> Self {
        raised(error.kind(), &error, error.remedy())
    }
}

impl From<TendError> for Raised {
    fn from(error: TendError) -> Self {
        raised(error.kind(), &error, error.remedy().map(str::to_owned))
    }
}

impl From<CheckpointError> for Raised {
    fn from(error: CheckpointError) -> Self {
        raised(error.kind(), &error, error.remedy().map(str::to_owned))
    }
}

impl From<OciError> for Raised {
    fn from(error: OciError) -> Self {
        raised(error.kind(), &error, error.remedy().map(str::to_owned))
    }
}

impl From<VmForkError> for Raised {
    fn from(error: VmForkError) -> Self {
        raised(error.kind(), &error, error.remedy())
    }
}

/// Returns the error of an image, with the path of its file.
pub(crate) fn of_image(error: ImageError, paths: &[PathBuf]) -> PyErr {
    let path = error.source_number().and_then(|nth| paths.get(nth));
    match (error, path) {
        (ImageError::Read { source, .. }, Some(path)) => at_path(source, path),
        (error, Some(path)) => {
            let text = format!("{}: {}", path.display(), error_chain(&error));
            raised_with(error.kind(), text, &error, error.remedy()).into()
        }
        (error, None) => raised(error.kind(), &error, error.remedy()).into(),
    }
}

/// Returns the error of a warm-up, with the path of the file.
pub(crate) fn of_warm(error: WarmError, path: &Path) -> PyErr {
    match error {
        WarmError::Read { source, .. } => at_path(source, path),
        WarmError::Open(source) if source.raw_os_error().is_some() => at_path(source, path),
        error => {
            let text = format!("{}: {}", path.display(), error_chain(&error));
            raised_with(error.kind(), text, &error, error.remedy()).into()
        }
    }
}

/// Returns the error of a file, with its name.
pub(crate) fn at_path(error: io::Error, path: &Path) -> PyErr {
    match error.raw_os_error() {
        Some(number) => {
            let text = Python::attach(|py| -> PyResult<String> {
                py.import("os")?.call_method1("strerror", (number,))?.extract()
            });
            let text = text.unwrap_or_else(|_| error.to_string());
            PyOSError::new_err((number, text, path.as_os_str().to_owned()))
        }
        None if error.kind() == io::ErrorKind::OutOfMemory => {
            PyMemoryError::new_err(format!("{}: {error}", path.display()))
        }
        // Python makes a PermissionError of it.
        None if error.kind() == io::ErrorKind::PermissionDenied => {
            PyOSError::new_err((libc::EACCES, error.to_string(), path.as_os_str().to_owned()))
        }
        None => PyOSError::new_err(format!("{}: {error}", path.display())),
    }
}

/// Returns the error of a delta, with the name of its file.
pub(crate) fn of_delta(error: DeltaError, path: &Path) -> PyErr {
    match error {
        DeltaError::Io(error) => at_path(error, path),
        error => PyValueError::new_err(format!("{}: {error}", path.display())),
    }
}

/// An error that may report that other code has replaced the handler of SIGBUS or SIGSEGV.
pub(crate) trait TakenSignal {
    fn is_taken(&self) -> bool;
}

impl TakenSignal for FaultError {
    fn is_taken(&self) -> bool {
        matches!(self, Self::HandlerReplaced)
    }
}

impl TakenSignal for PoolError {
    fn is_taken(&self) -> bool {
        matches!(self, Self::Fault(error) if error.is_taken())
    }
}

impl TakenSignal for ForkError {
    fn is_taken(&self) -> bool {
        match self {
            Self::Fault(error) => error.is_taken(),
            Self::Pool(error) => error.is_taken(),
            _ => false,
        }
    }
}

impl TakenSignal for SnapshotError {
    fn is_taken(&self) -> bool {
        match self {
            Self::Fault(error) => error.is_taken(),
            Self::Fork(error) => error.is_taken(),
            _ => false,
        }
    }
}

/// Calls a function that needs the handlers of SIGBUS or SIGSEGV. If Python's faulthandler was
/// enabled in the meantime and replaced them, hugekit installs its handlers again and repeats the
/// call. faulthandler keeps its other signals.
pub(crate) fn with_fault_signals<T, E: TakenSignal + Into<Raised>>(
    py: Python<'_>,
    attempt: impl Fn() -> Result<T, E>,
) -> PyResult<T> {
    attempted(py, attempt)?.map_err(|error| error.into().into())
}

/// Like [`with_fault_signals`], but returns the error of the call without conversion.
pub(crate) fn attempted<T, E: TakenSignal>(
    py: Python<'_>,
    attempt: impl Fn() -> Result<T, E>,
) -> PyResult<Result<T, E>> {
    match attempt() {
        Err(error) if error.is_taken() && faulthandler_is_enabled(py)? => {
            hugekit::fault::take_back_signals()?;
            Ok(attempt())
        }
        other => Ok(other),
    }
}

fn faulthandler_is_enabled(py: Python<'_>) -> PyResult<bool> {
    py.import("faulthandler")?.call_method0("is_enabled")?.extract()
}
