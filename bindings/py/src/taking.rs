//! Arrays at one moment: arrays on a region by a fork of it, other memory as the caller wants it, and what cannot be
//! protected by a copy at once.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::ptr::slice_from_raw_parts;
use std::sync::Arc;

use hugekit::SnapshotError;
use hugekit::fault::FaultMode;
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::copied::{self, CopiedBytes};
use crate::errors::{Raised, attempted};
use crate::region::Region;
use crate::strided::{ArrayMemory, GAPS};

/// Arrays of one moment.
pub(crate) struct Taken<T> {
    /// The bytes of each array, in the order of the arrays.
    pub(crate) arrays: Vec<TakenBytes>,
    /// The result for all arrays that are [`Made`](TakenBytes::Made), in their order.
    pub(crate) made: T,
}

/// The bytes of one array.
pub(crate) enum TakenBytes {
    /// It has none.
    Nothing,
    /// The part of a snapshot of its region that begins at this offset.
    OfRegion(Arc<hugekit::Snapshot>, usize),
    /// A copy that was made at once, and the reason.
    Copied(CopiedBytes, String),
    Made,
}

/// Takes arrays at one moment: the GIL is held, and nothing of Python runs meanwhile. `make` protects the ranges of arrays
/// that are on no region; it is called again with fewer ranges if some cannot be protected, and these are copied. With
/// `strict`, that is an error.
///
/// The buffers keep the ranges where they are. Python's threads have their stacks elsewhere, and do not block SIGBUS, which
/// is checked for all threads there are. That no code takes SIGBUS from us is checked now, and documented for later; EFAULT
/// is an OSError. A program that frees the memory of a tensor meanwhile, by resizing it, unmaps it or gives it to others,
/// which the contract of a snapshot permits.
pub(crate) fn taken<T>(
    py: Python<'_>,
    memories: &[&ArrayMemory],
    fault_mode: Option<FaultMode>,
    strict: bool,
    make: impl Fn(&[*const [u8]]) -> Result<T, SnapshotError>,
) -> PyResult<Taken<T>> {
    let mut taking = Taking::new(memories);
    taking.take_regions(py, fault_mode, strict)?;
    let made = taking.make(py, fault_mode, strict, make)?;
    let arrays = taking.copied()?;
    copied::tell_noted(py);
    Ok(Taken { arrays, made })
}

/// The decision about one array.
enum Plan {
    Nothing,
    OfRegion(Arc<hugekit::Snapshot>, usize),
    Copy(String),
    Make,
}

/// Arrays that are being taken.
struct Taking<'a> {
    memories: &'a [&'a ArrayMemory],
    plans: Vec<Plan>,
}

impl<'a> Taking<'a> {
    fn new(memories: &'a [&'a ArrayMemory]) -> Self {
        let plan = |memory: &&ArrayMemory| match memory.whole() {
            _ if memory.len() == 0 => Plan::Nothing,
            Some(_) => Plan::Make,
            None => Plan::Copy(GAPS.to_owned()),
        };
        Self { memories, plans: memories.iter().map(plan).collect() }
    }

    /// Takes a snapshot of each region that has arrays.
    fn take_regions(
        &mut self,
        py: Python<'_>,
        fault_mode: Option<FaultMode>,
        strict: bool,
    ) -> PyResult<()> {
        let mut of_regions = HashMap::new();
        for (memory, plan) in self.memories.iter().zip(&mut self.plans) {
            let (Plan::Make, Some(buffer)) = (&plan, memory.whole()) else { continue };
            let start = buffer.start().addr();
            let Some(region) = Region::around(start, buffer.len()) else { continue };
            *plan = match within(py, &region, start, fault_mode, &mut of_regions)? {
                Ok((snapshot, offset)) => Plan::OfRegion(snapshot, offset),
                Err(error) => Plan::Copy(copied::reason(error, fault_mode, strict)?),
            };
        }
        Ok(())
    }

    fn make<T>(
        &mut self,
        py: Python<'_>,
        fault_mode: Option<FaultMode>,
        strict: bool,
        make: impl Fn(&[*const [u8]]) -> Result<T, SnapshotError>,
    ) -> PyResult<T> {
        loop {
            let planned = self.memories.iter().zip(&self.plans);
            let ranges: Vec<_> = planned
                .filter(|(_, plan)| matches!(plan, Plan::Make))
                .filter_map(|(memory, _)| memory.whole().map(bytes_of))
                .collect();
            match attempted(py, || make(&ranges))? {
                Ok(made) => return Ok(made),
                Err(error) if strict => return Err(Raised::from(error).into()),
                Err(error) => {
                    let addresses: Vec<_> =
                        ranges.iter().map(|range| addresses_of(*range)).collect();
                    let reasons = copied::reasons(&addresses, error, fault_mode)?;
                    let plans = self.plans.iter_mut().filter(|plan| matches!(plan, Plan::Make));
                    for (plan, reason) in plans.zip(reasons) {
                        if let Some(reason) = reason {
                            *plan = Plan::Copy(reason);
                        }
                    }
                }
            }
        }
    }

    /// Copies the arrays that must be copied, at the same moment.
    fn copied(self) -> PyResult<Vec<TakenBytes>> {
        let of = |(plan, memory): (Plan, &&ArrayMemory)| {
            Ok(match (plan, memory) {
                (Plan::Nothing, _) => TakenBytes::Nothing,
                (Plan::OfRegion(snapshot, offset), _) => TakenBytes::OfRegion(snapshot, offset),
                (Plan::Make, _) => TakenBytes::Made,
                (Plan::Copy(reason), ArrayMemory::Strided(strided)) => {
                    TakenBytes::Copied(strided.copy()?, reason)
                }
                (Plan::Copy(reason), ArrayMemory::Whole(buffer)) => {
                    // SAFETY: the buffer keeps the memory where it is.
                    TakenBytes::Copied(unsafe { CopiedBytes::of(bytes_of(buffer)) }?, reason)
                }
            })
        };
        self.plans.into_iter().zip(self.memories).map(of).collect()
    }
}

fn bytes_of(buffer: &Buffer) -> *const [u8] {
    slice_from_raw_parts(buffer.start().cast_const(), buffer.len())
}

fn addresses_of(memory: *const [u8]) -> Range<usize> {
    let start = memory.cast::<u8>().addr();
    start..start + memory.len()
}

/// A snapshot of a region, and where in it an address is.
pub(crate) fn within(
    py: Python<'_>,
    region: &Region,
    start: usize,
    fault_mode: Option<FaultMode>,
    of_regions: &mut HashMap<usize, Arc<hugekit::Snapshot>>,
) -> PyResult<Result<(Arc<hugekit::Snapshot>, usize), SnapshotError>> {
    let base = region.shared().as_ptr().addr();
    let snapshot = match of_regions.entry(base) {
        Entry::Occupied(known) => Arc::clone(known.get()),
        Entry::Vacant(place) => {
            let take = || {
                let builder = region.shared().fork_builder();
                let fault_mode = fault_mode.unwrap_or(copied::BY_DEFAULT);
                hugekit::Snapshot::of_region(builder.fault_mode(fault_mode))
            };
            match attempted(py, take)? {
                Ok(snapshot) => Arc::clone(place.insert(Arc::new(snapshot))),
                Err(error) => return Ok(Err(error)),
            }
        }
    };
    Ok(Ok((snapshot, start - base)))
}
