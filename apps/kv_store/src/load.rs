//! What was saved last, brought into a store: entries, or an image and the deltas that follow on it.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind};
use std::iter;

use anyhow::{Context, Result, bail, ensure};
use hugekit_delta::{Chain, DeltaError, Reader, StateId, apply};
use hugekit_machine::{Memory, Root};

use super::dump;
use super::folder::{Folder, Name};
use super::image::Head;
use super::index::MOST_MEMORY;
use super::slabs::Slabs;
use super::store::{Entry, Store};

/// An image and its deltas, as they are on the disk.
#[derive(Debug)]
pub struct Saved {
    pub generation: u64,
    /// Its states, so that another delta can follow.
    pub chain: Chain,
    /// Bytes of the image's file.
    pub full_bytes: u64,
    pub deltas: u64,
    /// Bytes of all deltas.
    pub delta_bytes: u64,
}

/// What was loaded.
#[derive(Debug)]
pub struct Loaded {
    pub entries: u64,
    /// What the next save can go on with.
    pub saved: Option<Saved>,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// Loads what was saved last, if anything was. An error leaves the files as they are, and the store as it may be.
pub fn load(folder: &Folder, store: &mut Store, now: u64) -> Result<Option<Loaded>> {
    let path = folder.file(Name::Whole);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return nothing(folder),
        Err(error) => return Err(error).with_context(|| format!("cannot open {}", path.display())),
    };
    let loaded = match Reader::new(BufReader::new(file)) {
        Ok(image) => load_images(folder, image.header().length, store, now),
        Err(DeltaError::NoDelta | DeltaError::Truncated { .. }) => load_entries(folder, store, now),
        Err(error) => Err(error.into()),
    };
    let mut loaded = loaded
        .with_context(|| format!("{} is left as it is, and nothing served", path.display()))?;
    if let Some(partial) = folder.partial() {
        loaded.notes.push(format!("{partial} is of a save that was ended, and not loaded"));
    }
    Ok(Some(loaded))
}

/// No dump: then there are no deltas either.
fn nothing(folder: &Folder) -> Result<Option<Loaded>> {
    match folder.deltas()?.first() {
        None => Ok(None),
        Some(delta) => bail!(
            "{} is there, and what it follows on is not: {} is missing",
            delta.file(),
            folder.file(Name::Whole).display()
        ),
    }
}

fn load_entries(folder: &Folder, store: &mut Store, now: u64) -> Result<Loaded> {
    let file = File::open(folder.file(Name::Whole))?;
    let len = file.metadata()?.len();
    let take = |entry: &Entry<'_>| {
        if entry.is_gone(now) { Ok(()) } else { store.set(entry, now) }
    };
    let entries = dump::read(file, len, take)?;
    Ok(Loaded { entries, saved: None, notes: out_of_date(folder, None)? })
}

/// Deltas of other images than this one, which has taken their images' place.
fn out_of_date(folder: &Folder, current: Option<u64>) -> Result<Vec<String>> {
    let is_old = |name: &Name| match *name {
        Name::Whole => false,
        Name::Delta { generation, .. } => Some(generation) != current,
    };
    let old = folder.deltas()?.into_iter().filter(is_old);
    Ok(old.map(|name| format!("{} is out of date, and not loaded", name.file())).collect())
}

fn load_images(folder: &Folder, len: u64, store: &mut Store, now: u64) -> Result<Loaded> {
    if len != store.memory().1 as u64 {
        return load_other_images(folder, len, store, now);
    }
    let Images { generation, full_bytes, deltas, delta_bytes, notes, .. } =
        read_images(folder, store.image_mut())?;
    let chain = resume(folder, generation, deltas)?;
    let entries = store.adopt(now)?;
    let saved = Saved { generation, chain, full_bytes, deltas, delta_bytes };
    Ok(Loaded { entries, saved: Some(saved), notes })
}

/// What another delta is compared with: the files that were loaded.
fn resume(folder: &Folder, generation: u64, deltas: u64) -> Result<Chain> {
    let numbers = (1..=deltas).map(|number| Name::Delta { generation, number });
    let files: io::Result<Vec<File>> =
        iter::once(Name::Whole).chain(numbers).map(|name| File::open(folder.file(name))).collect();
    Ok(Chain::resume(files?)?)
}

/// Of a store with more or less memory: its entries are moved, and the next save begins anew.
fn load_other_images(folder: &Folder, len: u64, store: &mut Store, now: u64) -> Result<Loaded> {
    let memory = store.memory().1;
    let available = Memory::read(&Root::default())?.available;
    ensure!(
        len <= available.min(MOST_MEMORY as u64),
        "a store of {len} bytes was saved, this one has {memory}, and {available} bytes are available to move its entries by: --memory {len} needs no more than that"
    );
    let mut other = Slabs::unpopulated(usize::try_from(len)?)?;
    let Images { mut notes, .. } = read_images(folder, other.image_mut())?;
    let rooms = other.adopt()?;
    for (loaded, &room) in rooms.iter().enumerate() {
        let entry = other.entry_in(room)?;
        if !entry.is_gone(now) {
            let full = || {
                format!("no room for more than {loaded} of its entries: --memory must be larger")
            };
            store.set(&entry, now).ok().with_context(full)?;
        }
    }
    notes.push(format!(
        "a store of {len} bytes was saved, and this one has {memory}: its entries were moved"
    ));
    Ok(Loaded { entries: rooms.len() as u64, saved: None, notes })
}

/// What was read of an image and its deltas.
struct Images {
    generation: u64,
    state: StateId,
    full_bytes: u64,
    deltas: u64,
    delta_bytes: u64,
    notes: Vec<String>,
}

/// Puts the last state there.
fn read_images(folder: &Folder, memory: &mut [u8]) -> Result<Images> {
    let (state, full_bytes) = apply_file(folder, Name::Whole, memory, None)?;
    let generation = Head::read(memory)?.generation;
    let notes = out_of_date(folder, Some(generation))?;
    let mut images = Images { generation, state, full_bytes, deltas: 0, delta_bytes: 0, notes };
    let last = last_delta(folder, generation)?;
    for number in 1..=last {
        let name = Name::Delta { generation, number };
        match apply_file(folder, name, memory, Some(images.state)) {
            Ok((state, bytes)) => {
                (images.state, images.deltas) = (state, number);
                images.delta_bytes += bytes;
            }
            Err(error) if number == last && is_torn(&error) => {
                let aside = folder.set_aside(name)?;
                images.notes.push(format!("{error:#}: it is not loaded, and {aside} now"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(images)
}

/// How many deltas follow on an image.
fn last_delta(folder: &Folder, current: u64) -> Result<u64> {
    let number = |name| match name {
        Name::Delta { generation, number } if generation == current => Some(number),
        _ => None,
    };
    let mut numbers: Vec<u64> = folder.deltas()?.into_iter().filter_map(number).collect();
    numbers.sort_unstable();
    for (expected, &found) in (1..).zip(&numbers) {
        let [missing, next] =
            [expected, found].map(|number| Name::Delta { generation: current, number }.file());
        ensure!(expected == found, "{missing} is missing, and {next} is there");
    }
    Ok(numbers.len() as u64)
}

/// Brings a state forward by a file. Returns the next state, and how long the file is.
fn apply_file(
    folder: &Folder,
    name: Name,
    memory: &mut [u8],
    state: Option<StateId>,
) -> Result<(StateId, u64)> {
    let path = folder.file(name);
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let len = file.metadata()?.len();
    let applied = apply(memory, state, &mut BufReader::new(file));
    Ok((applied.with_context(|| path.display().to_string())?, len))
}

/// Whether a file ends too early, or some of its bytes are others: a disk may leave that when it loses power.
fn is_torn(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(DeltaError::Damaged { .. } | DeltaError::Truncated { .. } | DeltaError::NoDelta)
    )
}
