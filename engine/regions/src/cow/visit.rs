//! A visit to slots of a region: the thread shares the gate, and claims the slots.

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

/// The group, and an address of the region to visit. If no region has the address any more, the visit does nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visit<'a> {
    pub(super) group: &'a ForkGroup,
    pub(super) address: usize,
    pub(super) blocked: &'a SignalsBlocked,
}

impl Visit<'_> {
    /// Calls `act` with the slot of the address. If the kernel refuses a step, makes the whole region exclusive and
    /// calls `act` again. To map the region anew needs fewer mappings in the end, and no call of the descriptor, all
    /// of which a system-call filter may refuse. It does not help if memory has failed or is short.
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

    /// Like [`slot`](Self::slot), for at most [`BATCH_SLOTS`](super::guard::BATCH_SLOTS) slots of the region.
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

    /// Makes the region at the address exclusive, because a mapping was missing, and then calls `act`.
    #[cold]
    #[inline(never)] // not every fault has this much room on its signal stack
    fn once_exclusive(
        &self,
        act: impl FnOnce(&Tables, &CowMapping) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let Self { group, address, blocked } = *self;
        let mut tables = group.gate.alone(blocked);
        let Some(id) = tables.mappings.at(address).map(CowMapping::id) else { return Ok(()) };
        if WholeRegion::new(group, &mut tables, id).make_exclusive().is_err() {
            // The process has no mapping left. This call releases the mappings that are kept for this case.
            group.fork_support().into_iter().for_each(ForkSupport::release_spare_mappings);
            WholeRegion::new(group, &mut tables, id).make_exclusive()?;
        }
        // No other thread has a slot now, because a thread shares the gate while it has one.
        act(&tables, tables.mappings.get(id))
    }
}
