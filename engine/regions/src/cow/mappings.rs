//! The mappings of a fork group: by number, for the rings of sharers, and by address, for faults.

use std::mem;

use super::guard::Alone;
use super::mapping::CowMapping;
use super::slot_table::MappingId;

/// All of them. Numbers of mappings that have left are given to new ones.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    by_id: Vec<Place>,
    by_address: Vec<(usize, MappingId)>,
    /// The number that is given next; `by_id` has a place for it, or ends there.
    vacant: u32,
    /// The first of those whose owners want to know what writers wait for.
    observed: Option<MappingId>,
}

/// The entry of a number: a mapping, or a vacant place.
#[derive(Debug)]
pub(super) enum Place {
    Taken(CowMapping),
    /// Nothing, and the number that is vacant after this one.
    Vacant(u32),
}

/// Vectors that a group's mappings can move to, if their own are too short.
#[derive(Debug, Default)]
pub(super) struct LongerMappings {
    by_id: Vec<Place>,
    by_address: Vec<(usize, MappingId)>,
}

impl LongerMappings {
    pub(super) fn reserve(&mut self, mappings: usize) {
        self.by_id.reserve(mappings);
        self.by_address.reserve(mappings);
    }
}

impl Mappings {
    pub(super) fn iter(&self) -> impl Iterator<Item = &CowMapping> {
        self.by_address.iter().map(|&(_, id)| self.get(id))
    }

    /// Numbers that were given, those of mappings that have left among them.
    pub(super) fn numbers_given(&self) -> usize {
        self.by_id.len()
    }

    /// Mappings that have not left.
    pub(super) fn present(&self) -> usize {
        self.by_address.len()
    }

    /// By address.
    pub(super) fn nth(&self, index: usize) -> MappingId {
        self.by_address[index].1
    }

    pub(super) fn get(&self, id: MappingId) -> &CowMapping {
        match &self.by_id[id.0 as usize] {
            Place::Taken(mapping) => mapping,
            Place::Vacant(_) => unreachable!("mapping {id:?} has left"),
        }
    }

    pub(super) fn get_mut(&mut self, id: MappingId) -> &mut CowMapping {
        match &mut self.by_id[id.0 as usize] {
            Place::Taken(mapping) => mapping,
            Place::Vacant(_) => unreachable!("mapping {id:?} has left"),
        }
    }

    /// The mapping that has an address.
    pub(super) fn at(&self, address: usize) -> Option<&CowMapping> {
        let after = self.by_address.partition_point(|&(start, _)| start <= address);
        let &(_, id) = self.by_address.get(after.checked_sub(1)?)?;
        Some(self.get(id)).filter(|mapping| mapping.addresses().contains(&address))
    }

    /// The mapping that begins at an address, of a region that exists.
    pub(super) fn of_region(&self, start: usize) -> &CowMapping {
        self.at(start).expect("a mapping as long as its region exists")
    }

    /// Returns whether there is room for one mapping more. If `longer` has it, that has the shorter vectors afterwards.
    pub(super) fn make_room(&mut self, longer: &mut LongerMappings) -> bool {
        let ids = self.by_id.len() + usize::from(self.vacant as usize == self.by_id.len());
        let addresses = self.by_address.len() + 1;
        exchange(&mut self.by_id, &mut longer.by_id, ids)
            && exchange(&mut self.by_address, &mut longer.by_address, addresses)
    }

    /// The number of the next mapping.
    pub(super) fn next_id(&self) -> MappingId {
        MappingId(self.vacant)
    }

    /// Adds the mapping of the next number, without allocating if there is [room](Self::make_room).
    pub(super) fn insert(&mut self, mapping: CowMapping) {
        let (id, start) = (self.next_id(), mapping.addresses().start);
        debug_assert_eq!(mapping.id(), id);
        match self.by_id.get_mut(self.vacant as usize) {
            Some(place) => match mem::replace(place, Place::Taken(mapping)) {
                Place::Vacant(next) => self.vacant = next,
                Place::Taken(_) => unreachable!("number {id:?} is taken"),
            },
            None => {
                self.by_id.push(Place::Taken(mapping));
                self.vacant += 1;
            }
        }
        let at = self.by_address.partition_point(|&(other, _)| other < start);
        self.by_address.insert(at, (start, id));
    }

    /// Returns the mappings whose owners count what writers wait for.
    pub(super) fn observed(&self) -> impl Iterator<Item = &CowMapping> {
        let next = |id: Option<MappingId>| id.map(|id| self.get(id));
        std::iter::successors(next(self.observed), move |mapping| next(mapping.next_observed))
    }

    /// The mapping is one of these from now on.
    pub(super) fn observe(&mut self, id: MappingId) {
        self.get_mut(id).next_observed = self.observed.replace(id);
    }

    fn observe_no_more(&mut self, id: MappingId) {
        let next = self.get(id).next_observed;
        if self.observed == Some(id) {
            self.observed = next;
            return;
        }
        let before = self.observed().find(|other| other.next_observed == Some(id));
        if let Some(before) = before.map(CowMapping::id) {
            self.get_mut(before).next_observed = next;
        }
    }

    pub(super) fn remove(&mut self, id: MappingId) -> CowMapping {
        self.observe_no_more(id);
        let start = self.get(id).addresses().start;
        let at = self.by_address.partition_point(|&(other, _)| other < start);
        self.by_address.remove(at);
        let vacant = Place::Vacant(mem::replace(&mut self.vacant, id.0));
        match mem::replace(&mut self.by_id[id.0 as usize], vacant) {
            Place::Taken(mapping) => mapping,
            Place::Vacant(_) => unreachable!("mapping {id:?} has left"),
        }
    }

    /// The other mappings that show what this one shows at a slot. The thread has the slot, or only wants to know
    /// how it is at the moment.
    pub(super) fn sharers(
        &self,
        of: &CowMapping,
        slot: usize,
    ) -> impl Iterator<Item = &CowMapping> {
        let (id, first) = (of.id(), of.links.get(slot).after);
        let next = move |mapping: &&CowMapping| {
            let after = mapping.links.get(slot).after;
            (after != id).then(|| self.get(after))
        };
        std::iter::successors((first != id).then(|| self.get(first)), next)
    }

    /// Takes the exclusive borrow for what it is: the gate alone.
    pub(super) fn alone(&mut self) -> Alone<'_> {
        Alone::new(self)
    }
}

/// Moves values to a longer vector, if theirs is too short; whether one is long enough.
pub(super) fn exchange<T>(values: &mut Vec<T>, longer: &mut Vec<T>, wanted: usize) -> bool {
    if values.capacity() < wanted && longer.capacity() >= wanted {
        longer.append(values);
        mem::swap(values, longer);
    }
    values.capacity() >= wanted
}
