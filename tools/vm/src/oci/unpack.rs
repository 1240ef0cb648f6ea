//! A packed VM becomes the folder of a checkpoint again.

use std::fs::File;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::file_stamp::FileStamp;
use hugekit_sys::new_file::NewFile;
use hugekit_sys::thread;
use serde::Serialize;

use super::document::FramedLayer;
use super::error::OciError;
use super::framed::{FramedFile, Window};
use super::frames::Decoder;
use super::output::NewFolder;
use super::pack::usual_threads;
use super::packed_vm::PackedVm;
use crate::checkpoint::output::{OutputKind, STATE, series_folder};
use crate::pager::working_set::{Version, WorkingSet, path_beside};

/// A layout, and the folder that is made of it.
#[derive(Clone, Debug)]
pub struct UnpackOptions {
    /// The layout, or `LAYOUT:TAG`.
    pub layout: PathBuf,
    /// The folder that is made.
    pub output: PathBuf,
    /// True if deltas stay files, each in a folder of its own, instead of being applied.
    pub keep_deltas: bool,
    /// Threads that decompress. By default one for each CPU that this process may use, and at least two.
    pub threads: Option<NonZeroUsize>,
}

/// The files of an unpacked VM.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct UnpackReport {
    /// The file with the state of the VM's devices, to restore the VM from.
    pub state: PathBuf,
    /// The memory file, and the deltas that follow, if they are files.
    pub memory: Vec<PathBuf>,
    /// Memory of the VM.
    pub memory_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
}

/// Unpacks a VM. `tell` gets the bytes that were written, and all bytes, as they come.
///
/// The folder is whole or absent. It has the files `vmstate` and `memory`, as the folder of a checkpoint has, and the
/// working set, if there is one. Zeroes of the memory are holes, in units of 64 KiB. All digests and hashes are compared,
/// also of blobs whose bytes are not needed.
///
/// # Errors
/// Those of [`PackedVm::open`]; a blob or a frame has other bytes; or the output exists or has no room.
pub fn unpack(
    options: &UnpackOptions,
    tell: &(dyn Fn(u64, u64) + Sync),
) -> Result<UnpackReport, OciError> {
    let vm = PackedVm::open(&options.layout)?;
    let folder = NewFolder::new(&options.output)?;
    let threads = options.threads.map_or_else(usual_threads, NonZeroUsize::get);
    let unpacker = Unpacker { vm: &vm, folder: &folder, threads, tell };
    let unpacked = std::thread::scope(|scope| {
        let verified = thread::spawn_scoped(scope, "hugekit-verify", || verify(&vm));
        let verified = verified.map_err(OciError::Thread)?;
        let unpacked = if options.keep_deltas { unpacker.series() } else { unpacker.merged() };
        let lost = |_| OciError::Thread(io::Error::other("a thread has ended early"));
        verified.join().map_err(lost)??;
        unpacked
    })?;
    let Unpacked { states, memory, written, others } = unpacked;
    let place = |(name, _): &(String, NewFile)| options.output.join(name);
    let report = UnpackReport {
        state: states.last().map(place).unwrap_or_default(),
        memory: memory.iter().map(place).collect(),
        memory_bytes: vm.config.memory.bytes,
        written_bytes: written,
    };
    folder.finish([states, memory, others].into_iter().flatten().collect())?;
    Ok(report)
}

/// Compares the digests of blobs that are read by frames. All others were compared when the VM was opened.
fn verify(vm: &PackedVm) -> Result<(), OciError> {
    let frames = |layer: &FramedLayer| vm.folder.verify(&layer.frames);
    vm.layers.saved.iter().try_for_each(|saved| frames(&saved.memory))?;
    vm.layers.working_set.iter().try_for_each(frames)
}

/// Files, with the names that they get.
type Named = Vec<(String, NewFile)>;

struct Unpacked {
    states: Named,
    /// The memory file, and deltas.
    memory: Named,
    written: u64,
    others: Named,
}

/// A file that is written: its length, and its runs that are not zero.
struct Wanted<'a> {
    length: u64,
    runs: &'a [Range<u64>],
}

struct Unpacker<'a> {
    vm: &'a PackedVm,
    folder: &'a NewFolder,
    threads: usize,
    tell: &'a (dyn Fn(u64, u64) + Sync),
}

impl Unpacker<'_> {
    /// The last state, in one memory file.
    fn merged(&self) -> Result<Unpacked, OciError> {
        let packed = &self.vm.memory;
        let wanted = Wanted { length: packed.len(), runs: packed.data() };
        let written = bytes_of(wanted.runs);
        let reader = || {
            let mut windows = packed.windows(0)?;
            Ok(move |offset: u64, to: &mut [u8]| packed.read_by(&mut windows, offset, to))
        };
        let memory = self.write(&wanted, &reader, 0, written)?;
        let others = self.working_set("", &[&memory])?;
        let last = self.vm.layers.saved.len() - 1;
        let states = vec![(STATE.to_owned(), self.state(last, &self.vm.state)?)];
        let memory = vec![(OutputKind::Full.file_name().to_owned(), memory)];
        Ok(Unpacked { states, memory, written, others })
    }

    /// Each state in a folder of its own, as `hugekit checkpoint --every` leaves them.
    fn series(&self) -> Result<Unpacked, OciError> {
        let (mut states, mut memory, mut done) = (Named::new(), Named::new(), 0);
        let runs = |file: &FramedFile| file.table.data_runs();
        let total = self.vm.memory.files().map(|file| bytes_of(&runs(file))).sum();
        for (number, (saved, file)) in
            (1..).zip(self.vm.layers.saved.iter().zip(self.vm.memory.files()))
        {
            let kind = if number == 1 { OutputKind::Full } else { OutputKind::Delta };
            let folder = series_folder(number);
            let state = self.vm.folder.state(&saved.state)?;
            let state = self.state(number as usize - 1, &state)?;
            states.push((format!("{folder}/{STATE}"), state));
            let runs = runs(file);
            let wanted = Wanted { length: file.table.length(), runs: &runs };
            let reader = || {
                let mut decoder = Decoder::new().map_err(OciError::Thread)?;
                let mut window = Window::default();
                Ok(move |offset: u64, to: &mut [u8]| {
                    file.read(&mut window, &mut decoder, 0, offset, to)
                })
            };
            let written = self.write(&wanted, &reader, done, total)?;
            memory.push((format!("{folder}/{}", kind.file_name()), written));
            done += bytes_of(&runs);
        }
        let files: Vec<&NewFile> = memory.iter().map(|(_, file)| file).collect();
        let others = self.working_set(&format!("{}/", series_folder(1)), &files)?;
        Ok(Unpacked { states, memory, written: total, others })
    }

    /// A state with the time of its pause: a disk that is newer is not of it.
    fn state(&self, number: usize, bytes: &[u8]) -> Result<NewFile, OciError> {
        let file = self.file_of(bytes)?;
        if let Some(moment) = self.vm.config.saved_at.get(number) {
            let set = file.file().set_modified(moment.time());
            set.map_err(|source| self.folder.refused(source))?;
        }
        Ok(file)
    }

    fn file_of(&self, bytes: &[u8]) -> Result<NewFile, OciError> {
        let mut file = self.folder.file()?;
        file.write_all(bytes).map_err(|source| self.folder.refused(source))?;
        Ok(file)
    }

    /// The file by which `hugekit pager` knows the memory that the VM touches first, if the image knows it.
    fn working_set(&self, folder: &str, of: &[&NewFile]) -> Result<Named, OciError> {
        let Some(ranges) = self.vm.memory.working_set() else { return Ok(Named::new()) };
        let version = |file: &&NewFile| {
            let stamp = FileStamp::of(file.file())?;
            Ok((stamp.modified(), stamp.len()))
        };
        let versions = of.iter().map(version).collect::<io::Result<Vec<Version>>>();
        let bytes = versions
            .and_then(|versions| WorkingSet::new(ranges).to_bytes(self.vm.memory.len(), versions))
            .map_err(|source| self.folder.refused(source))?;
        let memory = OutputKind::Full.file_name();
        let name = path_beside(format!("{folder}{memory}").as_ref()).display().to_string();
        Ok(vec![(name, self.file_of(&bytes)?)])
    }

    /// Writes a file by several threads. `done` bytes of `total` were written before.
    fn write<R>(
        &self,
        wanted: &Wanted<'_>,
        reader: &(dyn Fn() -> Result<R, OciError> + Sync),
        done: u64,
        total: u64,
    ) -> Result<NewFile, OciError>
    where
        R: FnMut(u64, &mut [u8]) -> Result<(), OciError>,
    {
        let refused = |source| self.folder.refused(source);
        let file = self.folder.file()?;
        self.check_room(file.file(), bytes_of(wanted.runs))?;
        file.file().set_len(wanted.length).map_err(refused)?;
        let (pieces, next, done) =
            (pieces_of(wanted.runs), AtomicUsize::new(0), AtomicU64::new(done));
        let write = || -> Result<(), OciError> {
            let (mut read, mut room) = (reader()?, vec![0; HUGE_PAGE_BYTES]);
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                let bytes = &mut room[..(piece.end - piece.start) as usize];
                read(piece.start, bytes)?;
                file.file().write_all_at(bytes, piece.start).map_err(refused)?;
                let count = bytes.len() as u64;
                (self.tell)(done.fetch_add(count, Ordering::Relaxed) + count, total);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let spawn = |_| thread::spawn_scoped(scope, "hugekit-unpack", write);
            let threads = (0..self.threads).map(spawn).collect::<Result<Vec<_>, _>>();
            let lost = |_| OciError::Thread(io::Error::other("a thread has ended early"));
            let mut threads = threads.map_err(OciError::Thread)?.into_iter();
            threads.try_for_each(|thread| thread.join().map_err(lost)?)
        })?;
        Ok(file)
    }

    /// A layout of some kilobytes may stand for much memory, so that its size is compared before anything is written.
    fn check_room(&self, file: &File, needed: u64) -> Result<(), OciError> {
        let found = rustix::fs::fstatvfs(file);
        let found = found.map_err(|errno| self.folder.refused(errno.into()))?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        if needed <= free { Ok(()) } else { Err(OciError::Space { needed, free }) }
    }
}

fn bytes_of(runs: &[Range<u64>]) -> u64 {
    runs.iter().map(|run| run.end - run.start).sum()
}

/// Runs cut where huge pages begin: the page cache has a whole piece on one huge page, if the file system can.
fn pieces_of(runs: &[Range<u64>]) -> Vec<Range<u64>> {
    let huge = HUGE_PAGE_BYTES as u64;
    let cut = |run: &Range<u64>| {
        let run = run.clone();
        (run.start / huge..run.end.div_ceil(huge))
            .map(move |number| run.start.max(number * huge)..run.end.min((number + 1) * huge))
    };
    runs.iter().flat_map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_runs_cut_at_huge_pages() {
        let mib = 1 << 20;
        assert_eq!(
            pieces_of(&[mib..5 * mib, 7 * mib..8 * mib]),
            [mib..2 * mib, 2 * mib..4 * mib, 4 * mib..5 * mib, 7 * mib..8 * mib]
        );
        assert!(pieces_of(&[]).is_empty());
    }
}
