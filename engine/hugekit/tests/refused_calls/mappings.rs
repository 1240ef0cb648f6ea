//! A process that may have only a few mappings more.
#![allow(unsafe_code)]

use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::param::page_size;

/// More than any process may have where no administrator raised `vm.max_map_count`.
const MOST: usize = 1 << 17;

/// Keeps the process from making more than a few mappings, by taking the rest. The drop unmaps them.
pub(crate) struct MappingLimit {
    taken: Vec<usize>,
}

impl MappingLimit {
    /// Takes all that there may be but for so many.
    pub(crate) fn of_mappings(left: usize) -> Self {
        let mut taken = Vec::with_capacity(MOST);
        // Neighbours with different rights never become one.
        let rights = [ProtFlags::empty(), ProtFlags::READ];
        while taken.len() < MOST {
            let rights = rights[taken.len() % 2];
            // SAFETY: a new mapping at an address of the kernel's choice replaces none.
            let page =
                unsafe { mmap_anonymous(ptr::null_mut(), page_size(), rights, MapFlags::PRIVATE) };
            let Ok(page) = page else { break };
            taken.push(page.addr());
        }
        let mut shortage = Self { taken };
        (0..left).for_each(|_| shortage.give_one());
        shortage
    }

    fn give_one(&mut self) {
        if let Some(page) = self.taken.pop() {
            // SAFETY: mapped above, and no thread uses it.
            unsafe { munmap(ptr::without_provenance_mut(page), page_size()).unwrap() };
        }
    }
}

impl Drop for MappingLimit {
    fn drop(&mut self) {
        while !self.taken.is_empty() {
            self.give_one();
        }
    }
}
