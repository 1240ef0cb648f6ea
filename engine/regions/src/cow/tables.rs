//! The tables of a group, which its gate guards, and memory for new entries.

use std::ops::Range;

use super::frames::{Frames, Holding};
use super::mapping::CowMapping;
use super::mappings::{self, LongerMappings, Mappings};
use super::slot::{Event, Slot};
use super::slot_table::{MappingId, SlotEntry};

/// The tables that faults read and forks change. Only a thread that has the guard of a slot changes the slot.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) mappings: Mappings,
    pub(super) frames: Frames,
}

impl Tables {
    /// In debug builds, checks that owners and rings agree with the entries. A thread with exclusive access to the gate
    /// calls this after each change.
    pub(super) fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        for mapping in self.mappings.iter() {
            (0..mapping.slots()).for_each(|slot| self.check_slot(mapping, slot));
        }
    }

    fn check_slot(&self, mapping: &CowMapping, slot: usize) {
        let entry = mapping.entry(slot);
        assert_eq!(self.frames.slot(entry.frame), slot, "{mapping:?}");
        let others = || self.mappings.sharers(mapping, slot);
        let agree = others().all(|other| other.entry(slot).frame == entry.frame);
        assert!(agree, "a ring of different frames: {self:?}");
        let owners = others().filter(|other| other.entry(slot).slot.is_owner()).count();
        let owners = owners + usize::from(entry.slot.is_owner());
        assert_eq!(owners, 1, "owners of frame {}: {self:?}", entry.frame);
        let is_alone = others().next().is_none();
        assert!(is_alone || !entry.slot.is_exclusive(), "shared and writable: {self:?}");
    }

    /// Fills the table of a mapping that shows its reserved frames. Its addresses map these frames, and no other mapping
    /// shows them.
    pub(super) fn show_reserve(&mut self, id: MappingId, slot_of: impl Fn(&Frames, u64) -> Slot) {
        let Self { mappings, frames } = self;
        let alone = mappings.alone();
        let mapping = alone.mappings().get(id);
        for slot in 0..mapping.slots() {
            let (guard, frame) = (alone.slot(slot), mapping.reserved_frame(slot));
            guard.set(mapping, SlotEntry { frame, slot: slot_of(frames, frame) });
            guard.stand_alone(mapping);
        }
    }

    /// Gives up slots of a mapping. If other mappings still show a frame that it owns, one of them inherits the frame and
    /// gives up its own reserved frame.
    pub(super) fn give_up(&mut self, id: MappingId, slots: Range<usize>, to_kernel: bool) {
        for slot in slots {
            let guard = self.mappings.alone().slot(slot);
            let mapping = guard.mapping(id);
            let (entry, heir) = (guard.entry(mapping), guard.sharers(mapping).next());
            let spare = match heir {
                _ if !entry.slot.is_owner() => mapping.reserved_frame(slot),
                None => entry.frame,
                Some(heir) => {
                    let plan = guard.plan(heir, Event::OwnerLeft);
                    plan.iter().for_each(|&action| guard.record_done(heir, action));
                    heir.reserved_frame(slot)
                }
            };
            guard.leave_ring(mapping);
            self.frames.give_up(spare, to_kernel);
        }
    }
}

/// Longer vectors for a group's tables, allocated before the gate is taken. A thread with exclusive access to the gate
/// must not allocate: a handler may have interrupted the allocator, and may wait for the gate.
#[derive(Debug, Default)]
pub(super) struct Preallocated {
    mappings: LongerMappings,
    holdings: Vec<Holding>,
}

/// The lengths that the tables need.
#[derive(Clone, Copy, Debug)]
pub(super) struct NeededLengths {
    mappings: usize,
    holdings: usize,
}

impl Preallocated {
    /// Allocates twice the lengths that the tables need. Not in the gate.
    pub(super) fn allocate(&mut self, needed: NeededLengths) {
        self.mappings.reserve(2 * needed.mappings);
        self.holdings.reserve(2 * needed.holdings);
    }

    /// Makes room in the tables for one mapping and `more` holdings. If the tables' own vectors are too short, they are
    /// exchanged with the vectors from here. Returns the needed lengths if these are too short, too.
    pub(super) fn extend(&mut self, tables: &mut Tables, more: usize) -> Result<(), NeededLengths> {
        let holdings = tables.frames.holdings();
        let needed = NeededLengths {
            mappings: tables.mappings.numbers_given() + 1,
            holdings: holdings.len() + more,
        };
        let fits = mappings::exchange(holdings, &mut self.holdings, needed.holdings)
            && tables.mappings.make_room(&mut self.mappings);
        if fits { Ok(()) } else { Err(needed) }
    }
}
