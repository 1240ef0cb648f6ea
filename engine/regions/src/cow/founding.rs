//! The first region of a group. Threads may see all of it, or its folios must be cleared or populated first.
//!
//! No user knows the addresses yet.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::fork_support::Protection;
use super::frames::Reservation;
use super::group::ForkGroup;
use super::handle::CowHandle;
use super::mapping::{CowMapping, MappingWords};
use super::slot::{Presence, Slot};
use super::tables::Tables;
use super::whole_region::WholeRegion;
use crate::pool::{Content, FaultError, Mapped};
use hugekit_sys::mapping::SharedMapping;

/// The first region, until it has joined the group.
#[derive(Debug)]
pub(crate) struct FoundingRegion {
    mapping: Option<SharedMapping>,
    words: Option<MappingWords>,
    /// True if threads may see all of it.
    is_ready: bool,
}

impl FoundingRegion {
    /// Adds the region to a group that has no region yet. `contents` lists the contents of its folios if threads may
    /// not see all of them.
    pub(crate) fn join(
        group: &Arc<ForkGroup>,
        mapped: Mapped,
        contents: Option<&[(usize, Content)]>,
    ) -> Result<CowHandle, (Mapped, FaultError)> {
        let (extent, mapping) = mapped.into_parts();
        let (folios, addresses) = (extent.folios(), mapping.addresses());
        let start = addresses.start;
        let held = contents.map_or_else(|| vec![(folios.len(), Content::Dirty)], <[_]>::to_vec);
        let pieces = vec![(extent, held)];
        let made = group.memory_for(&pieces, mapping.len(), true);
        let made = made.map_err(|errno| refused("mmap", errno)).and_then(|(private, words)| {
            let registration = group.register(addresses)?;
            Ok((group.reservation(&pieces, private), words, registration))
        });
        group.folios.add(pieces.into_iter().map(|(extent, _)| extent));
        let mut founding =
            Self { mapping: Some(mapping), words: None, is_ready: contents.is_none() };
        let begun = made.and_then(|(mut reservation, words, registration)| {
            founding.words = Some(words);
            group.alone_with_room(reservation.len(), |tables| {
                founding.begin(group, tables, &mut reservation)
            })?;
            Ok(registration)
        });
        match begun {
            Ok(registration) => Ok(CowHandle::new(Arc::clone(group), start, registration)),
            Err(error) => {
                let mapping = founding.mapping.take().expect("not the group's after an error");
                Err((Mapped::of_parts(group.folios.withdraw(&folios), mapping), error))
            }
        }
    }

    /// Fills the tables. The calling thread has exclusive access to the gate, so a thread that faults there waits.
    fn begin(
        &mut self,
        group: &ForkGroup,
        tables: &mut Tables,
        reservation: &mut Reservation,
    ) -> Result<(), FaultError> {
        let mapping = self.mapping.as_ref().expect("not the group's yet");
        // The threads that serve the group may have ended already. Then an access would wait for ever.
        let is_served = !group.unserved.load(Ordering::SeqCst);
        let is_watched = is_served && self.begin_to_watch(group, mapping)?;
        let (mapping, words) = (self.mapping.take(), self.words.take());
        let (mapping, words) = mapping.zip(words).expect("made for this region");
        let reserve = tables.frames.add(reservation);
        let id = tables.mappings.next_id();
        let mapping = CowMapping::new(id, mapping, words, reserve, group.granule_bytes);
        mapping.counts().registered.store(is_watched, Ordering::Relaxed);
        tables.mappings.insert(mapping);
        let is_ready = self.is_ready;
        tables.show_reserve(id, |frames, frame| {
            if is_ready { Slot::Exclusive(Presence::InPlace) } else { frames.fresh(frame) }
        });
        if !is_served {
            let whole = WholeRegion::new(group, tables, id);
            whole.supply_all();
            whole.leave_if_own();
        }
        tables.check();
        Ok(())
    }

    /// Registers the region. Returns true if all of it is registered for writes.
    fn begin_to_watch(
        &self,
        group: &ForkGroup,
        mapping: &SharedMapping,
    ) -> Result<bool, FaultError> {
        let addresses = mapping.addresses();
        let is_watched = match self.is_ready {
            true if group.protection() != Protection::Marks => return Ok(false),
            true => group.descriptor.watch(&addresses, false).map(|()| true),
            false => group
                .descriptor
                .watch_unready(&addresses)
                .map(|()| group.descriptor.watches_writes()),
        };
        let is_watched = is_watched.map_err(|errno| refused("UFFDIO_REGISTER", errno))?;
        if !self.is_ready {
            let unmapped = group.unmap_what_came_early(mapping);
            unmapped.map_err(|errno| refused("madvise", errno))?;
        }
        Ok(is_watched)
    }
}

/// Makes the error of a call that the kernel refused.
fn refused(call: &'static str, errno: Errno) -> FaultError {
    FaultError::Kernel { call, source: errno.into() }
}
