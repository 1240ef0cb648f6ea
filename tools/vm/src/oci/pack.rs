//! A saved VM becomes an OCI image layout.

use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};

use hugekit_sys::input;
use hugekit_sys::new_file::NewFile;
use serde::Serialize;

use super::digest::Digest;
use super::document::{
    CONFIG, Descriptor, ImageIndex, LAYOUT, LayerKind, MANIFEST, Manifest, Moment, VmConfig,
};
use super::error::OciError;
use super::framed::{FramedFile, TOGETHER};
use super::frames::{CHUNK, Chunks, FrameTable, MOST_FRAMES, chunks_of};
use super::layout::blob_name;
use super::memory::PackedMemory;
use super::output::NewFolder;
use super::packing::{Input, Packed, pack as pack_frames};
use crate::checkpoint::output::{OutputKind, STATE};
use crate::checkpoint::previous::{LONGEST_STATE, state_id};
use crate::pager::Source;
use crate::pager::working_set::{self, Version, WorkingSet};

/// The files of a VM that is packed.
#[derive(Clone, Debug)]
pub struct PackOptions {
    /// The file with the state of the VM's devices.
    pub state: PathBuf,
    /// The file with the VM's memory.
    pub memory: PathBuf,
    /// Folders of later checkpoints, the oldest first: each has a `vmstate` and a `memory.delta`.
    pub deltas: Vec<PathBuf>,
    /// The memory that the VM touches first, as `hugekit pager` has recorded it. By default the file beside the memory, if
    /// it is of this memory.
    pub working_set: Option<PathBuf>,
    /// The tag of the image in the layout.
    pub tag: Option<String>,
    /// The folder that is made.
    pub output: PathBuf,
    /// Threads that compress. By default one for each CPU that this process may use, and at least two.
    pub threads: Option<NonZeroUsize>,
}

impl PackOptions {
    /// Packs the folder of a checkpoint.
    #[must_use]
    pub fn of_saved(saved: &Path, output: PathBuf) -> Self {
        Self::of_files(saved.join(STATE), saved.join(OutputKind::Full.file_name()), output)
    }

    /// Packs the files of a snapshot.
    #[must_use]
    pub fn of_files(state: PathBuf, memory: PathBuf, output: PathBuf) -> Self {
        let (deltas, working_set, tag, threads) = (Vec::new(), None, None, None);
        Self { state, memory, deltas, working_set, tag, output, threads }
    }
}

/// The sizes of a packed VM.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PackReport {
    /// The digest of the manifest, by which registries name the image.
    pub digest: String,
    /// Memory of the VM.
    pub memory_bytes: u64,
    /// Memory that is not zero, in chunks of 64 KiB.
    pub data_bytes: u64,
    /// The blob with the memory file.
    pub packed_bytes: u64,
    /// The blobs with the deltas.
    pub delta_bytes: Vec<u64>,
    /// Memory in the working set; `None` if there is none.
    pub working_set_bytes: Option<u64>,
    /// All blobs.
    pub total_bytes: u64,
}

/// Packs a saved VM as an OCI image layout. `tell` gets the bytes that were packed, and all bytes, as they come.
///
/// The layout is whole or absent. The same files make the same layout, whatever the number of threads.
///
/// # Errors
/// The output exists, a file cannot be read or is written meanwhile, or a delta does not follow on the memory before it.
pub fn pack(options: &PackOptions, tell: &dyn Fn(u64, u64)) -> Result<PackReport, OciError> {
    let folder = NewFolder::new(&options.output)?;
    let memory = Source::open(&options.memory)?;
    let deltas = options
        .deltas
        .iter()
        .map(|folder| Source::open(&folder.join(OutputKind::Delta.file_name())));
    let deltas: Vec<Source> = deltas.collect::<Result<_, _>>()?;
    let first = read_state(&options.state)?;
    let later = options.deltas.iter().map(|folder| read_state(&folder.join(STATE)));
    let later: Vec<SavedState> = later.collect::<Result<_, _>>()?;
    let states = || [&first].into_iter().chain(&later);
    let set = working_set(options, &memory, &deltas)?;
    let total = memory.len() + deltas.iter().map(Source::len).sum::<u64>();
    let threads = options.threads.map_or_else(usual_threads, NonZeroUsize::get);
    let mut packer = Packer { folder, threads, blobs: BTreeMap::new(), layers: Vec::new() };

    let (mut files, mut done) = (Vec::new(), 0);
    for (source, state) in [&memory].into_iter().chain(&deltas).zip(states()) {
        let kind = if files.is_empty() { LayerKind::Memory } else { LayerKind::Delta };
        packer.add_layer(LayerKind::State, &state.bytes)?;
        files.push(packer.add_source(source, kind, &|bytes| tell(done + bytes, total))?);
        done += source.len();
    }
    let packed_bytes: Vec<u64> = files.iter().map(|file| file.table.size()).collect();
    let packed = PackedMemory::new(files.remove(0), files, state_id(&first.bytes))?;
    let set = set.filter(|set| set.bytes() > 0);
    if let Some(set) = &set {
        packer.add_working_set(&packed, set)?;
    }
    // A moment before 1970 is none.
    let moments = states().map(|state| state.moment).collect::<Option<_>>();
    let last = later.last().unwrap_or(&first);
    let config = VmConfig::new(&last.bytes, memory.len(), moments.unwrap_or_default());
    let digest = packer.add_manifest(&config)?;
    let report = PackReport {
        digest: digest.to_string(),
        memory_bytes: memory.len(),
        data_bytes: packed.data().iter().map(|run| run.end - run.start).sum(),
        packed_bytes: packed_bytes[0],
        delta_bytes: packed_bytes[1..].to_vec(),
        working_set_bytes: set.map(|set| set.bytes()),
        total_bytes: packer.blobs.values().map(|blob| blob.size).sum(),
    };
    packer.finish(digest, options.tag.as_deref())?;
    Ok(report)
}

/// Compression and decompression use all CPUs that this process may use.
pub(crate) fn usual_threads() -> usize {
    std::thread::available_parallelism().map_or(2, NonZeroUsize::get).max(2)
}

/// The state of a VM's devices, and the time of its file: that of the pause, after `hugekit checkpoint`.
struct SavedState {
    bytes: Vec<u8>,
    moment: Option<Moment>,
}

fn read_state(path: &Path) -> Result<SavedState, OciError> {
    let read = || {
        let file = input::open(path)?;
        let moment = Moment::of(file.metadata()?.modified()?);
        Ok(SavedState { bytes: input::read(&file, LONGEST_STATE)?, moment })
    };
    read().map_err(|source| OciError::Input { path: path.to_owned(), source })
}

/// The set that was named, which must be of this memory; or the one beside the memory, if it is.
fn working_set(
    options: &PackOptions,
    memory: &Source,
    deltas: &[Source],
) -> Result<Option<WorkingSet>, OciError> {
    let sources = [memory].into_iter().chain(deltas);
    let of: Vec<Version> = sources.flat_map(|source| source.identity().versions()).collect();
    match &options.working_set {
        Some(path) => match working_set::read(path, memory.len(), &of) {
            Ok(Some(set)) => Ok(Some(set)),
            Ok(None) => Err(OciError::WorkingSet { path: path.clone() }),
            Err(source) => Err(OciError::Input { path: path.clone(), source }),
        },
        // Nobody has asked for it, so it is used only if nothing is wrong with it.
        None => Ok(working_set::read(&working_set::path_beside(memory.path()), memory.len(), &of)
            .unwrap_or_default()),
    }
}

/// A blob that was written.
struct Blob {
    size: u64,
    file: NewFile,
}

/// A layout that is being written.
struct Packer {
    folder: NewFolder,
    threads: usize,
    blobs: BTreeMap<Digest, Blob>,
    layers: Vec<Descriptor>,
}

impl Packer {
    fn add(&mut self, media_type: &str, bytes: &[u8]) -> Result<Descriptor, OciError> {
        let (digest, size) = (Digest::of(bytes), bytes.len() as u64);
        let mut file = self.folder.file()?;
        file.write_all(bytes).map_err(|source| self.folder.refused(source))?;
        self.blobs.insert(digest, Blob { size, file });
        Ok(Descriptor::new(media_type, digest, size))
    }

    fn add_layer(&mut self, kind: LayerKind, bytes: &[u8]) -> Result<(), OciError> {
        let layer = self.add(kind.media_type(), bytes)?;
        self.layers.push(layer);
        Ok(())
    }

    /// Adds frames and their table, and opens them as they were written.
    fn add_frames<R>(
        &mut self,
        kind: LayerKind,
        input: &Input<'_, R>,
        chunks: Chunks,
        tell: &dyn Fn(u64),
    ) -> Result<FramedFile, OciError>
    where
        R: FnMut(u64, &mut [u8]) -> Result<(), OciError>,
    {
        let refused = |source| self.folder.refused(source);
        let mut file = self.folder.file()?;
        let Packed { digest, size, table: compressed } =
            pack_frames(input, &mut file, &refused, self.threads, tell)?;
        let table = FrameTable::read(&compressed[..], size, chunks, MOST_FRAMES);
        let table = table.map_err(|source| OciError::Frames { digest, source })?;
        let blob = file.file().try_clone().map_err(refused)?;
        self.add_layer(LayerKind::Index, &compressed)?;
        self.layers.push(Descriptor::new(kind.media_type(), digest, size));
        self.blobs.insert(digest, Blob { size, file });
        Ok(FramedFile { table, blob, path: digest.to_string().into(), digest })
    }

    fn add_source(
        &mut self,
        source: &Source,
        kind: LayerKind,
        tell: &dyn Fn(u64),
    ) -> Result<FramedFile, OciError> {
        let length = source.len();
        let reader = || {
            Ok(|offset: u64, to: &mut [u8]| {
                if source.next_data(offset..offset + to.len() as u64).is_none() {
                    to.fill(0);
                    return Ok(());
                }
                Ok(source.read(offset, to)?)
            })
        };
        let input =
            Input { length, count: chunks_of(length), chunk: &|number| number, reader: &reader };
        let tell = |chunks: u64| tell((chunks * CHUNK).min(length));
        let file = self.add_frames(kind, &input, Chunks::All, &tell)?;
        source.check_unwritten()?;
        Ok(file)
    }

    /// Adds the memory that the VM touches first once more, as it is after all deltas.
    fn add_working_set(&mut self, memory: &PackedMemory, set: &WorkingSet) -> Result<(), OciError> {
        let length = memory.len();
        let chunks_in = |range: &Range<u64>| range.start / CHUNK..chunks_of(range.end);
        let chunks: Vec<u64> =
            set.in_units(CHUNK, length).ranges().iter().flat_map(chunks_in).collect();
        let reader = || {
            let mut windows = memory.windows(TOGETHER)?;
            Ok(move |offset: u64, to: &mut [u8]| memory.read_by(&mut windows, offset, to))
        };
        let (count, chunk) = (chunks.len() as u64, |number: u64| chunks[number as usize]);
        let input = Input { length, count, chunk: &chunk, reader: &reader };
        self.add_frames(LayerKind::WorkingSet, &input, Chunks::Some, &|_| ()).map(drop)
    }

    fn add_manifest(&mut self, config: &VmConfig) -> Result<Digest, OciError> {
        let config = self.add(CONFIG, &json(config))?;
        let manifest = Manifest::new(config, self.layers.clone());
        Ok(self.add(MANIFEST, &json(&manifest))?.digest)
    }

    fn finish(self, manifest: Digest, tag: Option<&str>) -> Result<(), OciError> {
        let Self { folder, blobs, .. } = self;
        let manifest = Descriptor::new(MANIFEST, manifest, blobs[&manifest].size);
        let index = json(&ImageIndex::of_one(manifest, tag));
        let mut files: Vec<(String, NewFile)> = Vec::new();
        for (name, bytes) in [("oci-layout", LAYOUT.as_bytes()), ("index.json", &index)] {
            let mut file = folder.file()?;
            file.write_all(bytes).map_err(|source| folder.refused(source))?;
            files.push((name.to_owned(), file));
        }
        let blobs = blobs.into_iter();
        files.extend(blobs.map(|(digest, blob)| (blob_name(&digest), blob.file)));
        folder.finish(files)
    }
}

fn json(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("documents of names and numbers are written to memory")
}
