//! Arrays that are copied as they are at one moment, by a thread, while the program goes on. For `hugekit.torch`.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use hugekit::snapshot::{KeptMemory, StagedMemory, Staging as StagedGroup};
use hugekit_sys::private_pages::PrivateBytes;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::copied::{self, CopiedBytes, check_available};
use crate::errors::Raised;
use crate::region::{fault_mode, word};
use crate::snapshot::BY_COPIES;
use crate::strided::ArrayMemory;
use crate::taking::{Taken, TakenBytes, taken};

/// Arrays of bytes that are being copied. `copy` ends it.
#[pyclass(frozen, module = "hugekit")]
pub(crate) struct Staging {
    work: Mutex<Option<Work>>,
    arrays: Vec<(String, Py<PyAny>)>,
    copied: Vec<(String, (usize, String))>,
    serving: Option<&'static str>,
}

/// The work that is left.
struct Work {
    groups: Vec<StagedGroup>,
    of_regions: Vec<OfRegion>,
    /// Keeps the arrays where they are.
    _arrays: Vec<ArrayMemory>,
}

/// A part of a snapshot of a region, from an offset on, and the memory for it.
struct OfRegion(Arc<hugekit::Snapshot>, usize, Arc<PrivateBytes>, usize);

/// Memory of one array, which numpy has.
#[pyclass(frozen)]
struct StagedBytes {
    owner: Owner,
    len: usize,
}

enum Owner {
    /// From this offset on.
    Group(StagedMemory, usize),
    Region(Arc<PrivateBytes>),
    Copy(CopiedBytes),
    Nothing,
}

impl StagedBytes {
    fn start(&self) -> *mut u8 {
        match &self.owner {
            Owner::Group(memory, offset) => memory.start().wrapping_add(*offset),
            Owner::Region(bytes) => bytes.start(),
            Owner::Copy(bytes) => bytes.as_ptr().cast_mut(),
            Owner::Nothing => std::ptr::dangling_mut(),
        }
    }
}

/// Memory of earlier stagings, which later ones use again.
#[pyclass(frozen, module = "hugekit")]
pub(crate) struct Kept(KeptMemory);

#[pymethods]
impl Kept {
    #[new]
    fn new() -> Self {
        Self(KeptMemory::default())
    }

    /// Free the memory that no staging uses now.
    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.0.clear());
    }
}

/// Begin to copy arrays as they are now. The arrays of the result have these bytes when its ``copy`` has returned.
#[pyfunction]
#[pyo3(name = "_stage", signature = (arrays, kept, *, fault_mode=None, strict=false))]
pub(crate) fn stage(
    py: Python<'_>,
    arrays: &Bound<'_, PyDict>,
    kept: &Kept,
    fault_mode: Option<&str>,
    strict: bool,
) -> PyResult<Staging> {
    let fault_mode = fault_mode.map(self::fault_mode).transpose()?;
    let names: Vec<String> =
        arrays.keys().iter().map(|name| name.extract()).collect::<PyResult<_>>()?;
    let memories: Vec<ArrayMemory> =
        arrays.values().iter().map(|array| ArrayMemory::of(&array)).collect::<PyResult<_>>()?;
    let all: usize = memories.iter().map(ArrayMemory::len).sum();
    check_available(all, &format!("{all} bytes are staged"))?;
    let builder = hugekit::Snapshot::builder().fault_mode(fault_mode.unwrap_or(copied::BY_DEFAULT));
    let references: Vec<_> = memories.iter().collect();
    let Taken { arrays: taken, made: groups } =
        taken(py, &references, fault_mode, strict, |ranges| {
            // SAFETY: what `taken` says of the ranges is the contract of this function.
            unsafe { builder.clone().stage_many(ranges, &kept.0) }
        })?;
    let serving = groups.iter().find_map(|group| Some(word(group.serving()?.fault_mode)));
    // The number of each part is its place among the arrays that were made.
    let mut parts: Vec<_> = groups
        .iter()
        .flat_map(|group| {
            let part = |(number, bytes): &(usize, std::ops::Range<usize>)| {
                (*number, group.memory(), bytes.start)
            };
            group.parts().iter().map(part).collect::<Vec<_>>()
        })
        .collect();
    parts.sort_by_key(|(number, ..)| *number);
    let mut parts = parts.into_iter();
    let (mut of_regions, mut copied, mut made) = (Vec::new(), Vec::new(), Vec::new());
    let numpy = py.import("numpy")?;
    for ((name, memory), taken) in names.into_iter().zip(&memories).zip(taken) {
        let len = memory.len();
        let owner = match taken {
            TakenBytes::Nothing => Owner::Nothing,
            TakenBytes::Made => parts
                .next()
                .map_or(Owner::Nothing, |(_, memory, start)| Owner::Group(memory, start)),
            TakenBytes::OfRegion(snapshot, offset) => {
                let short = |_| PyMemoryError::new_err(format!("no addresses for {len} bytes"));
                let bytes =
                    Arc::new(PrivateBytes::new(len, hugekit::HUGE_PAGE_BYTES).map_err(short)?);
                // Without them it is slower.
                let _ = bytes.want_huge_pages();
                of_regions.push(OfRegion(snapshot, offset, Arc::clone(&bytes), len));
                Owner::Region(bytes)
            }
            TakenBytes::Copied(bytes, reason) => {
                copied.push((name.clone(), (len, reason)));
                Owner::Copy(bytes)
            }
        };
        let bytes = Py::new(py, StagedBytes { owner, len })?;
        made.push((name, numpy.call_method1("frombuffer", (bytes, "u1"))?.unbind()));
    }
    let serving = serving.or_else(|| (!copied.is_empty()).then_some(BY_COPIES));
    let work = Work { groups, of_regions, _arrays: memories };
    Ok(Staging { work: Mutex::new(Some(work)), arrays: made, copied, serving })
}

impl Work {
    fn copy(self) -> Result<(), hugekit::SnapshotError> {
        for OfRegion(snapshot, offset, bytes, len) in self.of_regions {
            // SAFETY: the memory has as many bytes, and nobody reads them before `copy` has returned.
            let to = unsafe { std::slice::from_raw_parts_mut(bytes.start(), len) };
            snapshot.read_at(offset, to)?;
        }
        self.groups.into_iter().try_for_each(|group| group.copy(None).map(drop))
    }
}

#[pymethods]
impl Staging {
    /// Copy the rest without the GIL, and lift the protection.
    fn copy(&self, py: Python<'_>) -> PyResult<()> {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner).take();
        let work = work.ok_or_else(|| PyValueError::new_err("it was copied already"))?;
        py.detach(|| work.copy()).map_err(|error| Raised::from(error).into())
    }

    /// The arrays, by their names.
    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.arrays.iter().map(|(name, array)| (name, array.clone_ref(py))).into_py_dict(py)
    }

    #[getter]
    fn copied<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.copied.iter().map(|(name, (_, reason))| (name, reason)).into_py_dict(py)
    }

    #[getter]
    fn copied_bytes(&self) -> usize {
        self.copied.iter().map(|(_, (bytes, _))| bytes).sum()
    }

    #[getter]
    fn serving(&self) -> Option<&'static str> {
        self.serving
    }
}

#[pymethods]
impl StagedBytes {
    /// The memory, which may be written.
    ///
    /// # Safety
    /// The interpreter calls it, with a place for the answer.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (start, len) = (slf.get().start(), slf.get().len.cast_signed());
        // SAFETY: the memory is mapped for as long as the object lives, to which the view refers, and has so many bytes.
        let refused =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), len, 0, flags) };
        if refused != 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}
