//! The mappings of a fork group: by number, for rings, and by address, for faults.

use std::mem;

use super::guard::Alone;
use super::mapping::CowMapping;
use super::slot_table::MappingId;

/// All mappings of a group. A new mapping gets the number of a mapping that has left.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    by_id: Vec<MappingEntry>,
    by_address: Vec<(usize, MappingId)>,
    /// The number of the next mapping. Either its place in `by_id` is vacant, or it is the length of `by_id`.
    vacant: u32,
    /// The first mapping whose owner observes it. Each mapping has the number of the next one.
    observed: Option<MappingId>,
}

/// The entry of a number: a mapping, or nothing.
#[derive(Debug)]
pub(super) enum MappingEntry {
    Taken(CowMapping),
    /// Nothing, and the number that is vacant after this one.
    Vacant(u32),
}

/// Longer vectors, which a group exchanges for its own vectors if these are too short.
#[derive(Debug, Default)]
pub(super) struct LongerMappings {
    by_id: Vec<MappingEntry>,
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

    /// Returns the count of numbers, including those of mappings that have left.
    pub(super) fn numbers_given(&self) -> usize {
        self.by_id.len()
    }

    /// Returns the number of mappings.
    pub(super) fn present(&self) -> usize {
        self.by_address.len()
    }

    /// Returns the ID of the `index`th mapping, by address.
    pub(super) fn nth(&self, index: usize) -> MappingId {
        self.by_address[index].1
    }

    pub(super) fn get(&self, id: MappingId) -> &CowMapping {
        match &self.by_id[id.0 as usize] {
            MappingEntry::Taken(mapping) => mapping,
            MappingEntry::Vacant(_) => unreachable!("mapping {id:?} has left"),
        }
    }

    pub(super) fn get_mut(&mut self, id: MappingId) -> &mut CowMapping {
        match &mut self.by_id[id.0 as usize] {
            MappingEntry::Taken(mapping) => mapping,
            MappingEntry::Vacant(_) => unreachable!("mapping {id:?} has left"),
        }
    }

    /// Returns the mapping that contains an address.
    pub(super) fn at(&self, address: usize) -> Option<&CowMapping> {
        let after = self.by_address.partition_point(|&(start, _)| start <= address);
        let &(_, id) = self.by_address.get(after.checked_sub(1)?)?;
        Some(self.get(id)).filter(|mapping| mapping.addresses().contains(&address))
    }

    /// Returns the mapping that begins at an address. Its region exists.
    pub(super) fn of_region(&self, start: usize) -> &CowMapping {
        self.at(start).expect("a mapping as long as its region exists")
    }

    /// Returns true if the vectors have room for one more mapping. Exchanges them with those of
    /// `longer` if they are too short.
    pub(super) fn make_room(&mut self, longer: &mut LongerMappings) -> bool {
        let ids = self.by_id.len() + usize::from(self.vacant as usize == self.by_id.len());
        let addresses = self.by_address.len() + 1;
        exchange(&mut self.by_id, &mut longer.by_id, ids)
            && exchange(&mut self.by_address, &mut longer.by_address, addresses)
    }

    /// Returns the number of the next mapping.
    pub(super) fn next_id(&self) -> MappingId {
        MappingId(self.vacant)
    }

    /// Adds the mapping with the next number. Does not allocate if there is [room](Self::make_room).
    pub(super) fn insert(&mut self, mapping: CowMapping) {
        let (id, start) = (self.next_id(), mapping.addresses().start);
        debug_assert_eq!(mapping.id(), id);
        match self.by_id.get_mut(self.vacant as usize) {
            Some(place) => match mem::replace(place, MappingEntry::Taken(mapping)) {
                MappingEntry::Vacant(next) => self.vacant = next,
                MappingEntry::Taken(_) => unreachable!("number {id:?} is taken"),
            },
            None => {
                self.by_id.push(MappingEntry::Taken(mapping));
                self.vacant += 1;
            }
        }
        let at = self.by_address.partition_point(|&(other, _)| other < start);
        self.by_address.insert(at, (start, id));
    }

    /// Returns the mappings whose owners observe them: they want the longest wait of writers.
    pub(super) fn observed(&self) -> impl Iterator<Item = &CowMapping> {
        let next = |id: Option<MappingId>| id.map(|id| self.get(id));
        std::iter::successors(next(self.observed), move |mapping| next(mapping.next_observed))
    }

    /// Adds a mapping to the observed ones.
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
        let vacant = MappingEntry::Vacant(mem::replace(&mut self.vacant, id.0));
        match mem::replace(&mut self.by_id[id.0 as usize], vacant) {
            MappingEntry::Taken(mapping) => mapping,
            MappingEntry::Vacant(_) => unreachable!("mapping {id:?} has left"),
        }
    }

    /// Returns the other mappings that show the same frame at a slot. If the thread does not have the slot, the
    /// answer may be out of date at once.
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

    /// Turns the exclusive borrow into the right to change every slot.
    pub(super) fn alone(&mut self) -> Alone<'_> {
        Alone::new(self)
    }
}

/// Exchanges a vector with a longer one, if it is too short. Returns true if it is long enough now.
pub(super) fn exchange<T>(values: &mut Vec<T>, longer: &mut Vec<T>, wanted: usize) -> bool {
    if values.capacity() < wanted && longer.capacity() >= wanted {
        longer.append(values);
        mem::swap(values, longer);
    }
    values.capacity() >= wanted
}
