//! Images: sealed memory that many processes map privately.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use hugekit::image::{ImageBuilder, PrivateMapping};
use hugekit_delta::StateId;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyTuple};

use crate::errors::{at_path, of_image};
use crate::numbers::Number;
use crate::progress::{Teller, threads};

/// Sealed memory on huge pages. No process can change it, and many processes map it privately: they
/// share its pages until they write to them. :meth:`load` and :meth:`of_broker` make an image.
///
/// The memory returns to the kernel when no process has the image or a mapping of the image. If
/// memory is short, the kernel does not drop the image, as it does with page cache.
///
/// >>> with tempfile.NamedTemporaryFile() as file:
/// ...     file.truncate(3 << 20)
/// ...     file.write(b"what was saved")
/// ...     file.flush()
/// ...     image = hugekit.Image.load(file.name)
/// 3145728
/// 14
/// >>> one, other = image.map(), image.map()
/// >>> one[:4] = b"this"
/// >>> bytes(one[:8]), bytes(other[:8]), len(one) == image.nbytes
/// (b'this was', b'what was', True)
#[pyclass(frozen, module = "hugekit")]
pub(crate) struct Image(hugekit::image::Image);

/// The memory of a memoryview.
#[pyclass(frozen)]
struct ImageBuffer(PrivateMapping);

#[pymethods]
impl Image {
    /// Load a memory file of a virtual machine, or any other file. Holes and blocks of zeroes need
    /// no memory. Ctrl-C ends the load.
    ///
    /// Args:
    ///     path: a full delta, or a raw memory file as Firecracker, Cloud Hypervisor and QEMU write
    ///         it.
    ///     deltas: paths of the deltas that follow, the oldest first. No merged file is written.
    ///     state: the state of a raw memory file, as ``hugekit delta info`` prints it. A first
    ///         delta that begins with another state is refused. By default the first delta may
    ///         begin with any state of the same length.
    ///     name: the name in /proc/self/maps: ``/memfd:hugekit:NAME``. By default "image".
    ///     threads: the number of threads that read a raw memory file. By default as many as are
    ///         useful. Deltas are applied by one thread.
    ///     progress: called with the bytes that were read of all files; see :func:`clear`.
    ///
    /// Raises:
    ///     OSError: a file cannot be read, or was changed during the load (EBUSY).
    ///     ValueError: a file is empty or not regular, or a delta is damaged or does not follow on
    ///         the previous file.
    ///     MemoryError: memory is short.
    #[staticmethod]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    #[pyo3(signature = (path, *deltas, state=None, name="image", threads=None, progress=None))]
    fn load(
        py: Python<'_>,
        path: PathBuf,
        deltas: &Bound<'_, PyTuple>,
        state: Option<&str>,
        name: &str,
        threads: Option<Number>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut paths = vec![path];
        paths.extend(deltas.extract::<Vec<PathBuf>>()?);
        let state = state.map(str::parse::<StateId>).transpose();
        let state = state.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let teller = Teller::new(progress)?;
        let tell = |done, total| teller.tell_or_look(done, total);
        let load = || -> PyResult<_> {
            let builder = hugekit::image::Image::builder(name).threads(self::threads(threads));
            let builder = builder.progress(&tell).cancel(teller.cancel());
            let builder = state.into_iter().fold(builder, ImageBuilder::state);
            let builder = paths.iter().try_fold(builder, |builder, path| {
                let file = hugekit_image::open(path).map_err(|error| at_path(error, path))?;
                Ok::<_, PyErr>(builder.source(file))
            })?;
            builder.load().map_err(|error| of_image(error, &paths))
        };
        Ok(Self(teller.result(py.detach(load))?))
    }

    /// Get an image that a ``hugekit broker`` holds. The broker must run as root or as this
    /// process's user.
    ///
    /// Args:
    ///     socket: the path of the broker's socket.
    ///     name: the name of the image.
    ///
    /// Raises:
    ///     OSError: no broker listens at the socket, or the broker has no image of this name.
    #[staticmethod]
    fn of_broker(py: Python<'_>, socket: PathBuf, name: &str) -> PyResult<Self> {
        let got = py.detach(|| hugekit::image::Image::of_broker(socket, name));
        got.map(Self).map_err(|error| of_image(error, &[]))
    }

    /// Map the image privately. No other process and no other mapping sees writes to this mapping.
    ///
    /// The first read of each 2 MiB on a huge page costs a page fault. The first write to a base
    /// page copies the page, and the 2 MiB around it are then mapped by base pages. If memory is
    /// short at this moment, the kernel's OOM killer ends a process. Children of a fork inherit the
    /// mapping, and each child has its own bytes.
    ///
    /// Returns:
    ///     The bytes, writable. They are unmapped when the last view of them is deleted.
    ///         ``numpy.frombuffer(view, "u1")`` makes an array of them.
    ///
    /// Raises:
    ///     OSError: the process has no addresses or mappings left.
    fn map<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        let mapped = py.detach(|| self.0.map()).map_err(|error| of_image(error, &[]))?;
        PyMemoryView::from(Bound::new(py, ImageBuffer(mapped))?.as_any())
    }

    /// The length of the image in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.bytes()
    }

    /// Bytes that are populated. The other bytes are zero.
    #[getter]
    fn present_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.0.present()).map_err(|error| of_image(error, &[]))
    }

    /// Bytes that were on huge pages when the image was loaded.
    #[getter]
    fn huge_bytes(&self) -> u64 {
        self.0.huge_bytes()
    }

    /// A path by which other programs of this user can open the image while this object exists,
    /// such as a virtual machine monitor that restores from a memory file.
    #[getter]
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.fileno())
    }

    /// Return the descriptor of the image, opened for reading. The descriptor belongs to this
    /// object. A child that inherits it, by ``pass_fds`` of :mod:`subprocess`, may open
    /// ``/proc/self/fd/N``.
    fn fileno(&self) -> c_int {
        self.0.as_fd().as_raw_fd()
    }

    fn __repr__(&self) -> String {
        let (bytes, huge) = (self.0.bytes(), self.0.huge_bytes());
        format!("<hugekit.Image of {bytes} bytes, {huge} on huge pages>")
    }
}

#[pymethods]
impl ImageBuffer {
    /// # Safety
    /// Called by the interpreter.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let memory = slf.get().0.as_raw();
        let (start, len) = (memory.cast(), memory.len().cast_signed());
        // SAFETY: the memory is mapped and writable for as long as the object lives, to which the view refers.
        let refused = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 0, flags) };
        if refused != 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}
