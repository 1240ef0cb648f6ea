//! Checkpoints on which a delta follows: a folder with all memory, and folders with deltas since.
//!
//! A memory file does not name its state, because it is a stock snapshot's. But the file beside it
//! contains the state of the VM's devices at the same moment. This state never repeats, because it
//! contains the registers and clocks. So a hash of it is the ID of the memory's state.

use std::fs::File;
use std::path::{Path, PathBuf};

use hugekit_delta::{Chain, DeltaError, StateId};
use hugekit_sys::input;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::output::{OutputKind, STATE};

/// Bytes that the state of a VM's devices has at most: Firecracker's has some ten thousand.
pub(crate) const LONGEST_STATE: u64 = 64 << 20;

/// Returns the ID of the state of a memory file, if the file is `memory` in a checkpoint's folder.
/// Deltas of later checkpoints begin with this state. `None` for other files.
#[must_use]
pub fn state_of(memory: &Path) -> Option<StateId> {
    let is_memory = memory.file_name().is_some_and(|name| name == OutputKind::Full.file_name());
    let state = is_memory.then(|| input::open(&memory.with_file_name(STATE)).ok())??;
    Some(state_id(&input::read(&state, LONGEST_STATE).ok()?))
}

/// The name of the memory that was saved with a state of devices.
pub(crate) fn state_id(state: &[u8]) -> StateId {
    let hash = blake3::hash(state);
    let bytes = hash.as_bytes().first_chunk().expect("a hash has 32 bytes");
    StateId::from_bytes(*bytes).expect("no state is known whose hash begins with 16 zeroes")
}

/// Returns the chain of these checkpoints, beginning with the oldest; `None` if there are none.
pub(crate) fn chain(folders: &[PathBuf], bytes: u64) -> Result<Option<Chain>, CheckpointError> {
    let Some(first) = folders.first() else { return Ok(None) };
    let mut deltas: Vec<File> = Vec::new();
    let memory = first.join(OutputKind::Full.file_name());
    let state = state_of(&memory);
    for folder in &folders[usize::from(state.is_some())..] {
        let path = folder.join(OutputKind::Delta.file_name());
        deltas.push(input::open(&path).map_err(|error| refused(&path, error.into()))?);
    }
    let chain = match state {
        Some(state) => input::open(&memory)
            .map_err(DeltaError::from)
            .and_then(|raw| Chain::resume_raw(&raw, state, deltas)),
        None => Chain::resume(deltas),
    };
    let chain = chain.map_err(|source| refused(first, source))?;
    match chain.length() {
        length if length == bytes => Ok(Some(chain)),
        length => Err(refused(first, DeltaError::OtherLength { delta: bytes, state: length })),
    }
}

fn refused(path: &Path, source: DeltaError) -> CheckpointError {
    CheckpointError::Previous { path: path.to_owned(), source }
}
