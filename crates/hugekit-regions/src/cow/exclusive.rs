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
use super::slot::{Action, Event, Lack, Pages, Slot};
use crate::pool::Content;
use hugekit_sys::mapping::{forbid, replace_all};
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
            if at.entry().slot.is_unready() {
                continue; // In its place, and no other region's.
            }
            match self.serve_event(at, Event::Separate, None) {
                // Lost, and mapped as that.
                Err(Refused::Broken) => {}
                separated => separated?,
            }
        }
        let (mut slot, mut runs) = (0, 0);
        while slot < slots {
            let is_mapped = |slot: Slot| !slot.is_lost() && !slot.is_unready();
            let run = mapping.table.run_of(slot..slots, |entry| is_mapped(entry.slot)).max(1);
            let entry = mapping.entry(slot);
            if is_mapped(entry.slot) {
                self.map_run(alone, frames, mapping, slot..slot + run, entry.frame)?;
                for slot in slot..slot + run {
                    alone.slot(slot).record_done(mapping, Action::MapInPlace);
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
        self.budget.refund(before - vmas);
    }

    /// Clears what is not ready, copies all that is shared, and closes what cannot be copied: accesses there end in a
    /// signal.
    pub(super) fn leave_to_kernel(&self, blocked: &SignalsBlocked) -> io::Result<()> {
        let mut tables = self.gate.alone(blocked);
        self.unserved.store(true, Ordering::SeqCst);
        for index in 0..tables.mappings.present() {
            let id = tables.mappings.nth(index);
            self.supply_all(&mut tables, id);
        }
        // What others keep from being copied can be once these are.
        for last in [false, true] {
            for index in 0..tables.mappings.present() {
                let id = tables.mappings.nth(index);
                // Where nothing was ever shared, nothing is held back that has to be mapped anew.
                if !self.is_shared() && self.leave_if_own(tables.mappings.alone(), id) {
                    continue;
                }
                let is_left = self.make_exclusive(&mut tables, id).is_ok();
                if !is_left && last && !self.leave_if_own(tables.mappings.alone(), id) {
                    self.close(&mut tables, id);
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

    /// Makes all of a mapping ready that is not, for when the kernel alone serves its faults. It populates holes.
    pub(super) fn supply_all(&self, tables: &mut Tables, id: Id) {
        let Tables { mappings, frames } = tables;
        let alone = mappings.alone();
        let mapping = alone.mappings().get(id);
        for slot in 0..mapping.slots() {
            let at = At { guard: &alone.slot(slot), mapping, frames };
            match at.entry().slot {
                Slot::Unready(Lack::Page) => {
                    frames.note(at.entry().frame, Content::Dirty);
                    at.guard.record_done(mapping, Action::Supply);
                }
                // What has failed is lost, and known as that.
                Slot::Unready(Lack::Clear) => drop(self.apply(at, Action::Supply, None)),
                _ => {}
            }
        }
    }

    /// When faults are served no more, of a region whose addresses map what it alone shows: the kernel serves it, and
    /// it is written freely. Whether it is such a region.
    pub(super) fn leave_if_own(&self, alone: Alone<'_>, id: Id) -> bool {
        let mapping = alone.mappings().get(id);
        let is_own = |slot| {
            let guard = alone.slot(slot);
            guard.entry(mapping).slot.maps_its_own() && !guard.is_shared(mapping)
        };
        let is_own = (0..mapping.slots()).all(is_own);
        for slot in (0..mapping.slots()).filter(|_| is_own) {
            let guard = alone.slot(slot);
            let slot = Slot::Exclusive(Pages::InPlace);
            guard.set(mapping, Entry { slot, ..guard.entry(mapping) });
        }
        is_own
    }

    /// Has every access to a region end in a signal, permanently. Where nothing can be mapped, the signal is SIGSEGV.
    /// What the region shares would be written otherwise, so the process ends if the kernel refuses that, too.
    fn close(&self, tables: &mut Tables, id: Id) {
        let alone = tables.mappings.alone();
        let mapping = alone.mappings().get(id);
        for slot in 0..mapping.slots() {
            let guard = alone.slot(slot);
            let entry = guard.entry(mapping);
            guard.set(mapping, Entry { slot: entry.slot.lost(), ..entry });
        }
        let addresses = mapping.addresses();
        // SAFETY: addresses of the region, of which the table says that their bytes are lost.
        if !self.map_nothing(&addresses) && unsafe { forbid(&addresses) }.is_err() {
            std::process::abort();
        }
    }
}
