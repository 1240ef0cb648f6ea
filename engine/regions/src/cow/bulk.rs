//! Many slots of a region, by several threads: makes them exclusive, enters them into the page tables, clears them,
//! or holds back their writes.

use std::ops::Range;

use super::apply::MappingSlot;
use super::batch::SlotBatch;
use super::descriptor::SharedReads;
use super::error::Refused;
use super::guard::BATCH_SLOTS;
use super::handle::CowHandle;
use super::slot::Event;
use super::tables::Tables;
use super::visit::Visit;
use hugekit_bulk::PopulateOptions;
use hugekit_bulk::parallel::{JobError, Report, Threads};
use hugekit_bulk::populate::PopulateError;
use hugekit_sys::error_chain;
use hugekit_sys::thread::without_signals;

/// The slots of one region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bulk<'a>(pub(super) &'a CowHandle);

impl Bulk<'_> {
    /// For each batch of the slots that contain `bytes`: serves the event that `first` returns for each slot, one
    /// slot at a time, so a waiting thread waits for one copy at most. Then calls `then` with the whole batch, which
    /// usually copies nothing. Several threads process the batches.
    fn each(
        &self,
        bytes: Range<usize>,
        options: &PopulateOptions<'_>,
        first: impl Fn(MappingSlot<'_>) -> Option<Event> + Sync,
        then: impl Fn(SlotBatch<'_>, Range<usize>) -> Result<(), Refused> + Sync,
    ) -> Result<Report, JobError<PopulateError>> {
        let (group, granule) = (&*self.0.group, self.0.group.granule_bytes);
        let see = |_: &Tables, at: MappingSlot<'_>| match first(at) {
            Some(event) => at.serve_event(event, None),
            None => Ok(()),
        };
        self.in_batches(bytes, options, |some| {
            for slot in some.clone() {
                let address = self.0.start + slot * granule;
                without_signals(|blocked| Visit { group, address, blocked }.slot(see))?;
            }
            self.with_batch(some.clone(), |batch| then(batch, some.clone()))?;
            Ok(())
        })
    }

    /// Calls `act` with each batch of the slots that contain `bytes`: at most [`BATCH_SLOTS`] at a time, in pieces on
    /// several threads.
    fn in_batches(
        &self,
        bytes: Range<usize>,
        options: &PopulateOptions<'_>,
        act: impl Fn(Range<usize>) -> Result<(), PopulateError> + Sync,
    ) -> Result<Report, JobError<PopulateError>> {
        let granule = self.0.group.granule_bytes;
        let start = bytes.start - bytes.start % granule;
        let len = bytes.end.max(bytes.start).next_multiple_of(granule) - start;
        let mapped = self.0.look(|_, mapping| mapping.mapping.len());
        let job = options.job(len).min_chunk(granule.max(2 << 20));
        let all = job.run(|chunk| {
            let mut slots = (start + chunk.start) / granule..(start + chunk.end) / granule;
            while !slots.is_empty() {
                let some = slots.start..slots.end.min(slots.start + BATCH_SLOTS);
                slots.start = some.end;
                act(some)?;
            }
            Ok(())
        });
        let all = all.map(|mut report| {
            report.bytes = len.min(mapped - start);
            report
        });
        all.map_err(|error| error.shifted_into(start, bytes))
    }

    /// Calls `act` with a batch of slots, which this thread has claimed.
    fn with_batch(
        &self,
        slots: Range<usize>,
        act: impl Fn(SlotBatch<'_>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let (group, address) = (&*self.0.group, self.0.start);
        without_signals(|blocked| {
            Visit { group, address, blocked }.slots(slots.clone(), |tables, mapping, guards| {
                act(SlotBatch::new(group, tables, mapping, guards))
            })
        })
    }

    /// Holds back writes to all slots except some, on several threads, before a fork takes exclusive access to the
    /// gate. Under exclusive access, the fork protects only slots that were written since. So a writer waits for a
    /// few slots, and not for all. If the kernel refuses, the slots are not protected, and the table says so.
    pub(super) fn protect_ahead(&self, bytes: usize, but: &[usize], threads: Threads) {
        let _ = self.in_batches(0..bytes, &by(threads), |some| {
            let _ = self.with_batch(some.clone(), |batch| {
                batch.protect_some(some.clone(), but);
                Ok(())
            });
            Ok(())
        });
    }

    /// Makes every slot that contains `bytes` exclusive.
    pub(crate) fn own(
        &self,
        bytes: Range<usize>,
        threads: Threads,
    ) -> Result<Report, JobError<PopulateError>> {
        let separate = |_: MappingSlot<'_>| Some(Event::Separate);
        self.each(bytes, &by(threads), separate, |batch, slots| {
            batch.own_all(slots.clone())?;
            batch.enter(slots)
        })
    }

    /// Enters every slot that contains `bytes` into the page tables. Shared slots are entered for reads if the kernel
    /// can do so.
    pub(crate) fn prefault(
        &self,
        bytes: Range<usize>,
        options: &PopulateOptions<'_>,
    ) -> Result<Report, JobError<PopulateError>> {
        let group = &*self.0.group;
        let own_unreadable = |at: MappingSlot<'_>| {
            let slot = at.entry().slot;
            if slot.is_unready() {
                return Some(Event::Separate);
            }
            let is_read_by_us = !slot.is_exclusive() && !slot.is_in_place();
            let is_copied = is_read_by_us && group.shared_reads == SharedReads::Copy;
            (slot.is_displaced() || slot.is_lost() || is_copied).then_some(Event::Own)
        };
        self.each(bytes, options, own_unreadable, |batch, slots| {
            for slot in slots.clone() {
                let at = batch.at(slot);
                own_unreadable(at).map_or(Ok(()), |event| at.serve_event(event, None))?;
            }
            batch.enter(slots)
        })
    }

    /// Clears or populates all slots that are not ready, and shows them to no thread.
    pub(crate) fn supply(
        &self,
        bytes: Range<usize>,
        threads: Threads,
    ) -> Result<(), JobError<PopulateError>> {
        let unready = |at: MappingSlot<'_>| at.entry().slot.is_unready().then_some(Event::Separate);
        self.each(bytes, &by(threads), unready, |_, _| Ok(())).map(|_| ())
    }

    /// Makes the memory ready to be seen through the file: bytes of an earlier owner and released bytes are cleared
    /// now, and released bytes are cleared at once from now on.
    pub(crate) fn show_through_file(&self, bytes: usize, threads: Threads) {
        self.0.group.clear_at_once();
        if let Err(error) = self.supply(0..bytes, threads) {
            hugekit_sys::events::warn!(
                "not all of a region is ready in its file: {}",
                error_chain(&error)
            );
        }
    }

    /// Sets bytes to zero, for this region only. Whole slots are cleared at once, or at the next access.
    pub(crate) fn release(&self, bytes: Range<usize>, at_once: bool) -> Result<(), PopulateError> {
        let (group, granule) = (&*self.0.group, self.0.group.granule_bytes);
        let mut next = bytes.start;
        while next < bytes.end {
            let slot = next / granule;
            let end = bytes.end.min((slot + 1) * granule);
            let part = next - slot * granule..end - slot * granule;
            let release = |_: &Tables, at: MappingSlot<'_>| at.release(part.clone(), at_once);
            let address = self.0.start + next;
            without_signals(|blocked| Visit { group, address, blocked }.slot(release))?;
            next = end;
        }
        Ok(())
    }
}

fn by(threads: Threads) -> PopulateOptions<'static> {
    PopulateOptions::new().threads(threads)
}
