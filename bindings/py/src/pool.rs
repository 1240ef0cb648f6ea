//! Pools, and the process-wide pools for arrays without a pool of their own.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hugekit::PoolError;
use hugekit::pool::{Backing, Clearing};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{Raised, with_fault_signals};
use crate::numbers::Number;
use crate::progress::{Teller, threads};
use crate::region::{Region, fault_mode};

/// A pool of memory that is zeroed when a region is allocated.
///
/// The pool owns memory on huge pages, or on the best pages that the machine has, and allocates
/// zeroed regions of it. Memory of deleted regions is cleared in the background. The pool exists
/// until its last array and its last region are deleted.
///
/// Args:
///     capacity: the size in bytes, rounded up to a multiple of the backing's page.
///     backing: "hugetlb 1G", "hugetlb 2M", "thp" or "base": the first backing to try. By default
///         "hugetlb 2M". If it is not available, the next backing is used, and ``fallbacks``
///         contains the reason.
///     strict: raise an error instead of using another backing. By default False.
///     populate_on_allocation: populate each region when it is allocated, and each fork when it is
///         made. By default all memory is populated now, in parallel, so no region and no fork
///         waits for it. Set this if the capacity is only an upper limit.
///     threads: the number of threads that populate the pool, and that later clear or populate
///         regions. By default as many as are useful.
///     scrub_threads: the number of low-priority threads that clear in the background. By default
///         1.
///     watermarks: ``(low, high)`` in bytes. Clearing in the background starts when fewer than
///         ``low`` bytes are clean, and stops when ``high`` bytes are clean. By default all dirty
///         memory is cleared.
///     clearing: "at allocation" or "at fault": the moment at which dirty memory is cleared. By
///         default "at allocation".
///     name: the name in /proc/self/maps: ``/memfd:hugekit:NAME``. By default "pool".
///     progress: called with the populated bytes; see :func:`clear`.
///     broker: the path of the socket of a ``hugekit broker`` that leases the memory, already
///         populated. The capacity must be the size of a unit of the broker.
///     adopt: the descriptor of a file that another process has made and populated, for example a
///         file from ``hugekit lease``. The call always closes the descriptor. You guarantee that
///         all bytes of the file are zero, and that no other code writes to it as long as the pool
///         or an array of it exists.
///
/// Raises:
///     MemoryError: memory or huge pages are short.
///     OSError: the kernel has no such pages.
///     ValueError: an argument is invalid.
///
/// >>> pool = hugekit.Pool(16 << 20, backing="base")
/// >>> array = pool.zeros((1000, 1000))
/// >>> array[5, 5] = 1
/// >>> pool.stats()["in_use"] * pool.page_size >= array.nbytes
/// True
#[pyclass(frozen, module = "hugekit")]
#[derive(Clone)]
pub(crate) struct Pool(pub(crate) hugekit::Pool);

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(signature = (capacity, *, backing=None, strict=false, populate_on_allocation=false, threads=None, scrub_threads=Number(1),
        watermarks=None, clearing=None, name=None, progress=None, broker=None, adopt=None),
        text_signature = "(capacity, *, backing=None, strict=False, populate_on_allocation=False, threads=None, scrub_threads=1, \
        watermarks=None, clearing=None, name=None, progress=None, broker=None, adopt=None)")]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        capacity: Number,
        backing: Option<&str>,
        strict: bool,
        populate_on_allocation: bool,
        threads: Option<Number>,
        scrub_threads: Number,
        watermarks: Option<(Number, Number)>,
        clearing: Option<&str>,
        name: Option<String>,
        progress: Option<&Bound<'_, PyAny>>,
        broker: Option<std::path::PathBuf>,
        adopt: Option<i32>,
    ) -> PyResult<Self> {
        let adopted = adopt.map(descriptor).transpose()?;
        if broker.is_some() && adopted.is_some() {
            return Err(PyValueError::new_err(
                "broker and adopt exclude each other: the memory of a pool comes from one of them",
            ));
        }
        let (tier, clearing) =
            (backing.map(tier).transpose()?, clearing.map(self::clearing).transpose()?);
        let teller = Teller::new(progress)?;
        let tell = |done, total| teller.tell(done, total);
        let build = || {
            let mut builder = hugekit::Pool::builder(capacity.0)
                .strict(strict)
                .populate_on_allocation(populate_on_allocation)
                .threads(self::threads(threads))
                .scrub_threads(scrub_threads.0)
                .progress(&tell);
            builder = tier.into_iter().fold(builder, hugekit::pool::PoolBuilder::backing);
            builder = clearing.into_iter().fold(builder, hugekit::pool::PoolBuilder::clearing);
            if let Some((Number(low), Number(high))) = watermarks {
                builder = builder.watermarks(low, high);
            }
            if let Some(file) = adopted {
                // SAFETY: all bytes of the file are zero, and nothing else writes to it while the pool lives: the
                // documentation of this class asks the program for both.
                #[allow(unsafe_code)]
                unsafe {
                    builder = builder.adopt(file);
                }
            }
            builder = broker.into_iter().fold(builder, hugekit::pool::PoolBuilder::broker);
            name.into_iter().fold(builder, hugekit::pool::PoolBuilder::name).build()
        };
        let pool = py.detach(build).map_err(Raised::from);
        Ok(Self(teller.result(pool)?))
    }

    /// Allocate contiguous zeroed memory of the pool, with the buffer protocol.
    ///
    /// Args:
    ///     length: the length in bytes.
    ///     threads: the number of threads that clear memory that is still dirty. By default the
    ///         pool's number.
    ///     clearing: "at allocation" or "at fault". By default the pool's setting.
    ///     fault_mode: "threaded" or "in place": the mode of fault handling for memory that is
    ///         cleared at its first access. By default threaded if this process may handle faults
    ///         of system calls, otherwise in place.
    ///     progress: called with the cleared or populated bytes; see :func:`clear`.
    ///
    /// Raises:
    ///     MemoryError: the pool has no contiguous free memory of this length.
    ///     PermissionError: memory is to be cleared at its first access, and this process may not
    ///         handle page faults.
    ///     ValueError: the length is 0.
    ///     RuntimeError: this process is a forked child, and the pool belongs to the parent
    ///         process.
    ///
    /// >>> region = hugekit.Pool(1 << 20, backing="base").region(1000)
    /// >>> bytes(region) == bytes(1000)
    /// True
    #[pyo3(signature = (length, *, threads=None, clearing=None, fault_mode=None, progress=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    pub(crate) fn region(
        &self,
        py: Python<'_>,
        length: Number,
        threads: Option<Number>,
        clearing: Option<&str>,
        fault_mode: Option<&str>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Region> {
        let clearing = clearing.map(self::clearing).transpose()?;
        let fault_mode = fault_mode.map(self::fault_mode).transpose()?;
        let teller = Teller::new(progress)?;
        let tell = |done, total| teller.tell(done, total);
        let build = || {
            let mut builder = self.0.region_builder(length.0).progress(&tell);
            builder = threads.into_iter().fold(builder, |builder, Number(number)| {
                builder.threads(hugekit::Threads::Exactly(number))
            });
            builder = clearing.into_iter().fold(builder, hugekit::region::RegionBuilder::clearing);
            fault_mode.into_iter().fold(builder, hugekit::region::RegionBuilder::fault_mode).build()
        };
        let made = with_fault_signals(py, || py.detach(build));
        Ok(Region::new(teller.result(made)?.share()))
    }

    /// Make a zeroed array on the pool's memory; see :func:`hugekit.zeros`.
    #[pyo3(signature = (shape, dtype=None, *, order="C", threads=None))]
    fn zeros<'py>(
        slf: &Bound<'py, Self>,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        order: &str,
        threads: Option<Number>,
    ) -> PyResult<Bound<'py, PyAny>> {
        crate::array::zeros(slf.py(), shape, dtype, order, Some(slf.get()), threads, false)
    }

    /// Make an array on the pool's memory. The array is zeroed, because a pool allocates only
    /// zeroed memory.
    #[pyo3(signature = (shape, dtype=None, *, order="C", threads=None))]
    fn empty<'py>(
        slf: &Bound<'py, Self>,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        order: &str,
        threads: Option<Number>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::zeros(slf, shape, dtype, order, threads)
    }

    /// Clear all memory that is dirty now. Return the number of cleared bytes.
    fn scrub(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| self.0.scrub()).map_err(Raised::from)?)
    }

    /// Stop clearing in the background until :meth:`resume_scrubbing` is called.
    fn pause_scrubbing(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.0.pause_scrubbing()).map_err(Raised::from)?)
    }

    /// Start clearing in the background again.
    fn resume_scrubbing(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.0.resume_scrubbing()).map_err(Raised::from)?)
    }

    /// Return the state of the pool: the numbers of pages of the backing by state (``holes``,
    /// ``clean``, ``in_use``, ``dirty``), and the bytes of work since the pool was made.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.0.stats().map_err(Raised::from)?;
        let dict = PyDict::new(py);
        for (name, pages) in [
            ("page_size", stats.page_size),
            ("holes", stats.holes),
            ("clean", stats.clean),
            ("in_use", stats.in_use),
            ("dirty", stats.dirty),
            ("fragmented", stats.fragmented),
        ] {
            dict.set_item(name, pages)?;
        }
        for (name, bytes) in [
            ("scrubbed_in_background", stats.scrubbed_in_background),
            ("scrubbed_at_allocation", stats.scrubbed_at_allocation),
            ("scrubbed_on_request", stats.scrubbed_on_request),
            ("scrubbed_at_release", stats.scrubbed_at_release),
            ("scrubbed_at_fault", stats.scrubbed_at_fault),
            ("populated", stats.populated),
            ("allocations", stats.allocations),
            ("waits", stats.waits),
        ] {
            dict.set_item(name, bytes)?;
        }
        Ok(dict)
    }

    /// The backing of the pool: "hugetlb 1G", "hugetlb 2M", "thp" or "base".
    #[getter]
    fn backing(&self) -> &'static str {
        self.0.backing().word()
    }

    /// The backings that were tried before, each with the reason why it was not used, as
    /// ``(backing, reason)``.
    #[getter]
    fn fallbacks(&self) -> Vec<(&'static str, String)> {
        let fallbacks = self.0.backing_report().fallbacks.iter();
        fallbacks.map(|fallback| (fallback.backing.word(), fallback.reason.to_string())).collect()
    }

    /// The capacity of the pool in bytes.
    #[getter]
    fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// The page size of the backing in bytes. Every region consists of whole pages.
    #[getter]
    fn page_size(&self) -> usize {
        self.0.page_size()
    }

    fn __repr__(&self) -> String {
        format!("<hugekit.Pool of {} bytes on {}>", self.0.capacity(), self.0.backing())
    }
}

fn tier(word: &str) -> PyResult<Backing> {
    let found = Backing::ALL.iter().copied().find(|backing| backing.word() == word);
    found.ok_or_else(|| {
        let words: Vec<_> =
            Backing::ALL.iter().map(|backing| format!("{:?}", backing.word())).collect();
        let words = words.join(", ");
        PyValueError::new_err(format!("backing is {word:?}, and can be one of {words}"))
    })
}

fn clearing(word: &str) -> PyResult<Clearing> {
    match word {
        "at allocation" => Ok(Clearing::OnAllocation),
        "at fault" => Ok(Clearing::OnFault),
        _ => Err(PyValueError::new_err(format!(
            "clearing is {word:?}, and can be \"at allocation\" or \"at fault\""
        ))),
    }
}

/// The pools for arrays without a pool of their own. Pools are added when they are needed, and
/// kept, because freed memory is allocated next.
#[derive(Default)]
struct Defaults {
    /// The process that made the pools. A child cannot use its parent's pools.
    process: u32,
    pools: Vec<hugekit::Pool>,
}

static DEFAULTS: Mutex<Defaults> = Mutex::new(Defaults { process: 0, pools: Vec::new() });

/// The smallest size of a process-wide pool in bytes.
const LEAST: usize = 64 << 20;

/// Locks the pools. The lock is held only briefly, and with the GIL. A thread of Python that forks
/// has the GIL, so no child inherits a held lock.
fn defaults() -> MutexGuard<'static, Defaults> {
    let mut defaults = DEFAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    if defaults.process != std::process::id() {
        *defaults = Defaults { process: std::process::id(), pools: Vec::new() };
    }
    defaults
}

/// Returns a region of this many bytes of a process-wide pool.
pub(crate) fn default_region(
    py: Python<'_>,
    bytes: usize,
    threads: Option<Number>,
) -> PyResult<Region> {
    let builder = |pool: &hugekit::Pool| {
        let builder = pool.region_builder(bytes);
        threads
            .into_iter()
            .fold(builder, |builder, Number(number)| {
                builder.threads(hugekit::Threads::Exactly(number))
            })
            .build()
    };
    let pools = defaults().pools.clone();
    let (region, new) = py
        .detach(|| {
            for pool in pools {
                match builder(&pool) {
                    Err(PoolError::NoRoom { .. }) => {}
                    made => return Ok((made?, None)),
                }
            }
            // As much again, so that the array can be forked and snapshotted. Most are not, and leave that memory to others.
            let grown = |capacity| {
                let pool = hugekit::Pool::builder(capacity).name("default");
                pool.populate_on_allocation(true).build()
            };
            let pool = grown(bytes.saturating_mul(2).max(LEAST)).or_else(|_| grown(bytes))?;
            Ok((builder(&pool)?, Some(pool)))
        })
        .map_err(|error: PoolError| Raised::from(error))?;
    defaults().pools.extend(new);
    Ok(Region::new(region.share()))
}

/// Return the process-wide pools, which arrays without a pool of their own use. These pools are
/// made when they are needed, and populated on allocation.
///
/// >>> array = hugekit.zeros(1000)
/// >>> len(hugekit.default_pools()) >= 1
/// True
#[pyfunction]
pub(crate) fn default_pools() -> Vec<Pool> {
    defaults().pools.iter().cloned().map(Pool).collect()
}

/// Return memory of process-wide pools to the kernel, if no array uses it. Return the number of
/// bytes.
///
/// >>> hugekit.trim() >= 0
/// True
#[pyfunction]
pub(crate) fn trim(py: Python<'_>) -> usize {
    let unused = |pool: &mut hugekit::Pool| pool.stats().is_ok_and(|stats| stats.in_use == 0);
    let freed: Vec<hugekit::Pool> = defaults().pools.extract_if(.., unused).collect();
    let bytes = freed.iter().map(hugekit::Pool::capacity).sum();
    py.detach(|| drop(freed));
    bytes
}

/// Converts a descriptor that this process must close.
#[allow(unsafe_code)]
fn descriptor(number: i32) -> PyResult<OwnedFd> {
    // SAFETY: asks for the flags of a descriptor, if it is one.
    if number < 0 || unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(PyValueError::new_err(format!(
            "adopt is {number}, which is no open descriptor: give that of a file of memory, such as \
             file.fileno() or os.memfd_create(...)"
        )));
    }
    // SAFETY: open, and the caller has given it away.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
