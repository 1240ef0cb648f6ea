//! A VM in a layout on disk, which nothing is unpacked of.

use std::path::{Path, PathBuf};

use super::digest::Digest;
use super::document::{FramedLayer, Layers, VmConfig};
use super::error::OciError;
use super::framed::FramedFile;
use super::frames::{Chunks, MOST_FRAMES};
use super::layout::{LayoutFolder, Reference};
use super::memory::PackedMemory;
use crate::checkpoint::previous::state_id;

/// A packed VM that was opened.
///
/// The documents, the tables of frames, the deltas and the states are checked by then. The bytes of a frame are checked
/// whenever they are read.
#[derive(Debug)]
pub struct PackedVm {
    pub(crate) reference: Reference,
    pub(crate) folder: LayoutFolder,
    pub(crate) layers: Layers,
    pub(crate) config: VmConfig,
    pub(crate) memory: PackedMemory,
    /// The file of the VM's devices, and its name.
    pub(crate) state: Vec<u8>,
    state_digest: Digest,
}

impl PackedVm {
    /// Opens `LAYOUT` or `LAYOUT:TAG`. A layout with one image needs no tag.
    ///
    /// # Errors
    /// It is no layout with a packed VM, or something in it contradicts its digest, size or hash. At most 1 TiB of memory
    /// is accepted. A reader allocates about 48 bytes for each frame, and as much for each change of a delta.
    pub fn open(reference: &Path) -> Result<Self, OciError> {
        let reference = Reference::parse(reference);
        let folder = LayoutFolder::open(&reference.path)?;
        let (layers, config) = folder.image(reference.tag.as_deref())?;
        let mut most = MOST_FRAMES;
        let mut open = |layer: &FramedLayer, chunks| {
            // The blob has the bytes that its descriptor claims: they bound the number of frames.
            let (blob, digest) = (folder.blob(&layer.frames)?, layer.frames.digest);
            let table = folder.table(layer, chunks, most)?;
            most -= table.frames().len() as u64;
            Ok::<_, OciError>(FramedFile { table, blob, path: folder.path_of(&digest), digest })
        };
        let memory = open(&layers.saved[0].memory, Chunks::All)?;
        check_length(&memory, config.memory.bytes)?;
        let deltas = layers.saved[1..].iter().map(|saved| open(&saved.memory, Chunks::All));
        let deltas = deltas.collect::<Result<_, _>>()?;
        let set = layers.working_set.as_ref().map(|set| open(set, Chunks::Some)).transpose()?;
        set.as_ref().map_or(Ok(()), |set| check_length(set, config.memory.bytes))?;
        let first = folder.state(&layers.saved[0].state)?;
        let (state, state_digest) = match &layers.saved[1..] {
            [] => (first.clone(), layers.saved[0].state.digest),
            [.., last] => (folder.state(&last.state)?, last.state.digest),
        };
        let memory = PackedMemory::new(memory, deltas, state_id(&first))?.with_working_set(set);
        Ok(Self { reference, folder, layers, config, memory, state, state_digest })
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &VmConfig {
        &self.config
    }

    /// The file with the state of the VM's devices, which is a blob of the layout.
    #[must_use]
    pub fn state_path(&self) -> PathBuf {
        self.folder.path_of(&self.state_digest)
    }
}

fn check_length(file: &FramedFile, expected: u64) -> Result<(), OciError> {
    match file.table.length() {
        found if found == expected => Ok(()),
        found => Err(OciError::OtherMemory { digest: file.digest, found, expected }),
    }
}
