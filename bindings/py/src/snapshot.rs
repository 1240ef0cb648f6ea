//! Snapshots of arrays. Several arrays are of one moment, because the GIL is held while they are
//! taken.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hugekit::SnapshotError;
use hugekit::fault::FaultMode;
use hugekit::snapshot::{Builder, Granule, SnapshotStats};
use hugekit_sys::new_file::NewFile;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList, PyString, PyTuple};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::buffer::{Buffer, not_contiguous};
use crate::copied::{self, CopiedBytes};
use crate::destination::Destination;
use crate::errors::{Raised, at_path};
use crate::kinds::Decided;
use crate::numbers::Number;
use crate::progress::Teller;
use crate::region::{fault_mode, word};
use crate::strided::ArrayMemory;
use crate::taking::{Taken, TakenBytes, taken};
use crate::view::{Shown, ShownBytes, View};

/// Bytes that are read together if the library does not stream by itself.
const BATCH: usize = 2 << 20;

/// The content of arrays at one moment, while the program continues to write to them.
/// :func:`snapshot` makes it. A snapshot is a context manager; its end lifts the protection of the
/// arrays.
///
/// :meth:`to_numpy`, :meth:`write_to`, :meth:`save_npy` and :meth:`savez` read the whole snapshot.
/// They release the bytes that they have read, so writers need not copy these bytes aside any more.
/// Only one of these methods can be called, and only once.
#[pyclass(frozen, generic, module = "hugekit")]
pub(crate) struct Snapshot {
    form: Form,
    parts: Mutex<Option<Vec<SnapshotArray>>>,
    nbytes: usize,
    serving: Option<&'static str>,
    /// The arrays that were copied at once: their bytes and the reasons.
    copied: Vec<(String, (usize, String))>,
    stats: Mutex<Vec<SnapshotStats>>,
}

/// The form in which the arrays were passed, and in which they are returned.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    One,
    Several,
    Named,
}

impl Form {
    /// Returns words for arrays of this form, for messages.
    fn said(self, parts: &[SnapshotArray]) -> String {
        match self {
            Self::One => "one array".to_owned(),
            Self::Several => format!("a list of {} arrays", parts.len()),
            Self::Named => {
                let names: Vec<_> = parts.iter().map(|part| part.name.as_str()).collect();
                format!("a dict of {}", names.join(", "))
            }
        }
    }

    /// Returns one entry for each array, in the form in which the arrays were passed.
    fn of<'py>(
        self,
        list: Bound<'py, PyList>,
        dict: Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::One => list.get_item(0),
            Self::Several => Ok(list.into_any()),
            Self::Named => Ok(dict.into_any()),
        }
    }
}

/// An array of the snapshot.
struct SnapshotArray {
    name: String,
    memory: SnapshotBytes,
    len: usize,
    /// The elements and their order; `None` for an object that is not an array.
    kind: Option<Kind>,
    /// The buffer that keeps the memory at its address; `None` if the array was copied because it
    /// has gaps.
    buffer: Option<Arc<Buffer>>,
    /// The reason why the array was copied at once; `None` if it was not.
    copied: Option<String>,
}

impl SnapshotArray {
    /// Returns the bytes of the snapshot that a buffer overlaps, or all bytes of the array.
    fn overlap(&self, buffer: Option<&Buffer>) -> Option<(Arc<hugekit::Snapshot>, Range<usize>)> {
        let SnapshotBytes::Protected(snapshot, offset) = &self.memory else { return None };
        let start = self.buffer.as_ref()?.start().addr();
        let bytes = buffer.map_or(start..start + self.len, |buffer| {
            let other = buffer.start().addr();
            start.max(other)..(start + self.len).min(other + buffer.len())
        });
        let bytes = (!bytes.is_empty()).then(|| bytes.start - start..bytes.end - start)?;
        Some((Arc::clone(snapshot), offset + bytes.start..offset + bytes.end))
    }
}

pub(crate) struct Kind {
    pub(crate) dtype: Py<PyAny>,
    pub(crate) shape: Py<PyAny>,
    fortran: bool,
    /// The name of the elements, if the dtype contains integers instead of them.
    elements: Option<String>,
}

impl Kind {
    pub(crate) fn order(&self) -> &'static str {
        if self.fortran { "F" } else { "C" }
    }

    fn clone_ref(&self, py: Python<'_>) -> Self {
        let (dtype, shape) = (self.dtype.clone_ref(py), self.shape.clone_ref(py));
        Self { dtype, shape, fortran: self.fortran, elements: self.elements.clone() }
    }
}

/// The bytes of an array.
enum SnapshotBytes {
    Nothing,
    /// The part from this offset on. Other arrays and views may have parts of the same snapshot.
    Protected(Arc<hugekit::Snapshot>, usize),
    /// A copy that was made at once.
    Copied(Arc<CopiedBytes>),
}

impl SnapshotBytes {
    fn snapshot(&self) -> Option<&hugekit::Snapshot> {
        match self {
            Self::Protected(snapshot, _) => Some(snapshot),
            _ => None,
        }
    }

    /// Returns the snapshot if these `len` bytes are all of it and no other object has a part: it
    /// can then be released while it is read. Otherwise returns the bytes unchanged.
    fn alone(self, len: usize) -> Result<hugekit::Snapshot, Self> {
        match self {
            Self::Protected(snapshot, 0) if len == snapshot.len() => {
                Arc::try_unwrap(snapshot).map_err(|shared| Self::Protected(shared, 0))
            }
            other => Err(other),
        }
    }

    fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<(), SnapshotError> {
        match self {
            Self::Nothing => {}
            Self::Protected(snapshot, start) => snapshot.read_at(start + offset, to)?,
            Self::Copied(bytes) => to.copy_from_slice(&bytes[offset..offset + to.len()]),
        }
        Ok(())
    }

    fn clone_ref(&self) -> Self {
        match self {
            Self::Nothing => Self::Nothing,
            Self::Protected(snapshot, offset) => Self::Protected(Arc::clone(snapshot), *offset),
            Self::Copied(bytes) => Self::Copied(Arc::clone(bytes)),
        }
    }
}

/// Populated memory for the copies that writers make, which one snapshot after another uses.
///
/// Without a reserve, a write to a snapshotted array waits until the kernel has found and cleared
/// memory for the copy. If free memory is short or fragmented, this lasts several times as long as
/// the copy itself. A program that takes many snapshots should make a reserve when it starts.
/// Snapshots that exist at the same time share the reserve. A snapshot may always hold as many
/// bytes as its reserve has, whatever ``max_cow_bytes`` is.
///
/// Args:
///     nbytes: the length in bytes, rounded up to a multiple of 2 MiB. The call populates them,
///         which lasts 0.1 to 0.2 s per GiB. The reserve is large enough if it has as many bytes as
///         writers change until a snapshot is read. The size of the arrays is always enough.
///
/// Raises:
///     MemoryError: less memory is available.
///
/// >>> weights, reserve = numpy.ones((1024, 1024)), hugekit.Reserve(8 << 20)
/// >>> for epoch in range(3):
/// ...     with hugekit.snapshot(weights, reserve=reserve) as moment:
/// ...         weights += 1
/// ...         print(moment.to_numpy().max())
/// 1.0
/// 2.0
/// 3.0
#[pyclass(frozen, module = "hugekit")]
pub(crate) struct Reserve(hugekit::snapshot::Reserve);

#[pymethods]
impl Reserve {
    #[new]
    fn new(py: Python<'_>, nbytes: Number) -> PyResult<Self> {
        let made = py.detach(|| hugekit::snapshot::Reserve::new(nbytes.0));
        made.map(Self).map_err(|error| Raised::from(error).into())
    }

    /// The length of the reserve in bytes.
    #[getter]
    pub(crate) fn nbytes(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        format!("<hugekit.Reserve of {} bytes>", self.0.len())
    }
}

/// The options of each snapshot.
#[derive(Clone, Copy)]
pub(crate) struct SnapshotOptions<'a> {
    pub(crate) reserve: Option<&'a Reserve>,
    pub(crate) fault_mode: Option<FaultMode>,
    pub(crate) granule: Granule,
    pub(crate) max_cow_bytes: Option<usize>,
    pub(crate) populate_copies: usize,
}

impl SnapshotOptions<'_> {
    /// Returns the builder with all options except the populated copies.
    pub(crate) fn builder(&self) -> Builder {
        let builder = hugekit::Snapshot::builder().granule(self.granule);
        let builder = builder.fault_mode(self.fault_mode.unwrap_or(copied::BY_DEFAULT));
        let builder = self.max_cow_bytes.into_iter().fold(builder, Builder::max_cow_bytes);
        self.reserve.iter().fold(builder, |builder, reserve| builder.reserve(&reserve.0))
    }
}

/// Take a snapshot of arrays: later writes to the arrays do not change it.
///
/// The call write-protects the arrays. For 1 GiB this lasts 0.4 to 2 ms on huge pages, and 12 to 27
/// ms on base pages. After that, the first write to each 2 MiB (64 KiB on base pages) copies these
/// bytes aside, unless they were read already.
///
/// For all Python code, all arrays are of one moment. Stores of threads that do not hold the GIL
/// during the call may be in the snapshot or not.
///
/// Args:
///     arrays: an array, or a list, tuple or dict of arrays without Python objects. Any object with
///         a buffer may replace an array, and so may a torch tensor on the CPU, such as those of
///         ``model.state_dict()``. A tensor is returned as an array; dtypes that numpy lacks become
///         unsigned integers. Arrays that are neither in C nor in Fortran order are copied at once
///         and returned in C order.
///     fault_mode: "threaded" or "in place": the mode of fault handling for writers. In place, the
///         writing thread copies, in a handler of SIGBUS. A system call that writes to an array,
///         such as ``file.readinto(array)``, then stops early or fails with EFAULT until that part
///         was read. By default threaded. If this process may not handle faults of system calls,
///         everything is copied at once, the logger ``hugekit`` reports the reason, and
///         ``Snapshot.serving`` is "copied".
///     granule: "huge" (2 MiB) or "small" (64 KiB): the bytes that one write copies. By default
///         "huge" if some of the memory is on huge pages.
///     max_cow_bytes: the highest number of bytes of copies of each array at a time. By default the
///         length of the array, so writers never need more. If less memory is available, on the
///         machine or in the control group, all arrays share the available memory. If the process
///         may map less (``ulimit -v``), the limit is half of that. If writers need more, the
///         writers continue, and the snapshot is lost. The limit is never lower than the length of
///         a reserve. Arrays on a pool always have all of their bytes, reserved in the pool.
///     populate_copies: bytes for copies that are populated now, so that no write waits for this
///         memory. This lasts 0.1 to 0.2 s per GiB. By default 0.
///     reserve: a :class:`Reserve`, whose memory the copies use first.
///     strict: refuse arrays that cannot be protected, instead of copying them at once. These are
///         arrays that are shared, map a file, or may be merged by the kernel (KSM), and arrays
///         that are neither in C nor in Fortran order. Without ``strict``, ``Snapshot.copied``
///         contains their names. By default False.
///
/// Raises:
///     PermissionError: this process may not handle page faults.
///     OSError: with ``strict``, the memory cannot be protected. Or Linux is older than 5.14.
///     MemoryError: the pool of an array has fewer free bytes than the array's region has, or
///         memory is short for the bytes that are copied at once.
///     ValueError: with ``strict``, an array is not contiguous.
///     TypeError: an array holds Python objects, or has more than its bytes, such as a masked
///         array.
///
/// >>> weights = numpy.ones((512, 1024))
/// >>> with hugekit.snapshot(weights) as moment:
/// ...     weights *= 2
/// ...     saved = moment.to_numpy()
/// >>> float(saved.max()), float(weights.max())
/// (1.0, 2.0)
#[pyfunction]
#[pyo3(signature = (arrays, *, fault_mode=None, granule=None, max_cow_bytes=None, populate_copies=None, reserve=None, strict=false))]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub(crate) fn snapshot(
    py: Python<'_>,
    arrays: &Bound<'_, PyAny>,
    fault_mode: Option<&str>,
    granule: Option<&str>,
    max_cow_bytes: Option<Number>,
    populate_copies: Option<Number>,
    reserve: Option<&Reserve>,
    strict: bool,
) -> PyResult<Snapshot> {
    let options = SnapshotOptions {
        reserve,
        fault_mode: fault_mode.map(self::fault_mode).transpose()?,
        granule: granule.map_or(Ok(Granule::Auto), self::granule)?,
        max_cow_bytes: max_cow_bytes.map(|Number(bytes)| bytes),
        populate_copies: populate_copies.map_or(0, |Number(bytes)| bytes),
    };
    let (form, named) = named(arrays)?;
    let buffers = named
        .iter()
        .map(|(name, array)| {
            memory_of(array)
                .and_then(|memory| match memory.0 {
                    ArrayMemory::Strided(_) if strict => Err(not_contiguous()),
                    _ => Ok(memory),
                })
                .map_err(|error| if form == Form::One { error } else { naming(py, name, error) })
        })
        .collect::<PyResult<Vec<_>>>()?;
    let memories: Vec<_> = buffers.iter().map(|(memory, _)| memory).collect();
    let builder = options.builder().populate_copies(options.populate_copies);
    let Taken { arrays, made } = taken(py, &memories, options.fault_mode, strict, |ranges| {
        // SAFETY: what `Ranges` promises is the contract of this function.
        unsafe { builder.clone().take_many(ranges) }
    })?;
    let mut made = made.into_iter();
    let parts: Vec<SnapshotArray> = named
        .into_iter()
        .zip(buffers)
        .zip(arrays)
        .map(|(((name, _), (buffer, kind)), taken)| {
            let (memory, copied) = match taken {
                TakenBytes::Nothing => (SnapshotBytes::Nothing, None),
                TakenBytes::Made => {
                    let snapshot = made.next().map(Arc::new);
                    (
                        snapshot
                            .map_or(SnapshotBytes::Nothing, |one| SnapshotBytes::Protected(one, 0)),
                        None,
                    )
                }
                TakenBytes::OfRegion(snapshot, offset) => {
                    (SnapshotBytes::Protected(snapshot, offset), None)
                }
                TakenBytes::Copied(bytes, reason) => {
                    (SnapshotBytes::Copied(Arc::new(bytes)), Some(reason))
                }
            };
            let len = buffer.len();
            let buffer = match buffer {
                ArrayMemory::Whole(buffer) => Some(Arc::new(buffer)),
                ArrayMemory::Strided(_) => None,
            };
            SnapshotArray { name, memory, len, kind, buffer, copied }
        })
        .collect();
    let copied = parts.iter().filter_map(|part| {
        let reason = part.copied.clone()?;
        Some((part.name.clone(), (part.len, reason)))
    });
    let copied: Vec<_> = copied.collect();
    let serving = |part: &SnapshotArray| {
        part.memory.snapshot()?.serving().map(|serving| word(serving.fault_mode))
    };
    let protected = parts.iter().find_map(serving);
    Ok(Snapshot {
        form,
        nbytes: parts.iter().map(|part| part.len).sum(),
        serving: protected.or_else(|| (!copied.is_empty()).then_some(BY_COPIES)),
        copied,
        parts: Mutex::new(Some(parts)),
        stats: Mutex::default(),
    })
}

/// The word for arrays whose writes are not handled.
pub(crate) const BY_COPIES: &str = "copied";

pub(crate) fn granule(word: &str) -> PyResult<Granule> {
    match word {
        "huge" => Ok(Granule::Huge),
        "small" => Ok(Granule::Small),
        _ => Err(PyValueError::new_err(format!(
            "granule is {word:?}, and can be \"huge\" or \"small\""
        ))),
    }
}

type Named<'py> = Vec<(String, Bound<'py, PyAny>)>;

/// Returns the arrays and their names. For a list, these are numpy's names.
fn named<'py>(arrays: &Bound<'py, PyAny>) -> PyResult<(Form, Named<'py>)> {
    if let Ok(dict) = arrays.cast::<PyDict>() {
        let items = dict.iter().map(|(name, array)| Ok((array_name(&name)?, array)));
        return Ok((Form::Named, items.collect::<PyResult<_>>()?));
    }
    if arrays.is_instance_of::<PyList>() || arrays.is_instance_of::<PyTuple>() {
        let arrays = arrays.try_iter()?.enumerate();
        let items = arrays.map(|(index, array)| Ok((format!("arr_{index}"), array?)));
        return Ok((Form::Several, items.collect::<PyResult<_>>()?));
    }
    Ok((Form::One, vec![("arr_0".to_owned(), arrays.clone())]))
}

fn array_name(name: &Bound<'_, PyAny>) -> PyResult<String> {
    // A string that has no UTF-8 says so itself.
    name.extract().map_err(|error| {
        if name.is_instance_of::<PyString>() {
            return error;
        }
        let said = name.repr().map_or_else(|_| "it".to_owned(), |said| said.to_string());
        PyTypeError::new_err(format!(
            "an array is named {said}, and names are strings: write {{str(name): array}}"
        ))
    })
}

/// Returns an error about one of several arrays, with the name of the array. If the exception's
/// class is not one that this package raises, the name is a note, because such a class may have
/// other arguments.
fn naming(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    let kind = error.get_type(py);
    if kind.is(py.get_type::<PyTypeError>()) || kind.is(py.get_type::<PyValueError>()) {
        return PyErr::from_type(kind, format!("{name}: {}", error.value(py)));
    }
    // Without the note, the error says what happened all the same.
    let _ = error.add_note(py, format!("the array: {name}"));
    error
}

/// Returns the memory of an array, its elements and their order.
fn memory_of(array: &Bound<'_, PyAny>) -> PyResult<(ArrayMemory, Option<Kind>)> {
    let Decided { memory: array, elements } = Decided::of(array)?;
    let memory = ArrayMemory::of(&array)?;
    if !array.hasattr("dtype")? {
        return Ok((memory, None));
    }
    let flags = array.getattr("flags")?;
    let fortran = flags.getattr("f_contiguous")?.is_truthy()?
        && !flags.getattr("c_contiguous")?.is_truthy()?;
    let (dtype, shape) = (array.getattr("dtype")?.unbind(), array.getattr("shape")?.unbind());
    Ok((memory, Some(Kind { dtype, shape, fortran, elements })))
}

#[pymethods]
impl Snapshot {
    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    /// End the snapshot: the protection of the arrays is lifted. A second call does nothing.
    fn close(&self, py: Python<'_>) {
        if let Some(parts) = lock(&self.parts).take() {
            *lock(&self.stats) = stats_of(&parts);
            let memories: Vec<_> =
                parts.into_iter().map(|part| (part.memory, part.buffer)).collect();
            py.detach(|| drop(memories));
        }
    }

    /// Return the content of the arrays as new arrays: one array, a list or a dict, in the same
    /// form as the arrays were passed. Objects that are not arrays are returned as bytes of dtype
    /// uint8. The call ends the snapshot.
    ///
    /// Args:
    ///     out: arrays to read into, instead of new arrays, in the same form and with the same
    ///         numbers of bytes. The call returns them.
    ///     progress: see :func:`clear`.
    ///
    /// Raises:
    ///     SnapshotLost: writers changed more than the snapshot may hold, or the memory was
    ///         unmapped or replaced. The bytes that were read into ``out`` are a prefix of the
    ///         snapshot.
    ///     ValueError: the snapshot has ended. Or ``out`` does not match; the snapshot has not
    ///         ended then.
    #[pyo3(signature = (*, out=None, progress=None))]
    fn to_numpy<'py>(
        &self,
        py: Python<'py>,
        out: Option<&Bound<'py, PyAny>>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let numpy = py.import("numpy")?;
        let reader = Reader::new(progress, self.nbytes)?;
        let given = out.map(|out| self.destinations(out)).transpose()?;
        let (list, dict) = (PyList::empty(py), PyDict::new(py));
        let parts = self.take_parts()?;
        let mut done = 0;
        for (index, part) in parts.into_iter().enumerate() {
            let array = match &given {
                Some(given) => given[index].clone(),
                None => part.empty(py, &numpy)?,
            };
            let (to, len, name) = (Buffer::of(&array, true)?, part.len, part.name.clone());
            py.detach(|| {
                // SAFETY: just made, so that no other thread knows it, or given to be written, so that it is for the
                // program to see to that no other thread uses it; kept in its place by the buffer.
                let bytes = unsafe { std::slice::from_raw_parts_mut(to.start(), to.len()) };
                reader.copy(part.memory, bytes, done)
            })
            .or_else(|error| reader.teller.result(Err::<(), _>(error)))?;
            done += len;
            list.append(&array)?;
            dict.set_item(name, array)?;
        }
        self.form.of(list, dict)
    }

    /// Return a :class:`View` of the content of each array: one view, a list or a dict, in the same
    /// form as the arrays were passed. The call copies no byte.
    ///
    /// The snapshot does not end, and can still be read as a whole. The protection of its arrays is
    /// lifted when its views are deleted, too.
    ///
    /// Raises:
    ///     ValueError: the snapshot has ended.
    ///     MemoryError: the process has no addresses for the view.
    ///
    /// >>> table = numpy.arange(1_000_000)
    /// >>> with hugekit.snapshot(table) as moment:
    /// ...     table[:] = 0
    /// ...     view = moment.view()
    /// ...     int(view[500_000]), view[10:13].tolist()
    /// (500000, [10, 11, 12])
    fn view<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let views: Vec<_> = {
            let parts = lock(&self.parts);
            let of = |part: &SnapshotArray| (part.name.clone(), part.shown(py));
            parts.as_ref().ok_or_else(ended)?.iter().map(of).collect()
        };
        let (list, dict) = (PyList::empty(py), PyDict::new(py));
        for (name, shown) in views {
            let view = View::of(py, shown)?.into_pyobject(py)?;
            list.append(&view)?;
            dict.set_item(name, view)?;
        }
        self.form.of(list, dict)
    }

    /// Write the bytes of all arrays in order to a file, without gaps and without a header. The
    /// call ends the snapshot.
    ///
    /// Args:
    ///     file: an object with a method ``write`` that accepts bytes. If ``write`` returns a
    ///         number, further calls write the rest. A plain file, such as ``open(path, "wb")``
    ///         returns, is written without the GIL.
    ///     progress: see :func:`clear`.
    ///
    /// Raises:
    ///     SnapshotLost: writers changed more than the snapshot may hold, or the memory was
    ///         unmapped or replaced. The bytes that were written are a prefix of the snapshot.
    ///     BlockingIOError: the file does not block, and accepts no more bytes now. The attribute
    ///         ``characters_written`` is the number of bytes of the snapshot that were written.
    ///     OSError: the file's ``write`` accepted no byte.
    ///     ValueError: the snapshot has ended, or ``write`` returned a larger number than the bytes
    ///         that were passed to it.
    ///     TypeError: ``write`` returned no number.
    ///     Exceptions: those of the file's ``write``.
    #[pyo3(signature = (file, *, progress=None))]
    fn write_to(
        &self,
        py: Python<'_>,
        file: &Bound<'_, PyAny>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let reader = Reader::new(progress, self.nbytes)?;
        let mut destination = Destination::of(file)?;
        let mut done = 0;
        for part in self.take_parts()? {
            let len = part.len;
            let written = reader.write(py, part, &mut destination, done);
            destination.result(written)?;
            done += len;
        }
        Ok(())
    }

    /// Save one array to the same file, byte for byte, as ``numpy.save``. The call ends the
    /// snapshot.
    ///
    /// The file gets its name when it is complete, and replaces an existing one.
    ///
    /// Args:
    ///     path: the path of the file. As with numpy, ``.npy`` is appended if it is missing.
    ///     fsync: wait until the file is on its device. By default False.
    ///     progress: see :func:`clear`.
    ///
    /// Raises:
    ///     SnapshotLost: writers changed more than the snapshot may hold, or the memory was
    ///         unmapped or replaced. There is no file then.
    ///     ValueError: the snapshot has ended, or has several arrays.
    ///     OSError: the file cannot be written.
    #[pyo3(signature = (path, *, fsync=false, progress=None))]
    fn save_npy(
        &self,
        py: Python<'_>,
        path: PathBuf,
        fsync: bool,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if self.form != Form::One {
            return Err(PyValueError::new_err(
                "a .npy file has one array, and this snapshot has several: write savez(path)",
            ));
        }
        let reader = Reader::new(progress, self.nbytes)?;
        let path = with_suffix(path, ".npy");
        let refused = |error| at_path(error, &path);
        let mut headers = self.headers(py)?.into_iter();
        let new = py.detach(|| NewFile::beside(&path)).map_err(refused)?;
        for part in self.take_parts()? {
            let (mut file, header) = (new.file(), headers.next().unwrap_or_default());
            py.detach(|| file.write_all(&header)).map_err(refused)?;
            reader.write(py, part, file, 0)?;
        }
        py.detach(|| new.put(fsync)).map_err(refused)
    }

    /// Save all arrays as ``numpy.savez`` does. Arrays of a dict have its names; other arrays are
    /// named ``arr_0``, ``arr_1`` and so on. The call ends the snapshot.
    ///
    /// The file gets its name when it is complete, and replaces an existing one.
    ///
    /// Args:
    ///     path: the path of the file. As with numpy, ``.npz`` is appended if it is missing.
    ///     fsync: wait until the file is on its device. By default False.
    ///     progress: see :func:`clear`.
    ///
    /// Raises:
    ///     SnapshotLost, ValueError, OSError: see :meth:`save_npy`.
    #[pyo3(signature = (path, *, fsync=false, progress=None))]
    fn savez(
        &self,
        py: Python<'_>,
        path: PathBuf,
        fsync: bool,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let reader = Reader::new(progress, self.nbytes)?;
        let path = with_suffix(path, ".npz");
        let refused = |error| at_path(error, &path);
        let mut headers = self.headers(py)?.into_iter();
        let new = py.detach(|| NewFile::beside(&path)).map_err(refused)?;
        let mut archive = ZipWriter::new(new.file());
        // As numpy has it: not compressed, and ready for whatever length.
        let stored = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(true);
        let mut done = 0;
        for part in self.take_parts()? {
            let (len, name) = (part.len, format!("{}.npy", part.name));
            let header = headers.next().unwrap_or_default();
            py.detach(|| {
                archive.start_file(name, stored)?;
                archive.write_all(&header)
            })
            .map_err(refused)?;
            reader.write(py, part, &mut archive, done)?;
            done += len;
        }
        py.detach(|| archive.finish()).map_err(|error| refused(error.into()))?;
        py.detach(|| new.put(fsync)).map_err(refused)
    }

    /// Make arrays writable without a wait, also for system calls such as ``readinto``. The bytes
    /// of the arrays are copied aside first.
    ///
    /// Args:
    ///     array: one of the arrays, or a contiguous view of an array. By default all arrays.
    ///
    /// Raises:
    ///     SnapshotLost: writers changed more than the snapshot may hold, or the memory was
    ///         unmapped or replaced.
    ///     ValueError: the snapshot has ended.
    #[pyo3(signature = (array=None))]
    fn prepare_write(&self, py: Python<'_>, array: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let written = array.map(|array| Buffer::of(array, true)).transpose()?;
        let parts: Vec<_> = {
            let parts = lock(&self.parts);
            let parts = parts.as_ref().ok_or_else(ended)?.iter();
            parts.filter_map(|part| part.overlap(written.as_ref())).collect()
        };
        let prepared = py.detach(|| {
            parts.into_iter().try_for_each(|(snapshot, bytes)| snapshot.prepare_write(bytes))
        });
        Ok(prepared.map_err(Raised::from)?)
    }

    /// The number of bytes of all arrays.
    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// The mode in which faults of writers are handled: "threaded" or "in place". "copied" if no
    /// array could be protected. None if no array is long enough to be protected.
    #[getter]
    fn serving(&self) -> Option<&'static str> {
        self.serving
    }

    /// The number of bytes that were copied at once, because they cannot be protected.
    #[getter]
    fn copied_bytes(&self) -> usize {
        self.copied.iter().map(|(_, (bytes, _))| bytes).sum()
    }

    /// The names of the arrays that were copied at once, with the reasons. Arrays without a name
    /// are ``arr_0``, ``arr_1`` and so on.
    #[getter]
    fn copied<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.copied.iter().map(|(name, (_, reason))| (name, reason)).into_py_dict(py)
    }

    /// True if the snapshot has ended.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.parts).is_none()
    }

    /// Return the costs of the snapshot: ``copied_by_writers`` and ``copied_by_others`` in
    /// granules; ``retained``, ``most_retained``, ``cap`` and ``reserved`` (the part of ``cap``
    /// that was allocated in advance) in bytes; ``longest_fault``, the longest wait of a writer, in
    /// seconds. After the end of the snapshot, these are the costs until the end.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = match &*lock(&self.parts) {
            Some(parts) => stats_of(parts),
            None => lock(&self.stats).clone(),
        };
        let dict = PyDict::new(py);
        let sum = |of: fn(&SnapshotStats) -> u64| all.iter().map(of).sum::<u64>();
        dict.set_item("copied_by_writers", sum(|stats| stats.copied_by_writers))?;
        dict.set_item("copied_by_others", sum(|stats| stats.copied_by_others))?;
        dict.set_item("retained", sum(|stats| stats.retained as u64))?;
        dict.set_item("most_retained", sum(|stats| stats.most_retained as u64))?;
        dict.set_item("cap", sum(|stats| stats.cap as u64))?;
        dict.set_item("reserved", sum(|stats| stats.reserved as u64))?;
        let longest = all.iter().map(|stats| stats.longest_fault).max().unwrap_or_default();
        dict.set_item("longest_fault", longest.as_secs_f64())?;
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { "ended" } else { "open" };
        format!("<hugekit.Snapshot of {} bytes, {state}>", self.nbytes)
    }
}

impl Snapshot {
    /// Returns the arrays to read into, in the order of the parts. Each array is as long as its
    /// part.
    fn destinations<'py>(&self, out: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (form, named) = named(out)?;
        let parts = lock(&self.parts);
        let parts = parts.as_ref().ok_or_else(ended)?;
        let mut given: HashMap<_, _> = named.into_iter().collect();
        let taken = parts.iter().filter_map(|part| given.remove(&part.name));
        let taken: Vec<_> = taken.collect();
        if form != self.form || taken.len() != parts.len() || !given.is_empty() {
            return Err(PyValueError::new_err(format!(
                "out does not match the snapshot: give it as {}",
                self.form.said(parts)
            )));
        }
        for (part, array) in parts.iter().zip(&taken) {
            let given = Decided::of(array)?;
            let bytes = Buffer::of_memory(&given.memory, true)?.len();
            part.check_elements(&given)?;
            if bytes != part.len {
                let (name, len) = (&part.name, part.len);
                return Err(PyValueError::new_err(format!(
                    "{name} of out has {bytes} bytes, the snapshot has {len}"
                )));
            }
        }
        Ok(taken)
    }

    /// Returns the header of a .npy file for each array. An array that such a file cannot contain
    /// is refused before the snapshot ends.
    fn headers(&self, py: Python<'_>) -> PyResult<Vec<Vec<u8>>> {
        let kinds: Vec<_> = {
            let parts = lock(&self.parts);
            let of = |part: &SnapshotArray| {
                (part.name.clone(), part.kind.as_ref().map(|kind| kind.clone_ref(py)))
            };
            parts.as_ref().ok_or_else(ended)?.iter().map(of).collect()
        };
        kinds.iter().map(|(name, kind)| header(py, name, kind.as_ref())).collect()
    }

    /// Returns all parts, for a reader of the whole snapshot.
    fn take_parts(&self) -> PyResult<Vec<SnapshotArray>> {
        let parts = lock(&self.parts).take();
        let parts = parts.ok_or_else(ended)?;
        *lock(&self.stats) = stats_of(&parts);
        Ok(parts)
    }
}

fn ended() -> PyErr {
    PyValueError::new_err(
        "the snapshot has ended: it is read once, by to_numpy, write_to, save_npy or savez, and ends with its with \
         block; take another one, by hugekit.snapshot",
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the costs of each snapshot once, also if it has several parts.
fn stats_of(parts: &[SnapshotArray]) -> Vec<SnapshotStats> {
    let mut snapshots: Vec<&hugekit::Snapshot> = Vec::new();
    for snapshot in parts.iter().filter_map(|part| part.memory.snapshot()) {
        if !snapshots.iter().any(|known| known.shares_cost_with(snapshot)) {
            snapshots.push(snapshot);
        }
    }
    snapshots.into_iter().map(hugekit::Snapshot::stats).collect()
}

impl SnapshotArray {
    /// Checks that the bytes of the array have the same meaning in the array that they are read
    /// into.
    fn check_elements(&self, out: &Decided<'_>) -> PyResult<()> {
        let py = out.memory.py();
        let Some(kind) = &self.kind else { return Ok(()) };
        let Some(dtype) = out.memory.getattr_opt("dtype")? else { return Ok(()) };
        let are_bytes = dtype.eq(py.import("numpy")?.getattr("uint8")?)? && out.elements.is_none();
        let are_others = match (&kind.elements, &out.elements) {
            (Some(own), Some(other)) => own != other,
            (None, Some(_)) => true,
            _ => !dtype.eq(&kind.dtype)?,
        };
        if are_bytes || !are_others {
            return Ok(());
        }
        let own = kind.elements.clone().unwrap_or_else(|| kind.dtype.bind(py).to_string());
        let other = out.elements.clone().unwrap_or_else(|| dtype.to_string());
        Err(PyValueError::new_err(format!(
            "{} of out has the dtype {other}, the snapshot has {own}: give one of {own}, or its bytes, by \
             array.view(numpy.uint8)",
            self.name
        )))
    }

    /// Returns the source of a view of the array.
    fn shown(&self, py: Python<'_>) -> Shown {
        let content = match self.memory.clone_ref() {
            SnapshotBytes::Nothing => None,
            SnapshotBytes::Protected(snapshot, offset) => {
                Some(ShownBytes::Protected(snapshot, offset))
            }
            SnapshotBytes::Copied(bytes) => Some(ShownBytes::Copied(bytes)),
        };
        let kind = self.kind.as_ref().map(|kind| kind.clone_ref(py));
        Shown { content, owner: self.buffer.clone(), kind, len: self.len }
    }

    /// Returns a new array for the bytes.
    fn empty<'py>(
        &self,
        py: Python<'py>,
        numpy: &Bound<'py, PyModule>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(kind) = &self.kind else {
            return numpy.call_method1("empty", (self.len, "u1"));
        };
        let order = [("order", kind.order())].into_py_dict(py)?;
        numpy.call_method("empty", (&kind.shape, &kind.dtype), Some(&order))
    }
}

/// Returns the header of a .npy file, which numpy itself makes.
fn header(py: Python<'_>, name: &str, kind: Option<&Kind>) -> PyResult<Vec<u8>> {
    let Some(Kind { dtype, shape, fortran, .. }) = kind else {
        return Err(PyTypeError::new_err(
            "bytes have no dtype and no shape to save: write write_to(file), or take the snapshot of \
                 numpy.frombuffer(data)",
        ));
    };
    let format = py.import("numpy")?.getattr("lib")?.getattr("format")?;
    let said = PyDict::new(py);
    let kinds = py.import("hugekit._kinds")?;
    said.set_item("descr", kinds.call_method1("described", (dtype, name))?)?;
    said.set_item("fortran_order", fortran)?;
    said.set_item("shape", shape)?;
    let written = |writer: &str| {
        let bytes = py.import("io")?.call_method0("BytesIO")?;
        format.call_method1(writer, (&bytes, &said))?;
        bytes.call_method0("getvalue")?.extract::<Vec<u8>>()
    };
    // The older form is numpy's own choice wherever it suffices, and a ValueError where not.
    written("write_array_header_1_0").or_else(|error| match error {
        error if error.is_instance_of::<PyValueError>(py) => written("write_array_header_2_0"),
        error => Err(error),
    })
}

/// Reads parts, and reports the progress over all of them.
struct Reader {
    teller: Teller,
    total: usize,
}

impl Reader {
    fn new(progress: Option<&Bound<'_, PyAny>>, total: usize) -> PyResult<Self> {
        Ok(Self { teller: Teller::new(progress)?, total })
    }

    /// Copies a part. `before` is the number of bytes of other parts that are done.
    fn copy(&self, memory: SnapshotBytes, to: &mut [u8], before: usize) -> PyResult<()> {
        let tell = |done, _| self.teller.tell(before + done, self.total);
        let copied = match memory.alone(to.len()) {
            Ok(snapshot) => snapshot
                .reader()
                .progress(&tell)
                .cancel(self.teller.cancel())
                .copy_to(to)
                .map(|_| ()),
            Err(memory) => to.chunks_mut(BATCH).enumerate().try_for_each(|(index, chunk)| {
                let (at, len) = (index * BATCH, chunk.len());
                self.go_on(at, len)?;
                memory.read_at(at, chunk)?;
                tell(at + len, 0);
                Ok(())
            }),
        };
        copied.map_err(|error: SnapshotError| Raised::from(error).into())
    }

    /// Writes a part without the GIL.
    fn write(
        &self,
        py: Python<'_>,
        part: SnapshotArray,
        file: impl Write + Send,
        before: usize,
    ) -> PyResult<()> {
        let SnapshotArray { memory, len, .. } = part;
        let written = py.detach(|| self.stream(memory, len, file, before));
        self.teller.result(written.map_err(Raised::from))
    }

    fn stream(
        &self,
        memory: SnapshotBytes,
        len: usize,
        mut writer: impl Write,
        before: usize,
    ) -> Result<(), SnapshotError> {
        let tell = |done, _| self.teller.tell(before + done, self.total);
        match memory.alone(len) {
            Ok(snapshot) => snapshot
                .reader()
                .progress(&tell)
                .cancel(self.teller.cancel())
                .write_to(writer)
                .map(|_| ()),
            Err(memory) => self.stream_range(&memory, len, &mut writer, &tell),
        }
    }

    fn stream_range(
        &self,
        memory: &SnapshotBytes,
        len: usize,
        writer: &mut dyn Write,
        tell: &dyn Fn(usize, usize),
    ) -> Result<(), SnapshotError> {
        let mut buffer = vec![0; BATCH.min(len)];
        for at in (0..len).step_by(BATCH) {
            let bytes = &mut buffer[..BATCH.min(len - at)];
            self.go_on(at, len)?;
            memory.read_at(at, bytes)?;
            let failed = |source| SnapshotError::Write { written: at, source };
            writer.write_all(bytes).map_err(failed)?;
            tell(at + bytes.len(), len);
        }
        Ok(())
    }

    fn go_on(&self, bytes: usize, len: usize) -> Result<(), SnapshotError> {
        match self.teller.cancel().is_cancelled() {
            true => Err(SnapshotError::Cancelled { bytes, len }),
            false => Ok(()),
        }
    }
}

fn with_suffix(path: PathBuf, suffix: &str) -> PathBuf {
    let mut name = path.into_os_string();
    if !name.as_encoded_bytes().ends_with(suffix.as_bytes()) {
        name.push(suffix);
    }
    name.into()
}
