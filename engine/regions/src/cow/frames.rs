//! The granules of a fork group: their extents, their contents, and which of them the group has given up.
//!
//! A *frame* is the number of a granule in the group. Extents get successive numbers when they join the group, with a
//! gap after each, so frames of different extents never follow each other. A frame belongs permanently to one slot
//! number, which its place in the extent determines.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::io::{self, Errno};
use rustix::param::page_size;

use super::slot::{Lack, Slot};
use crate::fault::no_fault;
use crate::pool::{Content, PoolMemory, Reserved};
use hugekit_bulk::parallel::{Bytes, Threads};
use hugekit_bulk::populate::{PopulateError, populate_pages};
use hugekit_bulk::profile::Profile;
use hugekit_bulk::sweep::{Order, Reach};
use hugekit_bulk::{ClearOptions, CopyOptions, Reuse};
use hugekit_sys::peek;
use hugekit_sys::private_pages::{PrivatePiece, PrivateSlice};

/// An extent that joined the group with one region, or the rest of it. Its token is outside of the gate
/// ([`GroupFolios`](super::folios::GroupFolios)).
#[derive(Debug)]
pub(super) struct Holding {
    first: u64,
    first_slot: usize,
    slots: usize,
    /// The content of each folio, and whether the group has given it up.
    contents: PrivateSlice<AtomicU8>,
    /// For each folio, the number of its granules that a region shows or that are reserved for a region.
    kept: Box<[u32]>,
    /// The number of folios that the pool does not have again, and how many of these are given up.
    left: usize,
    given_up: usize,
    first_folio: usize,
    alias: Bytes,
}

/// All granules of a group.
#[derive(Debug)]
pub(super) struct Frames {
    holdings: Vec<Holding>,
    next: u64,
    granule_bytes: usize,
    page_size: usize,
    /// Bytes of the first region.
    len: usize,
}

/// A frame of this size is cleared by several threads, if a handler thread clears it.
const SHARED_FROM: usize = 1 << 30;

const CONTENTS: [Content; 4] = [Content::Hole, Content::Clean, Content::Dirty, Content::Broken];

/// Added to the content of a folio that no region needs any more. It must return to the pool.
const GIVEN_UP: u8 = 1 << 5;
/// Added to [`GIVEN_UP`]: the folio must return to the kernel.
const TO_KERNEL: u8 = 1 << 6;
/// The content of a folio that has returned.
const RETURNED: u8 = 1 << 7;

/// Neighbouring folios that return together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Their numbers in the pool.
    pub(super) folios: Range<usize>,
    /// The content of each of them.
    pub(super) content: Content,
    pub(super) to_kernel: bool,
}

/// Folios that no region needs any more. The vectors are allocated before the gate is taken.
#[derive(Debug)]
pub(super) struct GivenUpFolios {
    pub(super) runs: Vec<Run>,
    /// Extents of which no folio is left. They are dropped outside of the gate.
    empty: Vec<Holding>,
    /// True if there were more folios than room.
    pub(super) is_full: bool,
}

impl GivenUpFolios {
    const RUNS: usize = 256;
    const EMPTY: usize = 16;

    pub(super) fn new() -> Self {
        let (runs, empty) = (Vec::with_capacity(Self::RUNS), Vec::with_capacity(Self::EMPTY));
        Self { runs, empty, is_full: false }
    }

    /// Adds a folio, to the last run if that is `open`. Returns true if there was room.
    fn add(&mut self, next: Run, open: bool) -> bool {
        let last = self.runs.last_mut().filter(|last| {
            let kind = (last.content, last.to_kernel);
            open && last.folios.end == next.folios.start && kind == (next.content, next.to_kernel)
        });
        if let Some(last) = last {
            last.folios.end = next.folios.end;
            return true;
        }
        let has_room = self.runs.len() < Self::RUNS;
        if has_room {
            self.runs.push(next);
        }
        has_room
    }
}

impl Frames {
    pub(super) fn new(granule_bytes: usize, page_size: usize, len: usize) -> Self {
        Self { holdings: Vec::new(), next: 0, granule_bytes, page_size, len }
    }

    /// Returns the bytes of a slot. The last slot of the first region may be shorter than a granule.
    pub(super) fn len_of(&self, slot: usize) -> usize {
        self.granule_bytes.min(self.len - slot * self.granule_bytes)
    }

    /// Adds the extents of a region. Returns its frame at each slot. Does not allocate if there is
    /// [room](Self::holdings).
    pub(super) fn add(&mut self, place: &mut Reservation) -> ReservedFrames {
        let mut own = std::mem::take(&mut place.own);
        for (mut holding, run) in place.holdings.drain(..).zip(&mut own) {
            (holding.first, run.first_frame) = (self.next, self.next);
            self.next += holding.slots as u64 + 1;
            self.holdings.push(holding);
        }
        ReservedFrames(own)
    }

    /// Removes the extents that were added last, of which no region shows anything. Moves them to a vector that has
    /// room.
    pub(super) fn take_last(&mut self, own: &ReservedFrames, into: &mut Vec<Holding>) {
        let first = self.holdings.len() - own.0.len();
        into.extend(self.holdings.drain(first..));
    }

    pub(super) fn holdings(&mut self) -> &mut Vec<Holding> {
        &mut self.holdings
    }

    fn holding(&self, frame: u64) -> &Holding {
        &self.holdings[self.index(frame)]
    }

    fn index(&self, frame: u64) -> usize {
        let after = self.holdings.partition_point(|holding| holding.first <= frame);
        after.checked_sub(1).expect("a frame of an extent of the group")
    }

    /// Returns the slot that a frame belongs to.
    pub(super) fn slot(&self, frame: u64) -> usize {
        let holding = self.holding(frame);
        holding.first_slot + (frame - holding.first) as usize
    }

    /// Returns the address of a frame in the pool's alias mapping.
    pub(super) fn alias(&self, frame: u64) -> *mut u8 {
        let holding = self.holding(frame);
        holding.alias.at((frame - holding.first) as usize * self.granule_bytes)
    }

    /// Returns the offset of a frame in the pool's file.
    pub(super) fn offset(&self, frame: u64) -> u64 {
        let holding = self.holding(frame);
        (holding.first_folio * self.page_size) as u64
            + (frame - holding.first) * self.granule_bytes as u64
    }

    /// Returns the folios that contain parts of a frame, counted from the first folio of its extent.
    fn folios_of(&self, holding: &Holding, frame: u64) -> Range<usize> {
        let number = (frame - holding.first) as usize;
        let start = number * self.granule_bytes;
        let end = (start + self.len_of(holding.first_slot + number)).div_ceil(self.page_size);
        start / self.page_size..end
    }

    /// Returns the work that the frame needs before a thread may see it. Async-signal-safe.
    fn lack(&self, frame: u64) -> Option<Lack> {
        if self.holds(frame, Content::Dirty) || self.holds(frame, Content::Broken) {
            return Some(Lack::Clear);
        }
        self.holds(frame, Content::Hole).then_some(Lack::Page)
    }

    /// Returns the state of a slot whose own frame no thread has seen yet. From then on the frame counts as dirty.
    /// Async-signal-safe.
    pub(super) fn fresh(&self, frame: u64) -> Slot {
        let lack = self.lack(frame);
        if lack.is_none() {
            self.note(frame, Content::Dirty);
        }
        Slot::fresh(lack)
    }

    /// Returns true if memory of the frame has failed. Async-signal-safe.
    pub(super) fn is_broken(&self, frame: u64) -> bool {
        self.holds(frame, Content::Broken)
    }

    /// Returns true if a folio of the frame has this content.
    fn holds(&self, frame: u64, content: Content) -> bool {
        let holding = self.holding(frame);
        let folios = &holding.contents[self.folios_of(holding, frame)];
        folios.iter().any(|folio| folio.load(Ordering::Relaxed) == code(content))
    }

    /// Records the content of the frame's folios, except of failed ones. Async-signal-safe.
    pub(super) fn note(&self, frame: u64, content: Content) {
        let holding = self.holding(frame);
        for folio in &holding.contents[self.folios_of(holding, frame)] {
            if folio.load(Ordering::Relaxed) != code(Content::Broken) {
                folio.store(code(content), Ordering::Relaxed);
            }
        }
    }

    /// Gives up a frame: no region shows it, and it is reserved for none.
    pub(super) fn give_up(&mut self, frame: u64, to_kernel: bool) {
        let index = self.index(frame);
        for folio in self.folios_of(&self.holdings[index], frame) {
            self.holdings[index].give_up(folio, if to_kernel { TO_KERNEL } else { 0 });
        }
    }

    /// Cuts the only region to `len` bytes. The frame `last` contains the last of these. Gives up the folios of this
    /// frame that lie behind them.
    pub(super) fn truncate(&mut self, len: usize, last: u64) {
        let index = self.index(last);
        let before = self.folios_of(&self.holdings[index], last).end;
        self.len = len;
        for folio in self.folios_of(&self.holdings[index], last).end..before {
            self.holdings[index].give_up(folio, 0);
        }
    }

    /// Moves given-up folios to `into`, as far as there is room. Does not allocate.
    pub(super) fn take_given_up(&mut self, into: &mut GivenUpFolios) {
        let mut index = 0;
        into.is_full = false;
        while index < self.holdings.len() && !into.is_full {
            let holding = &mut self.holdings[index];
            into.is_full = !holding.take_given_up(into);
            if holding.left > 0 {
                index += 1;
            } else if into.empty.len() < GivenUpFolios::EMPTY {
                into.empty.push(self.holdings.remove(index));
            } else {
                into.is_full = true;
            }
        }
    }

    /// Copies a frame to another frame that no region has seen. `near` tells where a thread continues: in the copy or
    /// in the original. Async-signal-safe.
    ///
    /// # Errors
    /// [`Broken`] if memory of one of them has failed, which is noted: the pool never gets it back.
    pub(super) fn copy(&self, from: u64, to: u64, near: Near) -> Result<(), Broken> {
        let len = self.len_of(self.slot(to));
        self.note(to, Content::Dirty);
        let (target, keeps_copy) = match near {
            Near::Copy(target) => (Some(target), true),
            Near::Original(target) => (Some(target), false),
            Near::Neither => (None, false),
        };
        let order = Order::for_folio(len, target);
        let extents = order.extents(len, target, Profile::current().near_bytes);
        let pieces = extents
            .map(|extent| (extent.bytes, if keeps_copy { extent.reach } else { Reach::Far }));
        // SAFETY: both frames lie within the alias mapping, which exists as long as the pool. No thread writes to the
        // original: it is shared, or its only region is protected or gives it up. No user has seen the copy.
        match unsafe {
            no_fault::copy(self.alias(to), self.alias(from).expose_provenance(), pieces)
        } {
            Ok(()) => Ok(()),
            Err(Errno::FAULT) => Err(self.note_broken(from, to)),
            // The kernel does not copy for this process: a filter forbids it, or the kernel cannot.
            Err(_) => {
                self.copy_surely(from, to, near);
                Ok(())
            }
        }
    }

    /// Records which of two frames cannot be read.
    #[cold]
    #[inline(never)] // not every copy has this much room on its signal stack
    fn note_broken(&self, from: u64, to: u64) -> Broken {
        let is_whole = |frame: u64| {
            let start = self.alias(frame).expose_provenance();
            (0..self.len_of(self.slot(frame)))
                .step_by(page_size())
                .all(|at| peek::is_readable(start + at))
        };
        self.note(if is_whole(from) { to } else { from }, Content::Broken);
        Broken
    }

    /// Like [`copy`](Self::copy), but failed memory ends the process.
    #[cold]
    #[inline(never)] // not every copy has this much room on its signal stack
    fn copy_surely(&self, from: u64, to: u64, near: Near) {
        let len = self.len_of(self.slot(to));
        let (target, reuse, source_reuse) = match near {
            Near::Copy(target) => (Some(target), Reuse::All, Reuse::Unknown),
            Near::Original(target) => (Some(target), Reuse::None, Reuse::Target),
            Near::Neither => (None, Reuse::None, Reuse::Unknown),
        };
        let copy = CopyOptions::with_hints(target, reuse, source_reuse);
        // SAFETY: both lie within the alias mapping. No thread writes the original, and no user has seen the copy.
        let copied = unsafe { copy.run_raw(self.alias(to), self.alias(from), len) };
        debug_assert!(copied.is_ok(), "two granules do not overlap, and the target lies within");
    }

    /// Sets bytes of a frame to zero. The bytes near `target` come last and stay cached. Async-signal-safe below 1
    /// GiB.
    pub(super) fn clear(&self, frame: u64, bytes: Range<usize>, target: Option<usize>) {
        self.note(frame, Content::Dirty);
        let start = self.alias(frame).wrapping_add(bytes.start);
        let clear = match target {
            Some(target) => ClearOptions::new().target(target).reuse(Reuse::Target),
            None => ClearOptions::new().reuse(Reuse::None),
        };
        let shared = bytes.len() >= SHARED_FROM;
        let clear = clear.threads(if shared { Threads::Auto } else { Threads::One });
        // SAFETY: within the alias mapping, which exists as long as the pool. Only one region shows the frame, and
        // the calling thread has the slot, or the region's user has asked for zeroes.
        let cleared = unsafe { clear.run_raw(start, bytes.len()) };
        debug_assert!(cleared.is_ok(), "the target lies within, and no caller cancels");
    }

    /// Populates a frame with pages of zeroes. Async-signal-safe.
    pub(super) fn populate(&self, frame: u64) -> Result<(), PopulateError> {
        let start = self.alias(frame).expose_provenance();
        populate_pages(start..start + self.len_of(self.slot(frame)))?;
        self.note(frame, Content::Dirty);
        Ok(())
    }
}

/// Memory has failed, or cannot be read for another reason.
#[derive(Clone, Copy, Debug)]
pub(super) struct Broken;

/// The place at which a thread continues after a copy, as an offset.
#[derive(Clone, Copy, Debug)]
pub(super) enum Near {
    Copy(usize),
    Original(usize),
    Neither,
}

/// The parts of a new region that join the group. They are allocated before any thread has to wait.
#[derive(Debug)]
pub(super) struct Reservation {
    holdings: Vec<Holding>,
    own: Box<[FrameRun]>,
}

impl Reservation {
    /// Allocates memory for the words of these pieces that faults change. No snapshot can protect it.
    pub(super) fn memory_for(pieces: &[Reserved]) -> io::Result<PrivatePiece> {
        let bytes = pieces
            .iter()
            .map(|(extent, _)| PrivatePiece::bytes_of::<AtomicU8>(extent.folios().len()));
        PrivatePiece::new(bytes.sum())
    }

    /// Makes a reservation. `private` is the memory for these pieces ([`memory_for`](Self::memory_for)).
    pub(super) fn new(
        pieces: &[Reserved],
        mut private: PrivatePiece,
        memory: &PoolMemory,
        granule_bytes: usize,
        page_size: usize,
    ) -> Self {
        let mut first_slot = 0;
        let holding = |(extent, contents): &Reserved| {
            let folios = extent.folios();
            let slots = (folios.len() * page_size).div_ceil(granule_bytes);
            let runs =
                contents.iter().flat_map(|&(run, content)| std::iter::repeat_n(content, run));
            let mut codes = runs.map(code);
            let code = |_| AtomicU8::new(codes.next().expect("a content for each folio"));
            first_slot += slots;
            Holding {
                first: 0,
                first_slot: first_slot - slots,
                contents: private.filled(folios.len(), code),
                slots,
                kept: vec![(page_size / granule_bytes).max(1) as u32; folios.len()].into(),
                left: folios.len(),
                given_up: 0,
                first_folio: folios.start,
                alias: memory.alias_of(extent),
            }
        };
        let holdings: Vec<Holding> = pieces.iter().map(holding).collect();
        let run = |holding: &Holding| FrameRun { first_slot: holding.first_slot, first_frame: 0 };
        let own = holdings.iter().map(run).collect();
        Self { holdings, own }
    }

    pub(super) fn len(&self) -> usize {
        self.holdings.len()
    }
}

/// Successive frames, one for each slot of a run.
#[derive(Debug)]
struct FrameRun {
    first_slot: usize,
    first_frame: u64,
}

/// The frames that are reserved for a region, one for each slot, as runs in the order of the slots.
#[derive(Debug)]
pub(super) struct ReservedFrames(Box<[FrameRun]>);

impl ReservedFrames {
    pub(super) fn frame(&self, slot: usize) -> u64 {
        let after = self.0.partition_point(|run| run.first_slot <= slot);
        let FrameRun { first_slot, first_frame } = self.0[after - 1];
        first_frame + (slot - first_slot) as u64
    }
}

impl Holding {
    /// Gives up a granule of a folio. With the last granule, the folio is given up.
    fn give_up(&mut self, folio: usize, to: u8) {
        self.kept[folio] -= 1;
        if self.kept[folio] == 0 {
            self.contents[folio].fetch_or(GIVEN_UP | to, Ordering::Relaxed);
            self.given_up += 1;
        }
    }

    /// Moves given-up folios to `into`. Returns true if there was room for all.
    fn take_given_up(&mut self, into: &mut GivenUpFolios) -> bool {
        // Extents of different regions have different tokens, so their folios are in different runs.
        let first = into.runs.len();
        for (folio, content) in self.contents.iter().enumerate() {
            if self.given_up == 0 {
                break;
            }
            let held = content.load(Ordering::Relaxed);
            if held & GIVEN_UP == 0 {
                continue;
            }
            let number = self.first_folio + folio;
            let run = Run {
                folios: number..number + 1,
                content: CONTENTS[usize::from(held & !(GIVEN_UP | TO_KERNEL))],
                to_kernel: held & TO_KERNEL != 0,
            };
            let is_open = into.runs.len() > first;
            if !into.add(run, is_open) {
                return false;
            }
            content.store(RETURNED, Ordering::Relaxed);
            (self.left, self.given_up) = (self.left - 1, self.given_up - 1);
        }
        true
    }

    /// Returns all folios and their contents. No folio of the extent was given up.
    pub(super) fn whole(&self) -> (Range<usize>, Vec<(usize, Content)>) {
        let content = |folio: &AtomicU8| (1, CONTENTS[usize::from(folio.load(Ordering::Relaxed))]);
        let folios = self.first_folio..self.first_folio + self.contents.len();
        (folios, self.contents.iter().map(content).collect())
    }
}

fn code(content: Content) -> u8 {
    CONTENTS.iter().position(|&other| other == content).expect("a content") as u8
}
