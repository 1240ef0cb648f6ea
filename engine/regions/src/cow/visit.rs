//! A visit to slots of a region, of a thread that shares the gate and claims the slots.

use std::ops::Range;

use super::apply::MappingSlot;
use super::error::Refused;
use super::fork_support::ForkSupport;
use super::group::ForkGroup;
use super::guard::{SlotGuard, SlotGuards};
use super::mapping::CowMapping;
use super::tables::Tables;
use super::whole_region::WholeRegion;
use hugekit_sys::thread::SignalsBlocked;

/// The place of the visit in the group: an address of the region. If no region has it any more, nothing is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visit<'a> {
    pub(super) group: &'a ForkGroup,
    pub(super) address: usize,
    pub(super) blocked: &'a SignalsBlocked,
}

impl Visit<'_> {
    /// Does something about the slot that has the address, and about all of its region if the kernel refuses that:
    /// to map all of it anew takes fewer mappings in the end, and nothing of the descriptor, of which a system-call
    /// filter may refuse everything. That does not help where memory has failed or is short.
    pub(super) fn slot(
        &self,
        act: impl Fn(&Tables, MappingSlot<'_>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let Self { group, address, blocked } = *self;
        {
            let tables = group.gate.share(blocked);
            let Tables { mappings, frames } = &*tables;
            let Some(mapping) = mappings.at(address) else { return Ok(()) };
            let slot = mapping.slot_at(address);
            let guard = &SlotGuard::claim(&group.slots, mappings, slot, blocked);
            match act(&tables, MappingSlot { group, guard, mapping, frames }) {
                Err(refused) if refused.is_for_mappings() => {}
                done => return done,
            }
        }
        self.once_exclusive(|tables, mapping| {
            let (frames, slot) = (&tables.frames, mapping.slot_at(address));
            let guard = &SlotGuard::claim(&group.slots, &tables.mappings, slot, blocked);
            act(tables, MappingSlot { group, guard, mapping, frames })
        })
    }

    /// Like [`slot`](Self::slot), for [`BATCH_SLOTS`](super::guard::BATCH_SLOTS) slots of the region at most.
    pub(super) fn slots(
        &self,
        slots: Range<usize>,
        act: impl Fn(&Tables, &CowMapping, &SlotGuards<'_>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let Self { group, address, blocked } = *self;
        {
            let tables = group.gate.share(blocked);
            let Some(mapping) = tables.mappings.at(address) else { return Ok(()) };
            let guards = SlotGuards::claim(&group.slots, &tables.mappings, slots.clone(), blocked);
            match act(&tables, mapping, &guards) {
                Err(refused) if refused.is_for_mappings() => {}
                done => return done,
            }
        }
        self.once_exclusive(|tables, mapping| {
            let guards = SlotGuards::claim(&group.slots, &tables.mappings, slots, blocked);
            act(tables, mapping, &guards)
        })
    }

    /// Does something about the region at the address, after a mapping was wanting and all of it was made its own.
    #[cold]
    #[inline(never)] // what it needs of a signal stack is not there for each fault
    fn once_exclusive(
        &self,
        act: impl FnOnce(&Tables, &CowMapping) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let Self { group, address, blocked } = *self;
        let mut tables = group.gate.alone(blocked);
        let Some(id) = tables.mappings.at(address).map(CowMapping::id) else { return Ok(()) };
        if WholeRegion::new(group, &mut tables, id).make_exclusive().is_err() {
            // The process has no mapping left at all, but for those kept for this.
            group.fork_support().into_iter().for_each(ForkSupport::release_spare_mappings);
            WholeRegion::new(group, &mut tables, id).make_exclusive()?;
        }
        // No other thread has a slot now, because all share the gate for it.
        act(&tables, tables.mappings.get(id))
    }
}
