//! The record of a VM for a later pager: two files in the state folder.
//!
//! `PID-START.json` contains the process, its layout and its memory file. `PID-START.pages` is
//! mapped. It contains a flag that the pager was leaving, the last messages, a bit for each page
//! that the VM released, and a bit for each page with data. The kernel itself writes messages into
//! the mapping, so a pager that is killed at any moment loses none: a delivered remove event is in
//! the mapping, or already a bit. Bits are only set, so it is harmless to process a message twice.
//!
//! The second file is locked as long as a pager serves the VM.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hugekit_sys::private_folder::PrivateFolder;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::pager::bitmap::{Bitmap, words_of};
use crate::pager::source::MemoryIdentity;
use crate::vmm::process::Process;
use crate::vmm::userfaultfd::MESSAGE_WORDS;
use crate::vmm::{Layout, base_page};

const VERSION: u32 = 2;

/// Words before the bits: a flag, and room for messages.
const LEAVING: usize = 0;
const MESSAGES: std::ops::Range<usize> = 64..64 + 16 * MESSAGE_WORDS;
const BITS: usize = 512;

/// The highest length of the first file in bytes. Longer files are not hugekit's.
const LONGEST: u64 = 64 << 10;

/// The content of the first file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    pub(crate) pid: i32,
    pub(crate) started: u64,
    pub(crate) layout: Layout,
    pub(crate) source: MemoryIdentity,
}

/// Both files of a VM that this pager serves. If no later pager can take the VM over, this is
/// memory instead.
#[derive(Debug)]
pub(crate) struct State {
    files: Option<Files>,
    map: MmapRaw,
    /// The number of words of each kind of bits.
    words: usize,
}

#[derive(Debug)]
struct Files {
    folder: Arc<PrivateFolder>,
    record: OsString,
    pages: OsString,
    _locked: File,
}

impl State {
    /// Makes the record of a VM that has just connected.
    pub(crate) fn create(
        folder: &Arc<PrivateFolder>,
        process: &Process,
        layout: &Layout,
        source: &MemoryIdentity,
    ) -> io::Result<Self> {
        let (pid, started) = (process.pid(), process.started());
        let record = Record {
            version: VERSION,
            pid,
            started,
            layout: layout.clone(),
            source: source.clone(),
        };
        let name = record_name(process);
        if read(folder, &name).is_some() {
            return Err(io::Error::other("this process has connected already"));
        }
        let state = Self::open(folder, &name, layout)?;
        match folder.write(&name, &serde_json::to_vec(&record)?) {
            Ok(()) => Ok(state),
            Err(error) => {
                state.remove();
                Err(error)
            }
        }
    }

    /// Makes the record of a VM that no later pager can take over.
    pub(crate) fn unrecorded(layout: &Layout) -> io::Result<Self> {
        let (words, bytes) = Self::size(layout);
        let map = MmapOptions::new().len(bytes).map_anon()?.into();
        Ok(Self { files: None, map, words })
    }

    /// Returns the number of words of each kind of bits, and the bytes of the mapping.
    fn size(layout: &Layout) -> (usize, usize) {
        let words = words_of(layout.end() / base_page());
        (words, (BITS + 2 * words) * size_of::<u64>())
    }

    /// Opens the record of a VM that an earlier pager has served. `WouldBlock` if that pager still serves it.
    pub(crate) fn take_over(
        folder: &Arc<PrivateFolder>,
        record: &OsStr,
        layout: &Layout,
    ) -> io::Result<Self> {
        Self::open(folder, record, layout)
    }

    fn open(folder: &Arc<PrivateFolder>, record: &OsStr, layout: &Layout) -> io::Result<Self> {
        let pages = pages_name(record);
        let file = folder.open_or_make(&pages)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            Errno::WOULDBLOCK => io::Error::from(io::ErrorKind::WouldBlock),
            other => other.into(),
        })?;
        let (words, bytes) = Self::size(layout);
        // A write to the mapping must not find the file system full.
        if let Err(errno) = fallocate(&file, FallocateFlags::empty(), 0, bytes as u64) {
            folder.remove(&pages);
            return Err(errno.into());
        }
        let map = MmapOptions::new().len(bytes).map_raw(&file)?;
        let (folder, record) = (Arc::clone(folder), record.to_owned());
        let files = Files { folder, record, pages, _locked: file };
        Ok(Self { files: Some(files), map, words })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has so many words, starts at a page, and lives as long as `self`. All
        // processes and threads access it by atomic words only, or by the kernel, for which any
        // bytes are valid words.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), BITS + 2 * self.words) }
    }

    /// Returns the room for messages.
    pub(crate) fn messages(&self) -> &[AtomicU64] {
        &self.words()[MESSAGES]
    }

    /// Returns a bit for each base page, by its offset. It is set if the VM released the page,
    /// which is zero since.
    pub(crate) fn removed(&self) -> Bitmap<'_> {
        Bitmap(&self.words()[BITS..][..self.words])
    }

    /// Returns a bit for each base page, by its offset. It is set if the page has data and is
    /// present.
    pub(crate) fn data(&self) -> Bitmap<'_> {
        Bitmap(&self.words()[BITS + self.words..])
    }

    /// Returns true if a pager was leaving the VM's memory to the kernel. From then on the memory
    /// must not be registered again.
    pub(crate) fn is_leaving(&self) -> bool {
        self.words()[LEAVING].load(Ordering::Acquire) != 0
    }

    pub(crate) fn set_leaving(&self) {
        self.words()[LEAVING].store(1, Ordering::Release);
    }

    /// Removes the record, because the VM needs no pager any more.
    pub(crate) fn remove(&self) {
        if let Some(Files { folder, record, pages, .. }) = &self.files {
            folder.remove(record);
            folder.remove(pages);
        }
    }
}

/// Returns true if an earlier pager has recorded the VM of a process.
pub(crate) fn is_recorded(folder: &PrivateFolder, process: &Process) -> bool {
    read(folder, &record_name(process)).is_some()
}

fn record_name(process: &Process) -> OsString {
    format!("{}-{}.json", process.pid(), process.started()).into()
}

fn pages_name(record: &OsStr) -> OsString {
    Path::new(record).with_extension("pages").into()
}

/// Finds the readable records of earlier pagers, with their names.
pub(crate) fn find(folder: &PrivateFolder) -> io::Result<Vec<(OsString, Record)>> {
    let is_record = |name: &OsString| Path::new(name).extension() == Some("json".as_ref());
    let names = folder.names()?.into_iter().filter(is_record);
    Ok(names.filter_map(|name| read(folder, &name).map(|record| (name, record))).collect())
}

/// Removes the files of a VM that has ended.
pub(crate) fn forget(folder: &PrivateFolder, record: &OsStr) {
    folder.remove(record);
    folder.remove(&pages_name(record));
}

fn read(folder: &PrivateFolder, name: &OsStr) -> Option<Record> {
    let record: Record = serde_json::from_slice(&folder.read(name, LONGEST).ok()?).ok()?;
    let layout = record.layout.clone().checked(u64::MAX).ok()?;
    (record.version == VERSION).then_some(Record { layout, ..record })
}
