//! The memory of which states are saved.

#![allow(unsafe_code)]

use std::slice;
use std::sync::atomic::AtomicU64;

use crate::measure::LabError;
use crate::measure::workloads::anonymous::{Anonymous, Pages};

/// Memory of which every page was written.
pub(super) fn written(pages: Pages, len: usize) -> Result<Anonymous, LabError> {
    let mut memory = Anonymous::new(pages, len)?;
    let mut random = fastrand::Rng::with_seed(1969);
    // Nothing that is alike, as values of programs are not.
    for word in memory.bytes().chunks_exact_mut(size_of::<u64>()) {
        word.copy_from_slice(&random.u64(..).to_ne_bytes());
    }
    if pages == Pages::Thp {
        put_together(&mut memory);
    }
    Ok(memory)
}

/// Memory that is to be on huge pages is, where the kernel has taken them apart or found none at the faults.
pub(super) fn put_together(memory: &mut Anonymous) {
    // SAFETY: private memory of our own.
    unsafe { hugekit::snapshot::collapse(&raw const *memory.bytes()) };
}

/// Memory as several threads write it, as long as it is there.
pub(super) fn words(memory: &mut Anonymous) -> &'static [AtomicU64] {
    let bytes = memory.bytes();
    // SAFETY: mapped at a multiple of a page; each user of it here has ended before the memory is dropped, and other
    // borrows of it are for reading by the kernel, from a snapshot.
    unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<u64>()) }
}
