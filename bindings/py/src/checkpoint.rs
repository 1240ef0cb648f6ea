//! Checkpoints: states of arrays, each saved as the changes since the previous state.
//!
//! A state consists of a block that `hugekit._checkpoints` fills, and of the bytes of the arrays.
//! Each array keeps its offset within a page, so changed pages are whole blocks of a delta. Large
//! arrays have an epoch, and arrays that lie side by side share one epoch. An array of a pool with
//! a region of its own also has an epoch. Small arrays are copied, because that is faster than
//! protecting them. Arrays that share a region are read completely from a snapshot.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::ptr::{slice_from_raw_parts, with_exposed_provenance};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hugekit::error_chain;
use hugekit::fault::FaultMode;
use hugekit::snapshot::{Builder, Changes, Epoch, Granule};
use hugekit::{SharedRegion, SnapshotError};
use hugekit_delta::{BLOCK, Chain, DeltaError, Saved, SavingChanges};
use hugekit_sys::new_file::NewFile;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::copied::{self, CopiedBytes};
use crate::errors::{Raised, at_path, attempted, of_delta};
use crate::numbers::Number;
use crate::region::{Region, fault_mode, word};
use crate::snapshot::{BY_COPIES, Reserve, SnapshotOptions, granule};
use crate::strided::{ArrayMemory, Strided};
use crate::taking::within;

/// Neighbours with less than this number of bytes are copied immediately: to protect them takes as
/// long as to copy them, and edges take longer.
const COPIED: usize = 1 << 20;

/// Bytes of a pool's array that are read together.
const BATCH: usize = 2 << 20;

static ZEROES: [u8; BLOCK] = [0; BLOCK];

/// The successive states of some arrays. `hugekit._checkpoints` makes one call at a time.
#[pyclass(frozen, module = "hugekit._hugekit")]
pub(crate) struct ArrayChain {
    /// The field is dropped before the buffers, because it protects the memory of the buffers.
    states: Mutex<States>,
    builder: Builder,
    limits: Limits,
    fault_mode: Option<FaultMode>,
    spans: Vec<Span>,
    /// Arrays with gaps between their elements, and their offsets behind the header. Each state
    /// copies them.
    strided: Vec<(usize, Strided)>,
    /// True if memory that cannot be protected is refused instead of copied.
    strict: bool,
    /// The offset of each array behind the header.
    places: Vec<usize>,
    /// Bytes behind the header.
    length: usize,
    _buffers: Vec<Buffer>,
}

struct States {
    chain: Chain,
    watched: Watched,
    /// Spans that cannot be protected, with the reasons. Each state copies them.
    unprotected: Vec<(Span, String)>,
}

/// The first and last offsets of memory that was copied because it cannot be protected, with the
/// reasons.
type Unprotected = Vec<(usize, usize, String)>;

/// The record of changes since the last state.
enum Watched {
    /// There is no state yet.
    New,
    /// Each epoch contains the record of its writes.
    Known(Vec<(Unit, Epoch)>),
    /// There is no record, for this reason. The next state is saved in full.
    Lost(String),
}

/// Memory of one array, or of several that overlap.
#[derive(Clone)]
struct Span {
    memory: Range<usize>,
    /// The offset behind the header.
    at: usize,
    kind: SpanKind,
}

#[derive(Clone, Copy, PartialEq)]
enum SpanKind {
    /// The only unit in its region, which has an epoch.
    Region,
    /// A unit in a region with several units. It is read from a snapshot of the region.
    InRegion,
    Copied,
    /// The number of the group: neighbours have the same number.
    Watched(usize),
}

/// Memory with an epoch of its own: one span, or neighbours.
#[derive(Clone)]
struct Unit {
    memory: Range<usize>,
    at: usize,
    /// The bytes between the spans, as offsets in the unit. They belong to the allocator, and are
    /// saved as zeroes.
    gaps: Vec<Range<usize>>,
    /// The limit of the bytes of copies; `None` for the library's default.
    max_cow_bytes: Option<usize>,
    /// The mode in which writes to the arrays are handled; `None` if nothing is protected.
    serving: Option<&'static str>,
    region: Option<InRegion>,
}

/// The limits of the bytes of copies.
#[derive(Clone, Copy)]
struct Limits {
    /// The limit for each array.
    max_cow_bytes: Option<usize>,
    /// The bytes of the reserve, which are allocated already.
    reserved: usize,
}

/// The place of a unit in a region. Its epoch is the region's.
#[derive(Clone)]
struct InRegion {
    region: Arc<SharedRegion>,
    offset: usize,
}

impl Unit {
    fn of(spans: &[Span]) -> Self {
        let start = spans[0].memory.start;
        let end = spans[spans.len() - 1].memory.end;
        let between = |pair: &[Span]| pair[0].memory.end - start..pair[1].memory.start - start;
        let gaps = spans.windows(2).map(between).filter(|gap| !gap.is_empty()).collect();
        let (memory, at) = (start..end, spans[0].at);
        Self { memory, at, gaps, max_cow_bytes: None, serving: None, region: None }
    }

    /// The limit applies to each span. A reserve that is large enough for all spans is also large
    /// enough for the bytes between them.
    fn limited(mut self, spans: &[Span], limits: Limits) -> Self {
        let lens = || spans.iter().map(|span| span.memory.len());
        let is_all = |bytes: usize| lens().all(|len| len <= bytes);
        self.max_cow_bytes = match limits.max_cow_bytes {
            _ if limits.reserved >= lens().sum() => Some(self.memory.len()),
            Some(bytes) if is_all(bytes) => Some(self.memory.len()),
            Some(bytes) => Some(lens().map(|len| len.min(bytes)).sum()),
            None => None,
        };
        self
    }

    /// Returns the builder of the unit's snapshots.
    fn builder(&self, builder: &Builder) -> Builder {
        self.max_cow_bytes.into_iter().fold(builder.clone(), Builder::max_cow_bytes)
    }

    /// Returns the offset of the unit in the memory of its epoch.
    fn offset(&self) -> usize {
        self.region.as_ref().map_or(0, |region| region.offset)
    }

    /// Returns the bytes of this range that belong to the unit, and their offset in the unit. The
    /// range begins at an offset in the memory of the epoch.
    fn own<'a>(&self, offset: usize, bytes: &'a [u8]) -> Option<(usize, &'a [u8])> {
        let own = self.offset()..self.offset() + self.memory.len();
        let (start, end) = (own.start.max(offset), own.end.min(offset + bytes.len()));
        (start < end).then(|| (start - own.start, &bytes[start - offset..end - offset]))
    }

    fn bytes(&self) -> *const [u8] {
        slice_from_raw_parts(with_exposed_provenance(self.memory.start), self.memory.len())
    }
}

/// The content of the arrays at one moment, to be written to a file.
#[pyclass(frozen, module = "hugekit._hugekit")]
pub(crate) struct Moment(Mutex<Option<Taken>>);

struct Taken {
    header: Vec<u8>,
    /// By ascending offsets.
    parts: Vec<CheckpointPart>,
}

struct CheckpointPart {
    at: usize,
    len: usize,
    content: Content,
}

enum Content {
    Copied(CopiedBytes),
    Changes(Box<(Unit, Changes)>),
    /// The offset in the snapshot at which it begins.
    OfRegion(Arc<hugekit::Snapshot>, usize),
}

#[pymethods]
impl ArrayChain {
    #[new]
    fn new(
        arrays: Vec<Bound<'_, PyAny>>,
        reserve: Option<&Reserve>,
        fault_mode: Option<&str>,
        granule: Option<&str>,
        max_cow_bytes: Option<Number>,
        strict: bool,
    ) -> PyResult<Self> {
        let options = SnapshotOptions {
            reserve,
            fault_mode: fault_mode.map(self::fault_mode).transpose()?,
            granule: granule.map_or(Ok(Granule::Auto), self::granule)?,
            max_cow_bytes: max_cow_bytes.map(|Number(bytes)| bytes),
            populate_copies: 0,
        };
        let memories: Vec<_> = arrays.iter().map(ArrayMemory::of).collect::<PyResult<_>>()?;
        let builder = options.builder();
        let (spans, mut length) =
            spans_of(&builder, memories.iter().filter_map(ArrayMemory::whole));
        let (mut places, mut strided, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
        for memory in memories {
            match memory {
                ArrayMemory::Whole(buffer) => {
                    places.push(place_of(&spans, &buffer));
                    buffers.push(buffer);
                }
                ArrayMemory::Strided(array) => {
                    places.push(length);
                    let end = length + array.len();
                    strided.push((length, array));
                    length = end.next_multiple_of(BLOCK);
                }
            }
        }
        Ok(Self {
            states: Mutex::new(States::new(0)),
            builder: builder.together(length),
            limits: Limits {
                max_cow_bytes: options.max_cow_bytes,
                reserved: reserve.map_or(0, Reserve::nbytes),
            },
            fault_mode: options.fault_mode,
            spans,
            strided,
            strict,
            places,
            length,
            _buffers: buffers,
        })
    }

    /// Returns the offset of each array behind the header.
    #[getter]
    fn places(&self) -> Vec<usize> {
        self.places.clone()
    }

    /// Takes the content of the arrays now, for [`write`](Self::write). Also returns the reason if
    /// all arrays will be written although the caller did not request it, and the arrays that were
    /// copied because they cannot be protected: first and last offset behind the header, and the
    /// reason.
    ///
    /// The call holds the GIL from the first array to the last.
    #[pyo3(signature = (header, full))]
    fn take(
        &self,
        py: Python<'_>,
        header: Vec<u8>,
        full: bool,
    ) -> PyResult<(Moment, Option<String>, Unprotected)> {
        let mut states = self.states()?;
        let length = (header.len() + self.length) as u64;
        if full || states.chain.length() != length {
            *states = States::new(length);
        }
        let (lost, changed) = match std::mem::replace(&mut states.watched, Watched::New) {
            Watched::New => (None, None),
            Watched::Lost(reason) => (Some(reason), None),
            Watched::Known(epochs) => match self.since(epochs) {
                Ok(changed) => (None, Some(changed)),
                Err(error) => (Some(error_chain(&error).to_string()), None),
            },
        };
        let changed = match changed {
            Some(changed) => changed,
            None => {
                states.chain.begin_anew();
                states.unprotected.clear();
                self.first(py, &mut states.unprotected)?
            }
        };
        states.watched = Watched::Lost("the save before was not finished".to_owned());
        let mut parts: Vec<_> = changed.into_iter().map(CheckpointPart::of).collect();
        for span in self.copied().chain(states.unprotected.iter().map(|(span, _)| span)) {
            parts.push(CheckpointPart::copied(span)?);
        }
        for (at, array) in &self.strided {
            let (at, len, content) = (*at, array.len(), Content::Copied(array.copy()?));
            parts.push(CheckpointPart { at, len, content });
        }
        parts.extend(self.of_regions(py)?);
        copied::tell_noted(py);
        parts.sort_by_key(|part| part.at);
        let unprotected = |(span, reason): &(Span, String)| {
            (span.at, span.at + span.memory.len(), reason.clone())
        };
        let unprotected = states.unprotected.iter().map(unprotected).collect();
        Ok((Moment(Mutex::new(Some(Taken { header, parts }))), lost, unprotected))
    }

    /// Write a moment to a file, which gets its name when it is complete. Return true if the file
    /// is full, the number of changed bytes, the number of bytes of the file, and the state.
    #[pyo3(signature = (moment, path, fsync))]
    fn write(
        &self,
        py: Python<'_>,
        moment: &Moment,
        path: PathBuf,
        fsync: bool,
    ) -> PyResult<(bool, u64, u64, String)> {
        let taken = moment.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let taken = taken.ok_or_else(|| PyValueError::new_err("the moment was written before"))?;
        let saved = py.detach(|| {
            let mut states = self.states()?;
            states.write(taken, &path, fsync).map_err(|failed| {
                states.watched = Watched::Lost(format!("the save before failed: {failed}"));
                failed.raised(&path)
            })
        })?;
        Ok((saved.is_full, saved.changed, saved.written, saved.state.to_string()))
    }

    /// Make an array of the checkpoint, or a part of it, writable for a system call.
    fn prepare_write(&self, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = Buffer::of(array, false)?;
        let wanted = buffer.start().addr()..buffer.start().addr() + buffer.len();
        let states = self.states()?;
        let Watched::Known(epochs) = &states.watched else { return Ok(()) };
        for (unit, epoch) in epochs {
            let start = wanted.start.max(unit.memory.start);
            let end = wanted.end.min(unit.memory.end);
            if start < end {
                let before = unit.memory.start - unit.offset();
                let range = start - before..end - before;
                epoch.prepare_write(range).map_err(Raised::from)?;
            }
        }
        Ok(())
    }

    /// Returns the mode in which writes to the arrays between two states are handled; `None` if no
    /// large array has an epoch.
    #[getter]
    fn serving(&self) -> PyResult<Option<&'static str>> {
        let states = self.states()?;
        let Watched::Known(epochs) = &states.watched else { return Ok(None) };
        let protected = epochs.iter().find_map(|(unit, _)| unit.serving);
        Ok(protected.or_else(|| (!states.unprotected.is_empty()).then_some(BY_COPIES)))
    }
}

impl ArrayChain {
    /// Locks the states, without a wait: a thread that writes a moment may need the GIL.
    fn states(&self) -> PyResult<MutexGuard<'_, States>> {
        match self.states.try_lock() {
            Ok(states) => Ok(states),
            Err(std::sync::TryLockError::Poisoned(states)) => Ok(states.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => {
                Err(PyRuntimeError::new_err("a save of these arrays is under way: wait for it"))
            }
        }
    }

    /// Returns the changes since the epochs.
    fn since(&self, epochs: Vec<(Unit, Epoch)>) -> Result<Vec<(Unit, Changes)>, SnapshotError> {
        let since = |(unit, epoch): (Unit, Epoch)| {
            let changes = match &unit.region {
                Some(of) => Changes::since(&*of.region, epoch),
                // SAFETY: the buffers of the epoch's arrays keep the memory where it is. The program keeps to what
                // `first_of` checked and what the documentation asks: no thread blocks SIGBUS there, and no code takes
                // SIGBUS from the library.
                None => unsafe { unit.builder(&self.builder).since(epoch) },
            };
            Ok((unit, changes?))
        };
        epochs.into_iter().map(since).collect()
    }

    /// Takes snapshots of all arrays with new epochs. Arrays that cannot be protected are added to
    /// `unprotected`.
    fn first(
        &self,
        py: Python<'_>,
        unprotected: &mut Vec<(Span, String)>,
    ) -> PyResult<Vec<(Unit, Changes)>> {
        let mut taken = Vec::new();
        for neighbours in self.spans.chunk_by(|one, other| one.kind == other.kind) {
            match neighbours[0].kind {
                SpanKind::Watched(_) => {
                    taken.extend(self.first_of_neighbours(py, neighbours, unprotected)?);
                }
                SpanKind::Region => {
                    for span in neighbours {
                        match self.first_of_region(py, span)? {
                            Ok(one) => taken.push(one),
                            Err(error) => {
                                unprotected.push((span.clone(), self.reason(error)?));
                            }
                        }
                    }
                }
                SpanKind::InRegion | SpanKind::Copied => {}
            }
        }
        Ok(taken)
    }

    fn first_of_region(
        &self,
        py: Python<'_>,
        span: &Span,
    ) -> PyResult<Result<(Unit, Changes), SnapshotError>> {
        let region = region_of(span)?.handle();
        let first = || {
            let fault_mode = self.fault_mode.unwrap_or(copied::BY_DEFAULT);
            Changes::first(region.fork_builder().fault_mode(fault_mode))
        };
        let changes = match attempted(py, first)? {
            Ok(changes) => changes,
            Err(error) => return Ok(Err(error)),
        };
        let serving = changes.serving().map(|serving| word(serving.fault_mode));
        let offset = span.memory.start - region.as_ptr().addr();
        let unit = Unit::of(std::slice::from_ref(span));
        Ok(Ok((Unit { serving, region: Some(InRegion { region, offset }), ..unit }, changes)))
    }

    /// Takes all arrays at once, if that is possible; otherwise groups of touching arrays, and
    /// finally array by array.
    fn first_of_neighbours(
        &self,
        py: Python<'_>,
        spans: &[Span],
        unprotected: &mut Vec<(Span, String)>,
    ) -> PyResult<Vec<(Unit, Changes)>> {
        if let Some(taken) = self.at_once(py, spans) {
            return Ok(vec![taken]);
        }
        let mut taken = Vec::new();
        for touching in spans.chunk_by(|one, other| one.memory.end == other.memory.start) {
            match self.at_once(py, touching) {
                Some(one) => taken.push(one),
                None => {
                    for span in touching {
                        let unit = Unit::of(std::slice::from_ref(span));
                        match self.first_of(py, unit, &self.builder)? {
                            Ok(one) => taken.push(one),
                            Err(error) => unprotected.push((span.clone(), self.reason(error)?)),
                        }
                    }
                }
            }
        }
        Ok(taken)
    }

    /// Takes neighbours with a common epoch. Between neighbours that do not touch lie words of the
    /// allocator, which it may write by system calls. So the faults of such neighbours are handled
    /// by threads; without threads, there is no common epoch.
    fn at_once(&self, py: Python<'_>, spans: &[Span]) -> Option<(Unit, Changes)> {
        if spans.len() == 1 {
            return None;
        }
        let unit = Unit::of(spans).limited(spans, self.limits);
        match self.fault_mode {
            _ if unit.gaps.is_empty() => self.first_of(py, unit, &self.builder),
            Some(FaultMode::InPlace) => return None,
            _ => {
                let threaded = FaultMode::Threaded { threads: 1 };
                self.first_of(py, unit, &self.builder.clone().fault_mode(threaded))
            }
        }
        .ok()?
        .ok()
    }

    /// Returns the reason why memory is copied, or the error if copying is refused.
    fn reason(&self, error: SnapshotError) -> PyResult<String> {
        copied::reason(error, self.fault_mode, self.strict)
    }

    fn first_of(
        &self,
        py: Python<'_>,
        unit: Unit,
        builder: &Builder,
    ) -> PyResult<Result<(Unit, Changes), SnapshotError>> {
        // SAFETY: the buffers keep the memory where it is, and Python's threads have their stacks elsewhere; they do not
        // block SIGBUS, which is checked for all threads there are. That no code takes SIGBUS from us is checked now,
        // and documented for later; EFAULT is an OSError.
        let first = || unsafe { unit.builder(builder).first_epoch(unit.bytes()) };
        Ok(attempted(py, first)?.map(|changes| {
            let serving = changes.serving().map(|serving| word(serving.fault_mode));
            (Unit { serving, ..unit }, changes)
        }))
    }

    /// Adds the spans that are copied because that is faster than protecting them.
    fn copied(&self) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(|span| span.kind == SpanKind::Copied)
    }

    fn of_regions(&self, py: Python<'_>) -> PyResult<Vec<CheckpointPart>> {
        let mut snapshots = HashMap::new();
        let mut parts = Vec::new();
        for span in self.spans.iter().filter(|span| span.kind == SpanKind::InRegion) {
            let (start, len) = (span.memory.start, span.memory.len());
            let region = region_of(span)?;
            parts.push(match within(py, &region, start, self.fault_mode, &mut snapshots)? {
                Ok((snapshot, offset)) => {
                    let content = Content::OfRegion(snapshot, offset);
                    CheckpointPart { at: span.at, len, content }
                }
                // Where it is refused, no other part is from an earlier moment: the GIL is held.
                Err(error) => {
                    self.reason(error)?;
                    CheckpointPart::copied(span)?
                }
            });
        }
        Ok(parts)
    }
}

fn region_of(span: &Span) -> PyResult<Region> {
    let gone = || PyRuntimeError::new_err("the region of an array belongs to the parent process");
    Region::around(span.memory.start, span.memory.len()).ok_or_else(gone)
}

/// Returns the memory of some arrays, and its length in a state. Neighbours keep their distance.
fn spans_of<'a>(
    builder: &Builder,
    buffers: impl Iterator<Item = &'a Buffer>,
) -> (Vec<Span>, usize) {
    let (of_regions, elsewhere): (Vec<_>, Vec<_>) = united(buffers)
        .into_iter()
        .partition(|memory| Region::around(memory.start, memory.len()).is_some());
    let mut groups: Vec<(SpanKind, Vec<Range<usize>>)> = Vec::new();
    for (number, group) in builder.neighbours(&elsewhere).into_iter().enumerate() {
        let group: Vec<_> = group.into_iter().map(|index| elsewhere[index].clone()).collect();
        let len = group[group.len() - 1].end - group[0].start;
        let kind = if len < COPIED { SpanKind::Copied } else { SpanKind::Watched(number) };
        groups.push((kind, group));
    }
    let starts: Vec<_> = of_regions.iter().map(start_of_region).collect();
    for (memory, start) in of_regions.into_iter().zip(&starts) {
        let is_alone = starts.iter().filter(|other| *other == start).count() == 1;
        let kind = if is_alone { SpanKind::Region } else { SpanKind::InRegion };
        groups.push((kind, vec![memory]));
    }
    let (mut spans, mut end) = (Vec::new(), 0_usize);
    for (kind, group) in groups {
        let start = group[0].start;
        let at = end.next_multiple_of(BLOCK) + start % BLOCK;
        for memory in group {
            let at = at + memory.start - start;
            end = at + memory.len();
            spans.push(Span { memory, at, kind });
        }
    }
    (spans, end.next_multiple_of(BLOCK))
}

fn start_of_region(memory: &Range<usize>) -> Option<usize> {
    let region = Region::around(memory.start, memory.len())?;
    Some(region.shared().as_ptr().addr())
}

/// Returns the addresses of arrays, ascending. Overlapping arrays make one range.
fn united<'a>(buffers: impl Iterator<Item = &'a Buffer>) -> Vec<Range<usize>> {
    let addresses = |buffer: &Buffer| {
        let start = buffer.start().expose_provenance();
        start..start + buffer.len()
    };
    let mut ranges: Vec<_> = buffers.map(addresses).filter(|range| !range.is_empty()).collect();
    ranges.sort_by_key(|range| range.start);
    let mut united: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match united.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => united.push(range),
        }
    }
    united
}

/// Returns the address of an array. An array without bytes may return any address.
fn place_of(spans: &[Span], buffer: &Buffer) -> usize {
    let start = buffer.start().addr();
    let span = spans.iter().find(|span| buffer.len() > 0 && span.memory.contains(&start));
    span.map_or(0, |span| span.at + start - span.memory.start)
}

impl CheckpointPart {
    fn copied(span: &Span) -> PyResult<Self> {
        let start: *const u8 = with_exposed_provenance(span.memory.start);
        let len = span.memory.len();
        // SAFETY: the buffers keep the memory there; that of a tensor which was resized has another address, so that it has
        // other spans.
        let bytes = unsafe { CopiedBytes::of(slice_from_raw_parts(start, len)) }?;
        Ok(Self { at: span.at, len, content: Content::Copied(bytes) })
    }

    fn of(changed: (Unit, Changes)) -> Self {
        let Unit { at, memory, .. } = &changed.0;
        Self { at: *at, len: memory.len(), content: Content::Changes(Box::new(changed)) }
    }
}

/// The reason why a moment was not written.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error(transparent)]
    Delta(#[from] DeltaError),
    #[error(transparent)]
    File(#[from] io::Error),
}

impl Failed {
    fn raised(self, path: &Path) -> PyErr {
        match self {
            // What the file refused, as the file's error.
            Self::Snapshot(SnapshotError::Write { source, .. }) | Self::File(source) => {
                at_path(source, path)
            }
            Self::Snapshot(error) => Raised::from(error).into(),
            Self::Delta(error) => of_delta(error, path),
        }
    }
}

impl States {
    fn new(length: u64) -> Self {
        Self { chain: Chain::new(length), watched: Watched::New, unprotected: Vec::new() }
    }

    fn write(&mut self, taken: Taken, path: &Path, fsync: bool) -> Result<Saved, Failed> {
        let new = NewFile::beside(path)?;
        let (saved, epochs) = taken.write(&mut self.chain, new.file())?;
        new.put(fsync)?;
        self.watched = Watched::Known(epochs);
        Ok(saved)
    }
}

impl Taken {
    /// Writes the state as the next state of the chain.
    fn write(self, chain: &mut Chain, to: &File) -> Result<(Saved, Vec<(Unit, Epoch)>), Failed> {
        let (room, length) = (self.header.len(), chain.length() as usize);
        let mut saving = Putting::new(chain.save_changes(to)?);
        saving.put(0, &self.header)?;
        let mut epochs = Vec::new();
        for part in self.parts {
            let (at, end) = (room + part.at, room + part.at + part.len);
            saving.zeroes_until(at)?;
            epochs.extend(part.content.write(&mut saving, at, part.len)?);
            saving.end = end;
        }
        saving.zeroes_until(length)?;
        Ok((saving.state.finish()?, epochs))
    }
}

impl Content {
    fn write<W: Write>(
        self,
        saving: &mut Putting<'_, W>,
        at: usize,
        len: usize,
    ) -> Result<Option<(Unit, Epoch)>, Failed> {
        match self {
            Self::Copied(bytes) => saving.put(at, &bytes)?,
            Self::Changes(changed) => {
                let (unit, changes) = *changed;
                let mut cleared = Vec::new();
                let epoch = changes.deliver(|offset, bytes| {
                    let Some((offset, bytes)) = unit.own(offset, bytes) else { return Ok(()) };
                    saving.put(at + offset, without(&unit.gaps, offset, bytes, &mut cleared))
                })?;
                return Ok(Some((unit, epoch)));
            }
            Self::OfRegion(snapshot, offset) => {
                let mut buffer = vec![0; BATCH.min(len)];
                for done in (0..len).step_by(BATCH) {
                    let bytes = &mut buffer[..BATCH.min(len - done)];
                    snapshot.read_at(offset + done, bytes)?;
                    saving.put(at + done, bytes)?;
                }
            }
        }
        Ok(None)
    }
}

/// Returns the bytes at `offset`, with zeroes in the gaps. The bytes are copied only if there are
/// gaps.
fn without<'a>(
    gaps: &[Range<usize>],
    offset: usize,
    bytes: &'a [u8],
    cleared: &'a mut Vec<u8>,
) -> &'a [u8] {
    let end = offset + bytes.len();
    let first = gaps.partition_point(|gap| gap.end <= offset);
    let here = gaps[first..].iter().take_while(|gap| gap.start < end);
    let mut here = here.peekable();
    if here.peek().is_none() {
        return bytes;
    }
    cleared.clear();
    cleared.extend_from_slice(bytes);
    for gap in here {
        cleared[gap.start.max(offset) - offset..gap.end.min(end) - offset].fill(0);
    }
    cleared
}

/// A writer of a state. It passes on whole blocks, with zeroes where no array has bytes.
struct Putting<'a, W: Write> {
    state: SavingChanges<'a, W>,
    /// Returns the end of the last array, or of the header if there is no array.
    end: usize,
}

impl<'a, W: Write> Putting<'a, W> {
    fn new(state: SavingChanges<'a, W>) -> Self {
        Self { state, end: 0 }
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        self.end = offset + bytes.len();
        self.state.put(offset as u64, bytes)
    }

    /// Writes zeroes between the last array and the next one: the rest of a block, and the beginning of another one.
    fn zeroes_until(&mut self, at: usize) -> io::Result<()> {
        let rest = at.min(self.end.next_multiple_of(BLOCK));
        self.zeroes(self.end..rest)?;
        self.zeroes(rest.max(at - at % BLOCK)..at)
    }

    fn zeroes(&mut self, range: Range<usize>) -> io::Result<()> {
        self.state.put(range.start as u64, &ZEROES[..range.len()])
    }
}
