//! Loading: the image and its deltas are applied to the memory, one after the other.
//!
//! A last delta that is damaged or cut off is renamed, because a disk that loses power may leave it
//! so. Damage anywhere else, or a missing file, ends the start and changes no file.

use std::io::BufReader;
use std::iter;

use anyhow::{Context, Result, ensure};
use hugekit_delta::{Chain, DeltaError, Reader, StateId, apply};

use super::folder::{Folder, IMAGE, PARTIAL, delta, deltas};
use super::save::Files;
use super::store::Store;

/// Loads the last state, if there is one. Returns the files that the next save can follow on.
pub fn load(folder: &Folder, store: &mut Store) -> Result<Option<Files>> {
    if !folder.path(IMAGE).exists() {
        ensure!(
            deltas(&folder.path(""))?.is_empty(),
            "{IMAGE} is missing, and its deltas are there"
        );
        return Ok(None);
    }
    let files = load_files(folder, store).context("nothing is changed or served")?;
    if folder.path(PARTIAL).exists() {
        eprintln!("{PARTIAL} is of a save that was interrupted, and not loaded");
    }
    eprintln!("loaded {} keys", store.len);
    Ok(files)
}

fn load_files(folder: &Folder, store: &mut Store) -> Result<Option<Files>> {
    let image = BufReader::new(folder.read(IMAGE)?);
    let saved = Reader::new(image).context(IMAGE)?.header().length;
    let memory = store.bytes().len() as u64;
    ensure!(saved <= memory, "a store of {saved} bytes was saved: --memory is {memory}");
    let bytes = &mut store.image_mut()[..saved as usize];
    // Brings the memory from one state to the next. Returns that, and the length of the file.
    let mut apply_file = |name: &str, state: Option<StateId>| -> Result<(StateId, u64)> {
        let file = folder.read(name)?;
        let len = file.metadata()?.len();
        let state = apply(bytes, state, &mut BufReader::new(file));
        Ok((state.with_context(|| name.to_owned())?, len))
    };
    let mut applied = vec![apply_file(IMAGE, None)?];
    let (image, _) = applied[0];
    let all = deltas(&folder.path(""))?.into_iter();
    let (own, old): (Vec<_>, Vec<_>) = all.partition(|(its, _)| *its == image);
    for (image, number) in old {
        eprintln!("{} is out of date, and not loaded", delta(image, number));
    }
    for &(_, number) in &own {
        let (name, next) = (delta(image, number), applied.len() as u64);
        ensure!(number == next, "{} is missing, and {name} is there", delta(image, next));
        match apply_file(&name, applied.last().map(|(state, _)| *state)) {
            Ok(file) => applied.push(file),
            Err(error) if number == own.len() as u64 && is_torn(&error) => {
                folder.rename(&name, &format!("{name}.damaged"))?;
                eprintln!("{error:#}: not loaded, and renamed to {name}.damaged");
            }
            Err(error) => return Err(error),
        }
    }
    store.adopt()?;
    if saved < memory {
        // The next save begins with an image of the larger memory.
        return Ok(None);
    }
    let deltas = (1..applied.len() as u64).map(|number| delta(image, number));
    let names = iter::once(IMAGE.to_owned()).chain(deltas);
    let files: Result<Vec<_>> = names.map(|name| folder.read(&name)).collect();
    Ok(Some(Files { chain: Chain::resume(files?)?, saved: applied }))
}

fn is_torn(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(DeltaError::Damaged { .. } | DeltaError::Truncated { .. } | DeltaError::NoDelta)
    )
}
