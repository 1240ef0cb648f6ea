//! The tables of a group, as they lie in its gate.

use std::ops::Range;

use super::entry::Entry;
use super::frames::Frames;
use super::mapping::CowMapping;
use super::mappings::Mappings;
use super::sharers::Id;
use super::slot::{Event, Slot};

/// The tables that faults read and forks change. A slot is changed by the thread that has its guard.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) mappings: Mappings,
    pub(super) frames: Frames,
}

impl Tables {
    /// In debug builds, that owners and rings agree with the entries: after each change by the thread that has the
    /// gate alone.
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

    /// A mapping shows what came with it, alone, by addresses that map just that.
    pub(super) fn show_reserve(&mut self, id: Id, slot_of: impl Fn(&Frames, u64) -> Slot) {
        let Self { mappings, frames } = self;
        let alone = mappings.alone();
        let mapping = alone.mappings().get(id);
        for slot in 0..mapping.slots() {
            let (guard, frame) = (alone.slot(slot), mapping.reserved_frame(slot));
            guard.set(mapping, Entry { frame, slot: slot_of(frames, frame) });
            guard.stand_alone(mapping);
        }
    }

    /// A mapping gives slots up: what others still show is owned by one of them from then on, which needs no place
    /// for a copy of its own any more.
    pub(super) fn give_up(&mut self, id: Id, slots: Range<usize>, to_kernel: bool) {
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
