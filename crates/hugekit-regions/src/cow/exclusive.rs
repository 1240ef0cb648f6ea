//! All of a region made its own at once, or closed where that cannot be: by a thread that has the gate alone.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use rustix::io;

use super::apply::At;
use super::entry::Entry;
use super::frames::Frames;
use super::group::{ForkGroup, Tables};
use super::guard::Alone;
use super::mapping::CowMapping;
use super::refused::Refused;
use super::sharers::Id;
use super::slot::{Action, Event, Pages, Slot};
use hugekit_sys::mapping::{forbid, replace_all, replace_by_nothing};
use hugekit_sys::thread::SignalsBlocked;
use hugekit_sys::userfaultfd;

impl ForkGroup {
    /// Makes all of a mapping its region's own, by as few of the kernel's mappings as its frames allow.
    pub(super) fn make_exclusive(&self, tables: &mut Tables, id: Id) -> Result<(), Refused> {
        let Tables { mappings, frames } = tables;
        let alone = mappings.alone();
        let mapping = alone.mappings().get(id);
        let slots = mapping.slots();
        for slot in 0..slots {
            let at = At { guard: &alone.slot(slot), mapping, frames };
            match self.serve_event(at, Event::Separate, None) {
                // Lost, and mapped as that.
                Err(Refused::Broken) => {}
                separated => separated?,
            }
        }
        let (mut slot, mut runs) = (0, 0);
        while slot < slots {
            let run = mapping.table.run_of(slot..slots, |entry| !entry.slot.is_lost()).max(1);
            let entry = mapping.entry(slot);
            if !entry.slot.is_lost() {
                self.map_run(alone, frames, mapping, slot..slot + run, entry.frame)?;
                for slot in slot..slot + run {
                    alone.slot(slot).is_done(mapping, Action::MapInPlace);
                }
            }
            (slot, runs) = (slot + run, runs + 1);
        }
        self.count_vmas(mapping, runs - 1);
        Ok(())
    }

    /// Maps for good, as one run from a frame on, what no other region shows. The table is the caller's to change.
    pub(super) fn map_run(
        &self,
        alone: Alone<'_>,
        frames: &Frames,
        mapping: &CowMapping,
        slots: Range<usize>,
        first: u64,
    ) -> Result<(), Refused> {
        let (memory, addresses) = (self.pool.memory(), mapping.addresses_of(slots.clone()));
        let offset = frames.offset(first);
        // SAFETY: addresses of the region; its user expects what the frames hold, and no other thread has them.
        let mapped =
            unsafe { replace_all(memory.file(), offset, &addresses, memory.in_core_dumps()) };
        if let Err(errno) = mapped {
            for slot in slots {
                self.remove_displaced(At { guard: &alone.slot(slot), mapping, frames });
            }
            return Err(Refused::Kernel(errno));
        }
        mapping.counts().registered.store(false, Ordering::Relaxed);
        self.wake(&addresses);
        Ok(())
    }

    /// The region costs so many of the kernel's mappings now.
    pub(super) fn count_vmas(&self, mapping: &CowMapping, vmas: isize) {
        let before = mapping.counts().vmas.swap(vmas, Ordering::Relaxed);
        self.budget.give(before - vmas);
    }

    /// Copies all that is shared, and closes what cannot be copied: accesses there end in a signal.
    pub(super) fn leave_to_kernel(&self, blocked: &SignalsBlocked) -> io::Result<()> {
        let mut tables = self.gate.alone(blocked);
        self.unserved.store(true, Ordering::SeqCst);
        // What others keep from being copied can be once these are.
        for last in [false, true] {
            for index in 0..tables.mappings.present() {
                let id = tables.mappings.nth(index);
                if self.make_exclusive(&mut tables, id).is_err() && last {
                    self.close_unless_own(tables.mappings.alone(), id);
                }
            }
        }
        let mut left = Ok(());
        for mapping in tables.mappings.iter() {
            let unregistered =
                userfaultfd::unregister(self.descriptor.as_fd(), &mapping.addresses());
            left = left.and(unregistered);
        }
        left
    }

    /// When faults are served no more, of a region that could not be made its own: if its addresses map what it
    /// alone shows, it is written freely, else it can be accessed no more.
    fn close_unless_own(&self, alone: Alone<'_>, id: Id) {
        let mapping = alone.mappings().get(id);
        let is_own = |slot| {
            let guard = alone.slot(slot);
            guard.entry(mapping).slot.maps_its_own() && !guard.is_shared(mapping)
        };
        if !(0..mapping.slots()).all(is_own) {
            return self.close(alone, mapping);
        }
        for slot in 0..mapping.slots() {
            let guard = alone.slot(slot);
            let slot = Slot::Exclusive(Pages::InPlace);
            guard.set(mapping, Entry { slot, ..guard.entry(mapping) });
        }
    }

    /// Has every access to a region end in a signal, for good; where nothing can be mapped, in SIGSEGV. What it
    /// shares would be written otherwise, so that the process ends if the kernel refuses that, too.
    fn close(&self, alone: Alone<'_>, mapping: &CowMapping) {
        for slot in 0..mapping.slots() {
            let guard = alone.slot(slot);
            let entry = guard.entry(mapping);
            guard.set(mapping, Entry { slot: entry.slot.lost(), ..entry });
        }
        let addresses = mapping.addresses();
        // SAFETY: addresses of the region; what they showed is lost.
        let closed = unsafe { replace_by_nothing(&self.nothing, &addresses) }
            // SAFETY: as above.
            .or_else(|_| unsafe { forbid(&addresses) });
        if closed.is_err() {
            std::process::abort();
        }
    }
}
