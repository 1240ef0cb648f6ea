//! States of arrays, read from files and copied into arrays. All files are checked before the first
//! byte of an array changes.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::BufReader;
use std::ops::Range;
use std::path::{Path, PathBuf};

use hugekit_delta::{Change, DeltaError, Header, Reader, StateId};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::Buffer;
use crate::errors::{at_path, of_delta};

/// The first bytes of a state of arrays, before the length of the next block.
const MAGIC: [u8; 8] = *b"HKARRAYS";
const OPENING: usize = MAGIC.len() + size_of::<u64>();

/// The longest accepted header, unless twice the length of its file is longer.
const ROOM: u64 = 64 << 10;

/// Bytes of a file that are read together.
const BUFFERED: usize = 1 << 20;

/// The state that results from a full file and the files that follow it. For
/// ``hugekit._checkpoints``.
#[pyclass(frozen, module = "hugekit._hugekit")]
pub(crate) struct StoredState {
    /// The files, each with its resulting state. The state shows that the file is the same when it
    /// is read again.
    files: Vec<(PathBuf, StateId)>,
    header: Vec<u8>,
    length: u64,
    state: StateId,
}

#[pymethods]
impl StoredState {
    /// Reads and checks all files.
    #[new]
    fn new(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Self> {
        py.detach(|| Self::read(paths))
    }

    /// The block before the arrays.
    #[getter]
    fn header<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.header)
    }

    /// Bytes behind the header.
    #[getter]
    fn length(&self) -> u64 {
        self.length - self.header.len() as u64
    }

    /// The ID of the state, as ``hugekit delta info`` prints it.
    #[getter]
    fn state(&self) -> String {
        self.state.to_string()
    }

    /// Copies the bytes of the state into arrays, each from its offset behind the header.
    fn apply(&self, py: Python<'_>, arrays: Vec<(u64, Bound<'_, PyAny>)>) -> PyResult<()> {
        let room = self.header.len() as u64;
        let mut places = Vec::new();
        for (offset, array) in arrays {
            let buffer = Buffer::of(&array, true)?;
            let start = room + offset;
            let end = start.checked_add(buffer.len() as u64).filter(|&end| end <= self.length);
            let beyond = || PyValueError::new_err("an array lies beyond the end of the state");
            places.push(ArrayPlace { state: start..end.ok_or_else(beyond)?, buffer });
        }
        let mut places = ArrayPlaces::new(places);
        py.detach(|| {
            places.clear();
            self.files.iter().try_for_each(|(path, state)| places.apply(path, *state))
        })
    }
}

impl StoredState {
    fn read(paths: Vec<PathBuf>) -> PyResult<Self> {
        let mut found: Option<Found> = None;
        let mut files = Vec::new();
        for path in paths {
            let next = Found::follow(found, &path)?;
            files.push((path, next.state));
            found = Some(next);
        }
        let nothing = || PyValueError::new_err("no files to restore from: name at least one");
        let Found { header, length, state } = found.ok_or_else(nothing)?;
        Ok(Self { files, header, length, state })
    }
}

/// The state after the files that were read so far.
struct Found {
    header: Vec<u8>,
    length: u64,
    state: StateId,
}

impl Found {
    /// Reads a file to its end, and keeps its part of the header.
    fn follow(before: Option<Self>, path: &Path) -> PyResult<Self> {
        let refused = |error| of_delta(error, path);
        let mut reader = Reader::new(open(path)?).map_err(refused)?;
        let opening = reader.header();
        check_follows(&opening, before.as_ref(), path)?;
        let mut header = before.map(|before| before.header);
        while let Some(change) = reader.next().map_err(refused)? {
            let header = match &mut header {
                Some(header) => header,
                None => header.insert(empty_header(&change, opening.length, path)?),
            };
            put(header, &change);
        }
        let state = reader.finish().map_err(refused)?;
        let header = header.ok_or_else(|| other_memory(path))?;
        Ok(Self { header, length: opening.length, state })
    }
}

/// Opens a file. Neither the open nor a read waits for another program.
fn open(path: &Path) -> PyResult<BufReader<File>> {
    let refused = |error| at_path(error, path);
    if !fs::metadata(path).map_err(refused)?.is_file() {
        return Err(PyValueError::new_err(format!("{}: it is not a file", path.display())));
    }
    Ok(BufReader::with_capacity(BUFFERED, File::open(path).map_err(refused)?))
}

/// Checks the place of a file in the order of files: a full file comes first, and each other file
/// follows the state that it begins with.
fn check_follows(opening: &Header, before: Option<&Found>, path: &Path) -> PyResult<()> {
    let of_delta = |error| Err(of_delta(error, path));
    match (opening.base, before) {
        (None, None) => Ok(()),
        (None, Some(_)) => Err(PyValueError::new_err(format!(
            "{}: a full file must be the first: leave out those before it, or it and those after",
            path.display()
        ))),
        (Some(expected), before) if before.map(|before| before.state) != Some(expected) => {
            let found = before.map(|before| before.state);
            of_delta(DeltaError::OtherBase { expected, found })
        }
        (Some(_), Some(before)) if opening.length != before.length => {
            of_delta(DeltaError::OtherLength { delta: opening.length, state: before.length })
        }
        _ => Ok(()),
    }
}

/// Returns a header of zeroes, with the length that the first bytes of a full delta contain.
fn empty_header(first: &Change<'_>, length: u64, path: &Path) -> PyResult<Vec<u8>> {
    let bytes = match first {
        Change::Bytes { offset: 0, bytes } if bytes.starts_with(&MAGIC) => bytes,
        _ => return Err(other_memory(path)),
    };
    let said = bytes.get(MAGIC.len()..OPENING).and_then(|said| said.try_into().ok());
    let room =
        said.map(u64::from_le_bytes).filter(|&room| room >= OPENING as u64 && room <= length);
    // A file has most of its header: the rest is room that was kept, a quarter of it.
    let most = 2 * fs::metadata(path).map_err(|error| at_path(error, path))?.len() + ROOM;
    let room = room.filter(|&room| room <= most).ok_or_else(|| other_memory(path))? as usize;
    let mut header = Vec::new();
    let short = |_| {
        PyMemoryError::new_err(format!(
            "{}: not enough memory for a header of {room} bytes",
            path.display()
        ))
    };
    header.try_reserve_exact(room).map_err(short)?;
    header.resize(room, 0);
    Ok(header)
}

fn other_memory(path: &Path) -> PyErr {
    PyValueError::new_err(format!(
        "{}: it is a delta of other memory, not of arrays that hugekit.Checkpointer saved",
        path.display()
    ))
}

/// Applies a change, if it lies in the first bytes of the state.
fn put(header: &mut [u8], change: &Change<'_>) {
    let room = header.len() as u64;
    let (start, end) = (change.offset(), change.offset() + change.len());
    let to = &mut header[start.min(room) as usize..end.min(room) as usize];
    match change {
        Change::Bytes { bytes, .. } => to.copy_from_slice(&bytes[..to.len()]),
        Change::Zeroes { .. } => to.fill(0),
    }
}

/// An array, and the offset of its bytes in the state.
struct ArrayPlace {
    state: Range<u64>,
    buffer: Buffer,
}

/// Arrays by ascending offsets, which may overlap in the state.
struct ArrayPlaces {
    places: Vec<ArrayPlace>,
    /// The highest end of each array and of the arrays before it.
    reach: Vec<u64>,
}

impl ArrayPlaces {
    fn new(mut places: Vec<ArrayPlace>) -> Self {
        places.sort_by_key(|place| place.state.start);
        let furthest = |reach: &mut u64, place: &ArrayPlace| {
            *reach = place.state.end.max(*reach);
            Some(*reach)
        };
        let reach = places.iter().scan(0, furthest).collect();
        Self { places, reach }
    }

    /// Makes the arrays zero, because a full delta begins with zeroes.
    fn clear(&mut self) {
        for ArrayPlace { buffer, .. } in &self.places {
            // SAFETY: writable bytes that the buffer keeps there; as with numpy, it is for the program to see to that
            // no other thread uses them.
            unsafe { buffer.start().write_bytes(0, buffer.len()) };
        }
    }

    /// Copies the changes of a file into the arrays. All of the file was checked before, and is
    /// checked again.
    fn apply(&mut self, path: &Path, state: StateId) -> PyResult<()> {
        let changed = |what: &dyn std::fmt::Display| {
            PyValueError::new_err(format!(
                "{}: the file was changed while it was read, and the arrays are invalid: {what}",
                path.display()
            ))
        };
        let refused = |error| match error {
            DeltaError::Io(error) => at_path(error, path),
            error => changed(&error),
        };
        let mut reader = Reader::new(open(path)?).map_err(refused)?;
        while let Some(change) = reader.next().map_err(refused)? {
            self.put(&change);
        }
        match reader.finish().map_err(refused)? {
            found if found == state => Ok(()),
            found => Err(changed(&format_args!("it leads to state {found} now"))),
        }
    }

    fn put(&mut self, change: &Change<'_>) {
        let (start, end) = (change.offset(), change.offset() + change.len());
        let mut index = self.places.partition_point(|place| place.state.start < end);
        while index > 0 && self.reach[index - 1] > start {
            index -= 1;
            let ArrayPlace { state, buffer } = &self.places[index];
            let common = start.max(state.start)..end.min(state.end);
            if common.is_empty() {
                continue;
            }
            let len = (common.end - common.start) as usize;
            // SAFETY: within the buffer, which is as long as its range of the state; as in `clear`.
            unsafe {
                let to = buffer.start().add((common.start - state.start) as usize);
                match change {
                    Change::Bytes { bytes, .. } => {
                        let from = bytes.as_ptr().add((common.start - start) as usize);
                        std::ptr::copy_nonoverlapping(from, to, len);
                    }
                    Change::Zeroes { .. } => to.write_bytes(0, len),
                }
            }
        }
    }
}
