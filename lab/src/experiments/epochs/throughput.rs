//! What a writer at full speed pays for it that its writes are noted: by an epoch, granule by granule, and by the
//! kernel, page by page.
//!
//! One sample begins where nothing is written yet, as right after a state was saved: as many stores of 64 bytes as there
//! are pages of 4 KiB, anywhere, each of them timed in its sum.

#![allow(unsafe_code)]

use std::ptr::slice_from_raw_parts;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::measure::LabError;
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use crate::measure::workloads::dirty_pages::DirtyPages;
use crate::record::Unit;
use hugekit::Snapshot;
use hugekit_machine::size::Size;

use super::memory::{put_together, words, written};

const LINE: usize = 64;
const WORDS: usize = LINE / size_of::<u64>();

/// The mechanism that notes writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notes {
    None,
    Epoch,
    SoftDirty,
    WpAsync,
}

const SUBJECTS: [(&str, Notes, Pages); 7] = [
    ("soft-dirty", Notes::SoftDirty, Pages::Base),
    ("wp-async", Notes::WpAsync, Pages::Base),
    ("epoch", Notes::Epoch, Pages::Thp),
    ("wp-async-thp", Notes::WpAsync, Pages::Thp),
    ("epoch-base", Notes::Epoch, Pages::Base),
    ("unnoted", Notes::None, Pages::Thp),
    ("unnoted-base", Notes::None, Pages::Base),
];

/// Baseline and subject of each comparison, and what is not alike.
const COMPARED: [(&str, &str, Option<&str>); 6] = [
    ("soft-dirty", "epoch", Some(HUGE)),
    ("wp-async", "epoch", Some(HUGE)),
    ("wp-async-thp", "epoch", None),
    ("wp-async", "epoch-base", None),
    ("unnoted", "epoch", Some(UNNOTED)),
    ("unnoted-base", "epoch-base", Some(UNNOTED)),
];

const HUGE: &str = "the kernel's notes are of base pages, which is what they are exact on; the epoch's memory is on huge pages";

const UNNOTED: &str = "nothing is noted: what the stores cost by themselves";

pub(super) fn measure(state: usize, rounds: Rounds<'_>) -> Result<Part, LabError> {
    rounds.observer.begin(&format!("epochs throughput {}", Size(state)));
    let (mut huge, mut base) = (written(Pages::Thp, state)?, written(Pages::Base, state)?);
    let soft_dirty = DirtyPages::by_soft_dirty(base.addresses()).map_err(LabError::notes)?;
    let has_soft_dirty = soft_dirty.is_some();
    let can = |(_, notes, _): &(&str, Notes, Pages)| *notes != Notes::SoftDirty || has_soft_dirty;
    let subjects: Vec<_> = SUBJECTS.into_iter().filter(can).collect();
    let lines = drawn(state);
    let names: Vec<_> = subjects.iter().map(|(name, ..)| format!("{name}/throughput")).collect();
    let mut part = rounds.measure("epochs", Unit::StoresPerSecond, &names, |index| {
        let (_, notes, pages) = subjects[index];
        if pages == Pages::Base {
            return sample(notes, &mut base, &lines);
        }
        // The kernel's notes take huge pages apart.
        put_together(&mut huge);
        sample(notes, &mut huge, &lines)
    })?;
    for (baseline, subject, moved) in COMPARED {
        part.compare((baseline, subject), "throughput", moved);
    }
    if !has_soft_dirty {
        let left_out = "soft-dirty left out: this kernel is built without CONFIG_MEM_SOFT_DIRTY";
        part.notices.push(left_out.to_owned());
    }
    Ok(part)
}

/// Lines anywhere, as many as there are pages of 4 KiB.
fn drawn(state: usize) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(1969);
    (0..state / 4096).map(|_| random.u32(..(state / LINE) as u32)).collect()
}

/// Stores a second, from where nothing is written yet.
fn sample(notes: Notes, memory: &mut Anonymous, lines: &[u32]) -> Result<f64, LabError> {
    let (words, addresses) = (words(memory), memory.addresses());
    let all = slice_from_raw_parts(memory.bytes().as_ptr(), addresses.len());
    let noted = match notes {
        Notes::SoftDirty => DirtyPages::by_soft_dirty(addresses).map_err(LabError::notes)?,
        Notes::WpAsync => DirtyPages::by_wp_async(addresses).map_err(LabError::notes)?,
        Notes::None | Notes::Epoch => None,
    };
    noted.iter().try_for_each(DirtyPages::begin).map_err(LabError::notes)?;
    let epoch = (notes == Notes::Epoch).then(|| {
        // SAFETY: the memory outlives the epoch, and its one writer is this thread.
        unsafe { Snapshot::builder().first_epoch(all) }?.deliver(|_, _| Ok(()))
    });
    let _epoch = epoch.transpose()?;
    let began = Instant::now();
    store(words, lines);
    Ok(lines.len() as f64 / began.elapsed().as_secs_f64())
}

fn store(words: &[AtomicU64], lines: &[u32]) {
    for &line in lines {
        for word in &words[line as usize * WORDS..][..WORDS] {
            word.store(u64::from(line), Ordering::Relaxed);
        }
    }
}
