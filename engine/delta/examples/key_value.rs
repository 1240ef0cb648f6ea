//! A key-value store in memory. It saves its state by snapshots and deltas, and finds it again when it starts.
//!
//! ```sh
//! cargo run --release -p hugekit-delta --example key_value -- FOLDER [MIB]
//! ```
//!
//! Each line of the standard input is a command, and each answer is a line:
//!
//! ```text
//! set KEY VALUE   ok           the value is the rest of the line
//! get KEY         = VALUE      or: none
//! remove KEY      ok           or: none
//! count           the number of keys
//! save            saving       a thread saves the state of this moment, and later commands do not wait
//! wait            saved ...    when that save has ended
//! ```
//!
//! Three parts do the work. [`Store`] keeps all keys and values in one piece of memory, so that a copy of this memory is
//! the whole state. [`Saver`] takes a snapshot between two commands and has a thread write the bytes that changed since
//! the last save. [`Folder`] keeps the files so that a whole state can be loaded at any moment: a kill loses only the
//! commands after the last save.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufReader, stdin};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, bail, ensure};
use hugekit::snapshot::{Changes, Epoch};
use hugekit::{Pool, Region};
use hugekit_delta::{Chain, Reader, Saved, apply};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = Folder::open(&arguments.next().context("usage: key_value FOLDER [MIB]")?)?;
    let bytes = arguments.next().map_or(Ok(64), |mib| mib.parse::<usize>())? << 20;
    // One half is for the store, the other for copies of what is written while a snapshot is read.
    let pool = Pool::builder(2 * bytes).build()?;
    let mut memory = pool.region(bytes)?;
    let (chain, number) = folder.load(&mut memory)?;
    let mut store = Store::of(memory)?;
    let mut saver = Saver { folder, number, last: chain.map(|chain| (chain, None)), running: None };
    for line in stdin().lines() {
        let answer = answer(&line?, &mut store, &mut saver);
        println!("{}", answer.unwrap_or_else(|error| format!("error: {error:#}")));
    }
    // Commands after the last `save` are lost here, as by a kill.
    saver.running.is_some().then(|| saver.wait()).transpose()?;
    Ok(())
}

fn answer(line: &str, store: &mut Store, saver: &mut Saver) -> Result<String> {
    let words: Vec<&str> = line.splitn(3, ' ').collect();
    Ok(match words[..] {
        ["set", key, value] => {
            store.set(key.as_bytes(), value.as_bytes())?;
            "ok".to_owned()
        }
        ["get", key] => match store.get(key.as_bytes()) {
            Some(value) => format!("= {}", String::from_utf8_lossy(value)),
            None => "none".to_owned(),
        },
        ["remove", key] if store.remove(key.as_bytes()) => "ok".to_owned(),
        ["remove", _] => "none".to_owned(),
        ["count"] => store.values.len().to_string(),
        ["save"] => {
            saver.start(&store.memory)?;
            "saving".to_owned()
        }
        ["wait"] => {
            let Saved { is_full, changed, written, .. } = saver.wait()?;
            let kind = if is_full { "full" } else { "delta" };
            format!("saved {kind}: {changed} bytes changed, {written} bytes written")
        }
        _ => bail!("no such command: {line}"),
    })
}

/// Keys and values as records in one piece of memory.
///
/// ```text
/// 0   u64: bytes that are used, from the start of the memory
/// 8   records: u32 length of the key, u32 length of the value, the key, the value
/// ```
///
/// The last record of a key counts, and one with the length [`REMOVED`] has no value. Records are found by offsets, so
/// they mean the same at another address. The index is outside of this memory: its tables contain addresses. A start
/// makes it from the records.
struct Store {
    memory: Region,
    used: usize,
    /// The offsets of each key's value.
    values: HashMap<Vec<u8>, Range<usize>>,
}

const FIRST_RECORD: usize = 8;
const HEAD: usize = 8;
const REMOVED: u32 = u32::MAX;

impl Store {
    /// Makes the index of records that were loaded. Memory of zeroes has none.
    fn of(memory: Region) -> Result<Self> {
        let used = u64::from_le_bytes(memory[..8].try_into()?) as usize;
        let mut store = Self { memory, used: FIRST_RECORD, values: HashMap::new() };
        while store.used < used {
            let at = store.used;
            store
                .take_in()
                .with_context(|| format!("no record of this program is at byte {at}"))?;
        }
        Ok(store)
    }

    /// Takes the record behind all others into the index. `None` if it does not fit the memory.
    fn take_in(&mut self) -> Option<()> {
        let start = self.used + HEAD;
        let head = self.memory.get(self.used..start)?;
        let [key, value] = [0, 4].map(|at| {
            u32::from_le_bytes(head[at..at + 4].try_into().expect("the head has 8 bytes"))
        });
        let behind_key = start + key as usize;
        let key = self.memory.get(start..behind_key)?.to_vec();
        if value == REMOVED {
            self.values.remove(&key);
            self.used = behind_key;
        } else {
            let place = behind_key..behind_key + value as usize;
            self.used = self.memory.get(place.clone()).map(|_| place.end)?;
            self.values.insert(key, place);
        }
        Some(())
    }

    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(|place| &self.memory[place.clone()])
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.values.get(key) {
            // The next delta has only the block of the old place.
            Some(place) if place.len() == value.len() => {
                self.memory[place.clone()].copy_from_slice(value);
                Ok(())
            }
            _ => self.append(key, Some(value)),
        }
    }

    /// Returns whether the key was there.
    fn remove(&mut self, key: &[u8]) -> bool {
        let was_there = self.values.remove(key).is_some();
        if was_there {
            // If there is no room for this record, the records were made again without the key.
            let _ = self.append(key, None);
        }
        was_there
    }

    fn append(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let value_len = value.map_or(Ok(REMOVED), |value| value.len().try_into())?;
        let head = [u32::try_from(key.len())?.to_le_bytes(), value_len.to_le_bytes()].concat();
        let record = [&head, key, value.unwrap_or_default()].concat();
        if record.len() > self.memory.len() - self.used {
            self.compact()?;
        }
        let free = self.memory.len() - self.used;
        ensure!(record.len() <= free, "no room: {} bytes needed, {free} are free", record.len());
        self.memory[self.used..][..record.len()].copy_from_slice(&record);
        self.take_in().expect("the record fits");
        self.memory[..8].copy_from_slice(&(self.used as u64).to_le_bytes());
        Ok(())
    }

    /// Makes the records again, without those that no longer count.
    fn compact(&mut self) -> Result<()> {
        let of_key = |(key, place)| (key, self.memory[Range::clone(&place)].to_vec());
        let records: Vec<_> = std::mem::take(&mut self.values).into_iter().map(of_key).collect();
        self.used = FIRST_RECORD;
        records.iter().try_for_each(|(key, value)| self.append(key, Some(value)))
    }
}

/// Every eighth file is full, so that a start reads eight files at most.
const FULL_EVERY: u64 = 8;

/// Saves a store. One save runs at a time.
struct Saver {
    folder: Folder,
    /// The number of the next file.
    number: u64,
    /// The chain of the files that were saved or loaded. The epoch notes which memory was written since the last save;
    /// without one, all of the memory is compared with the files. After a save that failed, the next file is full.
    last: Option<(Chain, Option<Epoch>)>,
    running: Option<JoinHandle<Result<(Chain, Epoch, Saved)>>>,
}

impl Saver {
    /// Takes a snapshot, and has a thread write it.
    fn start(&mut self, memory: &Region) -> Result<()> {
        ensure!(self.running.is_none(), "a save runs: wait for its end first");
        let last = self.last.take().filter(|_| !self.number.is_multiple_of(FULL_EVERY));
        let (chain, epoch) = last.unwrap_or_else(|| (Chain::new(memory.len() as u64), None));
        let changes = match epoch {
            Some(epoch) => Changes::since(memory, epoch)?,
            None => Changes::first(memory)?,
        };
        let (folder, number) = (self.folder.path.clone(), self.number);
        self.number += 1;
        self.running = Some(thread::spawn(move || write(&folder, number, chain, changes)));
        Ok(())
    }

    fn wait(&mut self) -> Result<Saved> {
        let running = self.running.take().context("no save runs")?;
        let written = running.join().map_err(|_| anyhow!("the thread panicked"))?;
        let (chain, epoch, saved) = written.context("not saved")?;
        self.last = Some((chain, Some(epoch)));
        Ok(saved)
    }
}

/// Writes the next file. It gets its name when all of it is on the disk, so each file that has a name is whole.
fn write(
    folder: &Path,
    number: u64,
    mut chain: Chain,
    changes: Changes,
) -> Result<(Chain, Epoch, Saved)> {
    let partial = folder.join("partial");
    // That of a save that was killed; the lock is held, so no save writes to it.
    let _ = fs::remove_file(&partial);
    let file = File::create_new(&partial).with_context(|| partial.display().to_string())?;
    let mut saving = chain.save_changes(&file)?;
    let epoch = changes.deliver(|offset, bytes| saving.put(offset as u64, bytes))?;
    let saved = saving.finish()?;
    file.sync_all()?;
    fs::rename(&partial, path_of(folder, number))?;
    File::open(folder)?.sync_all()?;
    if saved.is_full {
        // A start does not need the files before it, and does not mind them.
        for old in numbers(folder)?.into_iter().filter(|&old| old < number) {
            let _ = fs::remove_file(path_of(folder, old));
        }
    }
    Ok((chain, epoch, saved))
}

/// The files: `0.delta`, `1.delta` and so on, each with the changes since the one before. The state is the last full
/// file and all files after it.
struct Folder {
    path: PathBuf,
    /// Other programs cannot lock it meanwhile.
    _lock: File,
}

impl Folder {
    fn open(path: &str) -> Result<Self> {
        fs::create_dir_all(path).with_context(|| path.to_owned())?;
        let lock = File::open(path)?;
        lock.try_lock().with_context(|| format!("{path} is in use by another store"))?;
        Ok(Self { path: path.into(), _lock: lock })
    }

    /// Loads the last state, if there is one. Returns the chain of its files, and the number of the next file. If a
    /// file is damaged, missing or of another chain, the error names it, and no file was changed.
    fn load(&self, memory: &mut Region) -> Result<(Option<Chain>, u64)> {
        let open = |number| -> Result<File> {
            let path = path_of(&self.path, number);
            File::open(&path).with_context(|| path.display().to_string())
        };
        let mut chain = Vec::new();
        for number in numbers(&self.path)?.into_iter().rev() {
            let name = || path_of(&self.path, number).display().to_string();
            let header = Reader::new(BufReader::new(open(number)?)).with_context(name)?.header();
            chain.insert(0, number);
            // A kill may have left files before a full one.
            if header.base.is_none() {
                break;
            }
        }
        let Some(&last) = chain.last() else { return Ok((None, 0)) };
        let mut state = None;
        for &number in &chain {
            let applied = apply(&mut memory[..], state, &mut BufReader::new(open(number)?));
            let name = || path_of(&self.path, number).display().to_string();
            state = Some(applied.with_context(name)?);
        }
        let files = chain.into_iter().map(open).collect::<Result<Vec<_>>>()?;
        Ok((Some(Chain::resume(files)?), last + 1))
    }
}

fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number}.delta"))
}

/// The numbers of the files, ascending.
fn numbers(folder: &Path) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let parse = |name: &str| name.strip_suffix(".delta")?.parse::<u64>().ok();
        numbers.extend(name.to_str().and_then(parse));
    }
    numbers.sort_unstable();
    Ok(numbers)
}
