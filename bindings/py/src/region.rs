//! Regions: memory of a pool with the buffer protocol.
#![allow(unsafe_code)]

use hugekit::PopulateOptions;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hugekit::SharedRegion;
use hugekit::fault::FaultMode;
use hugekit::region::PinnedRange;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::{Raised, with_fault_signals};
use crate::numbers::Number;
use crate::pool::Pool;
use crate::progress::{Teller, threads};
use crate::snapshot::Snapshot;

/// Zeroed memory of a pool, with the buffer protocol: ``memoryview(region)``,
/// ``numpy.frombuffer(region)``.
///
/// :meth:`Pool.region` makes it. The memory returns to the pool when the region, and all arrays and
/// views of it, are deleted. Children of a fork do not inherit the memory: an access to it ends the
/// child with SIGSEGV.
#[pyclass(frozen, module = "hugekit")]
pub(crate) struct Region(Arc<SharedRegion>);

/// Every region of this process by its address, to find the region of an array. Some entries are
/// gone already. The lock is held only briefly.
static LIVE: Mutex<BTreeMap<usize, Weak<SharedRegion>>> = Mutex::new(BTreeMap::new());

fn live() -> MutexGuard<'static, BTreeMap<usize, Weak<SharedRegion>>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Region {
    pub(crate) fn new(region: SharedRegion) -> Self {
        let region = Arc::new(region);
        let mut live = live();
        live.retain(|_, region| region.strong_count() > 0);
        live.insert(region.as_ptr().addr(), Arc::downgrade(&region));
        drop(live);
        Self(region)
    }

    /// Returns the region that contains these bytes.
    pub(crate) fn around(start: usize, len: usize) -> Option<Self> {
        let found = live().range(..=start).next_back()?.1.upgrade()?;
        let offset = start - found.as_ptr().addr();
        (offset.checked_add(len)? <= found.len()).then(|| Self(found))
    }

    pub(crate) fn shared(&self) -> &SharedRegion {
        &self.0
    }

    /// Returns another handle that keeps the region.
    pub(crate) fn handle(&self) -> Arc<SharedRegion> {
        Arc::clone(&self.0)
    }
}

#[pymethods]
impl Region {
    /// Make a region with the same bytes. Neither region sees later writes to the other.
    ///
    /// The call copies nothing. The first write to a granule, in the region or in the fork, copies
    /// the granule.
    ///
    /// Args:
    ///     granule: the number of bytes that one copy contains, a power of two. By default a page
    ///         of the backing, or 64 KiB on base pages.
    ///     fault_mode: "threaded" or "in place": the mode of fault handling. By default threaded if
    ///         this process may handle faults of system calls, otherwise in place.
    ///
    /// Raises:
    ///     MemoryError: the pool has fewer bytes free than the region has.
    ///     PermissionError: this process may not handle page faults.
    ///     OSError: the memory is on pages of 1 GiB.
    #[pyo3(signature = (*, granule=None, fault_mode=None))]
    pub(crate) fn fork(
        &self,
        py: Python<'_>,
        granule: Option<Number>,
        fault_mode: Option<&str>,
    ) -> PyResult<Self> {
        let fault_mode = fault_mode.map(self::fault_mode).transpose()?;
        let fork = with_fault_signals(py, || {
            let builder = self.0.fork_builder();
            let builder =
                granule.into_iter().fold(builder, |builder, Number(bytes)| builder.granule(bytes));
            fault_mode.into_iter().fold(builder, hugekit::region::ForkBuilder::fault_mode).build()
        })?;
        Ok(Self::new(fork.share()))
    }

    /// Take a snapshot of the whole region while writers continue; see :func:`hugekit.snapshot`.
    #[pyo3(signature = (*, fault_mode=None))]
    fn snapshot(slf: &Bound<'_, Self>, fault_mode: Option<&str>) -> PyResult<Snapshot> {
        crate::snapshot::snapshot(slf.py(), slf.as_any(), fault_mode, None, None, None, None, false)
    }

    /// Discard the bytes of a range. Afterwards the range reads as zeroes. The range must consist
    /// of whole pages of the backing, or end at the region's end.
    fn release(&self, py: Python<'_>, offset: Number, length: Number) -> PyResult<()> {
        let range = self.range(offset, Some(length));
        Ok(py.detach(|| self.0.release(range)).map_err(Raised::from)?)
    }

    /// Make a range writable without a fault. Call this before a system call writes to the range,
    /// if faults are handled in place. By default the whole region.
    #[pyo3(signature = (offset=Number(0), length=None), text_signature = "($self, offset=0, length=None)")]
    fn prepare_write(
        &self,
        py: Python<'_>,
        offset: Number,
        length: Option<Number>,
    ) -> PyResult<()> {
        let range = self.range(offset, length);
        Ok(py.detach(|| self.0.prepare_write(range)).map_err(Raised::from)?)
    }

    /// Make forks and snapshots copy a range at once, until the :class:`Pin` is closed. By default
    /// the whole region.
    ///
    /// Pin memory that a device or a running system call accesses by its pages: the region keeps
    /// these pages.
    ///
    /// Raises:
    ///     ValueError: the range is not in the region.
    ///     MemoryError: bytes that are shared with earlier forks cannot be copied now.
    ///
    /// >>> region = hugekit.Pool(8 << 20, backing="base").region(1 << 20)
    /// >>> with region.pin(0, 4096):
    /// ...     fork = region.fork(granule=4096)
    /// >>> len(region) - region.shared_bytes
    /// 4096
    #[pyo3(signature = (offset=Number(0), length=None), text_signature = "($self, offset=0, length=None)")]
    fn pin(&self, py: Python<'_>, offset: Number, length: Option<Number>) -> PyResult<Pin> {
        let range = self.range(offset, length);
        let pinned = py.detach(|| self.0.pin(range)).map_err(Raised::from)?;
        Ok(Pin(Mutex::new(Some(pinned))))
    }

    /// Map all pages of a range now, so that later accesses cause no faults. By default the whole
    /// region, by one thread. If ``threads`` is None, as many threads as are useful.
    #[pyo3(signature = (offset=Number(0), length=None, *, threads=Some(Number(1)), progress=None),
        text_signature = "($self, offset=0, length=None, *, threads=1, progress=None)")]
    fn populate(
        &self,
        py: Python<'_>,
        offset: Number,
        length: Option<Number>,
        threads: Option<Number>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (range, teller) = (self.range(offset, length), Teller::new(progress)?);
        let tell = |done, total| teller.tell(done, total);
        let threads = self::threads(threads);
        let run = || {
            self.0.populate_with(range, &PopulateOptions::new().threads(threads).progress(&tell))
        };
        teller.result(py.detach(run).map_err(Raised::from))?;
        Ok(())
    }

    /// The address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// The number of mapped bytes: the length rounded up to a multiple of the backing's page.
    #[getter]
    fn mapped_length(&self) -> usize {
        self.0.mapped_len()
    }

    /// The pool of the region.
    #[getter]
    fn pool(&self) -> Pool {
        Pool(self.0.pool().clone())
    }

    /// The mode of fault handling: "threaded" or "in place". None if hugekit handles no faults of
    /// the region.
    #[getter]
    fn serving(&self) -> Option<&'static str> {
        self.0.serving().map(|serving| word(serving.fault_mode))
    }

    /// The number of bytes that the region shares with forks at this moment.
    #[getter]
    fn shared_bytes(&self) -> PyResult<usize> {
        Ok(self.0.shared_bytes().map_err(Raised::from)?)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        format!("<hugekit.Region of {} bytes at {:#x}>", self.0.len(), self.0.as_ptr().addr())
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let region = slf.get().shared();
        let len = region.len().cast_signed();
        // SAFETY: the memory is mapped and writable for as long as the object lives, to which the view refers.
        let refused = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), region.as_ptr().cast(), len, 0, flags)
        };
        if refused != 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}

/// A range of a region that every fork and snapshot copies at once. :meth:`Region.pin` makes it. A
/// pin is a context manager, and keeps the region's memory.
#[pyclass(frozen, module = "hugekit")]
pub(crate) struct Pin(Mutex<Option<PinnedRange>>);

#[pymethods]
impl Pin {
    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyTuple>) {
        self.close();
    }

    /// End the pin: later forks share the range again. A second call does nothing.
    fn close(&self) {
        drop(self.pinned().take());
    }

    /// True if the pin was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.pinned().is_none()
    }
}

impl Pin {
    fn pinned(&self) -> MutexGuard<'_, Option<PinnedRange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Region {
    fn range(&self, offset: Number, length: Option<Number>) -> std::ops::Range<usize> {
        let Number(offset) = offset;
        let end = |Number(length)| offset.saturating_add(length);
        offset..length.map_or(self.0.len().max(offset), end)
    }
}

pub(crate) fn fault_mode(word: &str) -> PyResult<FaultMode> {
    match word {
        "threaded" => Ok(FaultMode::Threaded { threads: 1 }),
        "in place" => Ok(FaultMode::InPlace),
        _ => Err(PyValueError::new_err(format!(
            "fault_mode is {word:?}, and can be \"threaded\" or \"in place\""
        ))),
    }
}

pub(crate) fn word(fault_mode: FaultMode) -> &'static str {
    if fault_mode == FaultMode::InPlace { "in place" } else { "threaded" }
}
