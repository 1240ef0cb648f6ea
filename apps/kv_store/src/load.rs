//! Loading: the image and its deltas are applied to the memory, one after the other.
//!
//! A last delta that is damaged or cut off is renamed, because a disk that loses power may leave it
//! so. Damage anywhere else, or a missing file, ends the start and changes no file.

use std::fs::File;
use std::io::BufReader;
use std::iter;

use anyhow::{Context, Result, ensure};
use hugekit_delta::{Chain, DeltaError, Reader, StateId, apply};

use super::folder::{Folder, IMAGE, PARTIAL, delta, deltas};
use super::save::Files;
use super::store::Store;

/// Loads the last state, if there is one. Returns the files that the next save can follow on.
pub fn load(folder: &Folder, store: &mut Store, now: u64) -> Result<Option<Files>> {
    if !folder.path(IMAGE).exists() {
        ensure!(
            deltas(&folder.path(""))?.is_empty(),
            "{IMAGE} is missing, and its deltas are there"
        );
        return Ok(None);
    }
    let files = load_image(folder, store, now).context("nothing is changed or served")?;
    if folder.path(PARTIAL).exists() {
        eprintln!("{PARTIAL} is of a save that was interrupted, and not loaded");
    }
    eprintln!("loaded {} keys", store.len);
    Ok(files)
}

fn load_image(folder: &Folder, store: &mut Store, now: u64) -> Result<Option<Files>> {
    let image = BufReader::new(File::open(folder.path(IMAGE))?);
    let saved = Reader::new(image).context(IMAGE)?.header().length;
    let memory = store.bytes().len();
    ensure!(saved <= memory as u64, "a store of {saved} bytes was saved: --memory is {memory}");
    let bytes = &mut store.image_mut()[..saved as usize];
    let (image, image_bytes) = apply_file(folder, IMAGE, bytes, None)?;
    let (count, delta_bytes) = apply_deltas(folder, image, bytes)?;
    store.adopt(now)?;
    if saved < memory as u64 {
        // The next save begins with an image of the larger memory.
        return Ok(None);
    }
    let names = iter::once(IMAGE.to_owned()).chain((1..=count).map(|n| delta(image, n)));
    let files: Result<Vec<_>, _> = names.map(|name| File::open(folder.path(&name))).collect();
    let chain = Chain::resume(files?)?;
    Ok(Some(Files { chain, image: Some(image), image_bytes, deltas: count, delta_bytes }))
}

/// Returns how many deltas were applied, and their bytes.
fn apply_deltas(folder: &Folder, image: StateId, memory: &mut [u8]) -> Result<(u64, u64)> {
    let (own, old): (Vec<_>, Vec<_>) =
        deltas(&folder.path(""))?.into_iter().partition(|(its, _)| *its == image);
    for (image, number) in old {
        eprintln!("{} is out of date, and not loaded", delta(image, number));
    }
    let (mut state, mut applied, mut total) = (image, 0, 0);
    for &(_, number) in &own {
        let (name, missing) = (delta(image, number), delta(image, applied + 1));
        ensure!(number == applied + 1, "{missing} is missing, and {name} is there");
        match apply_file(folder, &name, memory, Some(state)) {
            Ok((next, bytes)) => (state, applied, total) = (next, number, total + bytes),
            Err(error) if number == own.len() as u64 && is_torn(&error) => {
                folder.rename(&name, &format!("{name}.damaged"))?;
                eprintln!("{error:#}: not loaded, and renamed to {name}.damaged");
            }
            Err(error) => return Err(error),
        }
    }
    Ok((applied, total))
}

/// Brings the memory from one state to the next. Returns that, and the length of the file.
fn apply_file(
    folder: &Folder,
    name: &str,
    memory: &mut [u8],
    state: Option<StateId>,
) -> Result<(StateId, u64)> {
    let file = File::open(folder.path(name)).with_context(|| name.to_owned())?;
    let len = file.metadata()?.len();
    let state = apply(memory, state, &mut BufReader::new(file)).with_context(|| name.to_owned())?;
    Ok((state, len))
}

fn is_torn(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(DeltaError::Damaged { .. } | DeltaError::Truncated { .. } | DeltaError::NoDelta)
    )
}
