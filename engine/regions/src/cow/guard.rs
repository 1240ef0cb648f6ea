//! The right to change a slot, in all mappings of a fork group.
//!
//! A thread gets the right by a claim of the slot while it shares the gate, or by exclusive access to the gate. Only
//! a guard changes which frame a mapping shows, and which mappings show the same frame.

use std::array;
use std::ops::Range;

use super::mapping::CowMapping;
use super::mappings::Mappings;
use super::slot::{Action, Event};
use super::slot_table::{MappingId, Neighbours, SlotEntry};
use hugekit_sys::sync::{Claim, Claims};
use hugekit_sys::thread::SignalsBlocked;

/// The most slots that a thread claims at a time, if it does not serve a fault.
pub(super) const BATCH_SLOTS: usize = 32;

/// The right to change one slot.
#[derive(Debug)]
pub(super) struct SlotGuard<'a> {
    mappings: &'a Mappings,
    slot: usize,
    /// `None` if the thread has exclusive access to the gate.
    _claim: Option<Claim<'a, ()>>,
}

/// The right to change every slot. Only a thread with exclusive access to the gate has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone<'a>(&'a Mappings);

/// The guards of at most [`BATCH_SLOTS`] successive slots.
#[derive(Debug)]
pub(super) struct SlotGuards<'a>([Option<SlotGuard<'a>>; BATCH_SLOTS]);

impl<'a> Alone<'a> {
    /// Takes an exclusive borrow: only a thread with exclusive access to the gate can have one.
    pub(super) fn new(mappings: &'a mut Mappings) -> Self {
        Self(mappings)
    }

    pub(super) fn mappings(self) -> &'a Mappings {
        self.0
    }

    pub(super) fn slot(self, slot: usize) -> SlotGuard<'a> {
        SlotGuard { mappings: self.0, slot, _claim: None }
    }
}

impl<'a> SlotGuards<'a> {
    /// Claims the slots in ascending order, so two threads that claim several slots never wait for each other.
    pub(super) fn claim(
        claims: &'a Claims<()>,
        mappings: &'a Mappings,
        slots: Range<usize>,
        blocked: &'a SignalsBlocked,
    ) -> Self {
        debug_assert!(slots.len() <= BATCH_SLOTS);
        let mut slots = slots;
        let mut next =
            || slots.next().map(|slot| SlotGuard::claim(claims, mappings, slot, blocked));
        Self(array::from_fn(|_| next()))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &SlotGuard<'a>> {
        self.0.iter().flatten()
    }

    /// Returns the guard of a slot among them.
    pub(super) fn get(&self, slot: usize) -> &SlotGuard<'a> {
        let first = self.0[0].as_ref().expect("a guard of at least one slot").slot;
        self.0[slot - first].as_ref().expect("a slot that was claimed")
    }
}

impl<'a> SlotGuard<'a> {
    /// Claims a slot. Waits for another thread that has it.
    pub(super) fn claim(
        claims: &'a Claims<()>,
        mappings: &'a Mappings,
        slot: usize,
        blocked: &'a SignalsBlocked,
    ) -> Self {
        Self { mappings, slot, _claim: Some(claims.claim(slot, blocked)) }
    }

    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    pub(super) fn mapping(&self, id: MappingId) -> &'a CowMapping {
        self.mappings.get(id)
    }

    pub(super) fn entry(&self, mapping: &CowMapping) -> SlotEntry {
        mapping.entry(self.slot)
    }

    pub(super) fn set(&self, mapping: &CowMapping, entry: SlotEntry) {
        if entry.slot.may_be_written() {
            self.mark_written(mapping);
        }
        mapping.table.set(self.slot, entry);
    }

    /// From now on, the slot counts as written since the start of the region's epoch.
    pub(super) fn mark_written(&self, mapping: &CowMapping) {
        mapping.unwritten.clear(self.slot);
    }

    /// Records that `action` was carried out: the slot becomes `slot.after(action)`.
    pub(super) fn record_done(&self, mapping: &CowMapping, action: Action) {
        let SlotEntry { frame, slot } = self.entry(mapping);
        self.set(mapping, SlotEntry { frame, slot: slot.after(action) });
    }

    /// Returns the plan for an event.
    pub(super) fn plan(&self, mapping: &CowMapping, event: Event) -> &'static [Action] {
        self.entry(mapping).slot.plan(self.is_shared(mapping), event)
    }

    /// Returns true if another mapping shows the same frame.
    pub(super) fn is_shared(&self, mapping: &CowMapping) -> bool {
        mapping.is_shared(self.slot)
    }

    /// Returns the other mappings that show the same frame.
    pub(super) fn sharers(&self, mapping: &'a CowMapping) -> impl Iterator<Item = &'a CowMapping> {
        self.mappings.sharers(mapping, self.slot)
    }

    /// Makes a ring of this mapping alone: no other mapping shows its frame.
    pub(super) fn stand_alone(&self, mapping: &CowMapping) {
        let alone = Neighbours { before: mapping.id(), after: mapping.id() };
        mapping.links.set(self.slot, alone);
    }

    /// Puts a new mapping into the ring of `other`, as the last one: it shows the same frame.
    pub(super) fn join(&self, mapping: &CowMapping, other: &CowMapping) {
        let (id, after) = (mapping.id(), other.id());
        let before = other.links.get(self.slot).before;
        mapping.links.set(self.slot, Neighbours { before, after });
        self.link(before, id);
        other.links.set(self.slot, Neighbours { before: id, ..other.links.get(self.slot) });
    }

    /// Takes the mapping out of its ring: it shows another frame from now on.
    pub(super) fn leave_ring(&self, mapping: &CowMapping) {
        let Neighbours { before, after } = mapping.links.get(self.slot);
        let neighbour = self.mappings.get(after);
        self.link(before, after);
        let links = neighbour.links.get(self.slot);
        neighbour.links.set(self.slot, Neighbours { before, ..links });
        self.stand_alone(mapping);
    }

    fn link(&self, before: MappingId, after: MappingId) {
        let mapping = self.mappings.get(before);
        let links = mapping.links.get(self.slot);
        mapping.links.set(self.slot, Neighbours { after, ..links });
    }
}
