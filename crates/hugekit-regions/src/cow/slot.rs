//! What a region shows at one slot, and what is to be done when it is accessed, shared or given up: without the
//! kernel, without memory, without locks.
//!
//! ```text
//!   Unready: an earlier owner's bytes, or no page
//!     │  ▲
//!     │  └─ taken back: the region released it
//!     │ accessed: cleared or populated
//!     ▼
//!                    forked                       the owner writes
//!   Exclusive ────────────────▶ Owner        Borrower ────────────▶ Displaced (one of them as owner)
//!       ▲                         │              │                      │
//!       └──── writes (alone) ─────┘              │ writes: a copy       │ accessed: a copy, if it is shared
//!       ▲                                        ▼                      ▼
//!       └─────────────────────────────────── mapped in place ───────────┘
//! ```
//!
//! A frame that several regions show has exactly one owner, whose page tables may map it permanently. The others
//! borrow it. An unready frame is never shared: a fork has an unready frame of its own there. [`Slot::plan`] lists
//! the actions that an event needs, and [`Slot::after`] is the slot after each. Only `apply.rs` carries them out.

/// How the page tables come to have the frame that a region shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// The region's addresses map the frame for good: the kernel enters it.
    InPlace,
    /// A handler has entered it.
    Entered,
    /// A handler has to enter it: every access comes to us.
    Absent,
}

/// What an unready frame lacks before a thread may see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// A clear: it may hold bytes that an earlier owner left, or that the region released.
    Clear,
    /// Its pages: the file has none there.
    Page,
}

/// What a region shows at a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Zeroes, of which its own frame has none yet. The region's addresses map the frame, no other region shows it,
    /// and every access comes to us.
    Unready(Lack),
    /// A frame that no other region shows; the kernel lets writes through.
    Exclusive(Pages),
    /// A frame that stays the region's, whichever region writes. Writes are held back, because others may show it.
    Owner(Pages),
    /// The frame of an owner. The region has a place of its own for a copy.
    Borrower {
        /// Whether a handler has entered it into the page tables.
        entered: bool,
    },
    /// Another frame than the region's addresses map: every access comes to us.
    Displaced {
        /// Whether the frame is its own. If not, it borrows it.
        owner: bool,
        /// Whether the page tables may still have the frame that it showed before.
        entered: bool,
    },
    /// Nothing, for good: memory failed before it could be copied for the region. Its addresses map no bytes.
    Lost {
        /// Whether the frame that is noted is its own.
        owner: bool,
    },
}

/// What happens to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A thread reads it by the region's addresses.
    Read,
    /// A thread writes it by the region's addresses.
    Write,
    /// Writes to it are to pass from now on, whether it is in the page tables or not.
    Own,
    /// The region is to have a frame of its own that no other region shows, mapped or not.
    Separate,
    /// The region wants none of its bytes any more: all of them are zero.
    Release,
    /// As `Release`, where the next access may clear them.
    TakeBack,
    /// Accesses to it, by system calls too, are to meet no fault of ours as long as it is not shared.
    Settle,
    /// The region's addresses are not used, and it needs its share of the frame no more, or only its copy.
    Detach {
        /// Whether it keeps the bytes.
        copied: bool,
    },
    /// The owner of the frame that it borrows is about to write.
    OwnerWrites,
    /// The owner of the frame that it borrows has left, and the frame is its own.
    OwnerLeft,
    /// A fork is to share it.
    Forked,
    /// A fork is to share it, and writes are held back by taking it out of the page tables.
    TakenOut,
    /// Accesses to what is not in the page tables come to us from now on.
    Watched,
}

/// What a region's own place in memory holds when it comes to show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// A copy of what the region showed.
    Copy,
    Zeroes,
    /// Whatever it is: no thread will look.
    AsIs,
}

/// One thing to do about a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Clear an unready frame, or have the kernel populate it.
    Supply,
    /// Have every access come to us again, and forget the bytes.
    TakeBack,
    /// Leave the addresses to the kernel, which enters the frame by itself.
    Leave,
    /// Enter the frame into the page tables.
    Enter { protected: bool },
    /// Take it out of the page tables.
    Remove,
    /// Every other region that shows the frame gets to show one copy, of which one is the owner.
    DisplaceOthers,
    /// Show the frame that was reserved for the region, which becomes its own.
    TakeReserved(Fill),
    /// Have the region's addresses map its frame for good.
    MapInPlace,
    /// Let writes through.
    Unprotect,
    /// Hold writes back.
    Protect,
    /// Hold all accesses back: take it out of the page tables.
    TakeOut,
    /// The kernel enters it no more by itself.
    Watch,
    /// Show the copy that was made because the owner writes.
    ShowCopy {
        /// Whether the copy is its own.
        owner: bool,
    },
    /// The frame that it shows is its own from now on.
    Inherit,
    /// It is lost: say so.
    Refuse,
}

impl Slot {
    /// Every slot there is, by its code.
    pub(super) const ALL: [Self; 16] = [
        Self::Exclusive(Pages::InPlace),
        Self::Exclusive(Pages::Entered),
        Self::Exclusive(Pages::Absent),
        Self::Owner(Pages::InPlace),
        Self::Owner(Pages::Entered),
        Self::Owner(Pages::Absent),
        Self::Borrower { entered: false },
        Self::Borrower { entered: true },
        Self::Displaced { owner: false, entered: false },
        Self::Displaced { owner: false, entered: true },
        Self::Displaced { owner: true, entered: false },
        Self::Displaced { owner: true, entered: true },
        Self::Lost { owner: false },
        Self::Lost { owner: true },
        Self::Unready(Lack::Clear),
        Self::Unready(Lack::Page),
    ];

    /// Its place in [`ALL`](Self::ALL).
    pub(super) fn code(self) -> u64 {
        match self {
            Self::Exclusive(pages) => pages as u64,
            Self::Owner(pages) => 3 + pages as u64,
            Self::Borrower { entered } => 6 + u64::from(entered),
            Self::Displaced { owner, entered } => 8 + 2 * u64::from(owner) + u64::from(entered),
            Self::Lost { owner } => 12 + u64::from(owner),
            Self::Unready(lack) => 14 + lack as u64,
        }
    }

    /// Whether the frame that it shows is its own: of all who show a frame, exactly one region owns it.
    pub(super) fn is_owner(self) -> bool {
        match self {
            Self::Unready(_) | Self::Exclusive(_) | Self::Owner(_) => true,
            Self::Borrower { .. } => false,
            Self::Displaced { owner, .. } | Self::Lost { owner } => owner,
        }
    }

    /// Whether the region's addresses map its own frame.
    pub(super) fn maps_its_own(self) -> bool {
        matches!(self, Self::Unready(_) | Self::Exclusive(_) | Self::Owner(_))
    }

    pub(super) fn is_unready(self) -> bool {
        matches!(self, Self::Unready(_))
    }

    pub(super) fn is_exclusive(self) -> bool {
        matches!(self, Self::Exclusive(_))
    }

    /// Whether its bytes may become others than they were, or are already, with no event to come before.
    pub(super) fn may_be_written(self) -> bool {
        match self {
            Self::Exclusive(_) | Self::Displaced { owner: true, .. } | Self::Lost { .. } => true,
            Self::Owner(_) | Self::Borrower { .. } | Self::Displaced { owner: false, .. } => false,
            Self::Unready(_) => false,
        }
    }

    pub(super) fn is_lost(self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    pub(super) fn is_displaced(self) -> bool {
        matches!(self, Self::Displaced { .. })
    }

    /// Whether the region's addresses map its frame for good.
    pub(super) fn is_in_place(self) -> bool {
        matches!(self, Self::Exclusive(Pages::InPlace) | Self::Owner(Pages::InPlace))
    }

    /// What an access is that the CPU does not tell: a write where the page tables may have the frame, because
    /// a read would not have faulted.
    pub(super) fn guess(self) -> Event {
        let may_be_read = match self {
            Self::Exclusive(pages) | Self::Owner(pages) => pages != Pages::Absent,
            Self::Borrower { entered } => entered,
            Self::Displaced { .. } | Self::Lost { .. } => true,
            Self::Unready(_) => false,
        };
        if may_be_read { Event::Write } else { Event::Read }
    }

    /// What is to be done about it, in this order. `shared`: other regions show the frame, too.
    pub(super) fn plan(self, shared: bool, event: Event) -> &'static [Action] {
        match event {
            Event::Read | Event::Write if self.is_unready() => {
                &[Action::Supply, Action::Enter { protected: false }]
            }
            Event::Read => self.plan_read(shared),
            Event::Write if self.is_exclusive() => self.plan_read(shared),
            Event::Write | Event::Own => self.plan_own(shared),
            Event::Separate => self.plan_separate(shared),
            Event::Release | Event::TakeBack if self.is_unready() => &[],
            Event::TakeBack if self.is_exclusive() => &[Action::TakeBack],
            Event::Release | Event::TakeBack if self.borrows() && !self.is_lost() => {
                &[Action::TakeReserved(Fill::Zeroes), Action::MapInPlace]
            }
            Event::Release | Event::TakeBack => self.plan_own(shared),
            Event::Settle => self.plan_settle(shared),
            Event::Detach { copied: true } if !self.is_lost() && !self.is_unready() => {
                self.plan_separate(false)
            }
            Event::Detach { .. } if self.borrows() => self.plan_to_take(Fill::AsIs),
            Event::OwnerLeft if self.borrows() => &[Action::Inherit],
            Event::Forked if self.is_exclusive() => &[Action::Protect],
            Event::TakenOut if self.is_exclusive() => &[Action::TakeOut],
            Event::Watched if self.is_in_place() => &[Action::Watch],
            Event::OwnerWrites if self.borrows() && self.may_be_entered() => &[Action::Remove],
            Event::Detach { .. } | Event::OwnerLeft | Event::OwnerWrites => &[],
            Event::Forked | Event::TakenOut | Event::Watched => &[],
        }
    }

    fn plan_read(self, shared: bool) -> &'static [Action] {
        match self {
            // The kernel serves it, or another thread has done what was to be done.
            Self::Exclusive(Pages::InPlace) | Self::Owner(Pages::InPlace) => &[],
            // Once more where it was entered: the program may have taken it out by advice.
            Self::Exclusive(_) => &[Action::Enter { protected: false }],
            Self::Owner(_) | Self::Borrower { .. } => &[Action::Enter { protected: true }],
            // What is shared is never mapped at addresses in use: threads could write it before it is protected.
            Self::Displaced { .. } | Self::Lost { .. } | Self::Unready(_) => self.plan_own(shared),
        }
    }

    /// What may be written already is left to the kernel. What is shared is entered for reading.
    fn plan_settle(self, shared: bool) -> &'static [Action] {
        match self {
            Self::Unready(_) => &[Action::Supply, Action::Leave],
            Self::Exclusive(Pages::Entered | Pages::Absent) => &[Action::Leave],
            _ => self.plan_read(shared),
        }
    }

    fn plan_own(self, shared: bool) -> &'static [Action] {
        match (self, shared) {
            (Self::Unready(_), _) => &[Action::Supply],
            (Self::Exclusive(_), _) => &[],
            (Self::Owner(_), true) => &[Action::DisplaceOthers, Action::Unprotect],
            (Self::Owner(_), false) => &[Action::Unprotect],
            (Self::Borrower { .. } | Self::Displaced { owner: false, .. }, _) => {
                &[Action::TakeReserved(Fill::Copy), Action::MapInPlace]
            }
            (Self::Displaced { owner: true, .. }, true) => {
                &[Action::DisplaceOthers, Action::MapInPlace]
            }
            (Self::Displaced { owner: true, .. }, false) => &[Action::MapInPlace],
            (Self::Lost { .. }, _) => &[Action::Refuse],
        }
    }

    fn plan_separate(self, shared: bool) -> &'static [Action] {
        match self {
            Self::Unready(_) => &[Action::Supply],
            Self::Exclusive(_) => &[],
            Self::Lost { .. } => &[Action::Refuse],
            _ if self.borrows() => self.plan_to_take(Fill::Copy),
            _ if shared => &[Action::DisplaceOthers],
            _ => &[],
        }
    }

    /// What the page tables have is taken out first: the slot may be left like this, and the owner of the frame that
    /// it showed can write that from then on.
    fn plan_to_take(self, fill: Fill) -> &'static [Action] {
        match (self.may_be_entered(), fill) {
            (true, Fill::Copy) => &[Action::Remove, Action::TakeReserved(Fill::Copy)],
            (true, _) => &[Action::Remove, Action::TakeReserved(Fill::AsIs)],
            (false, Fill::Copy) => &[Action::TakeReserved(Fill::Copy)],
            (false, _) => &[Action::TakeReserved(Fill::AsIs)],
        }
    }

    fn borrows(self) -> bool {
        !self.is_owner()
    }

    /// Whether the page tables may have a frame that is not the region's own, entered by a handler.
    pub(super) fn may_be_entered(self) -> bool {
        matches!(self, Self::Borrower { entered: true } | Self::Displaced { entered: true, .. })
    }

    /// What it is once an action of its plan is done.
    pub(super) fn after(self, action: Action) -> Self {
        match (action, self) {
            (Action::Supply, Self::Unready(_)) => Self::Exclusive(Pages::Absent),
            (Action::TakeBack, Self::Exclusive(_)) => Self::Unready(Lack::Clear),
            (Action::Leave, Self::Exclusive(_)) => Self::Exclusive(Pages::InPlace),
            (Action::Enter { .. }, Self::Exclusive(_)) => Self::Exclusive(Pages::Entered),
            (Action::Enter { .. }, Self::Owner(_)) => Self::Owner(Pages::Entered),
            (Action::Enter { .. }, Self::Borrower { .. }) => Self::Borrower { entered: true },
            (Action::Remove, Self::Borrower { .. }) => Self::Borrower { entered: false },
            (Action::Remove, Self::Displaced { owner, .. }) => {
                Self::Displaced { owner, entered: false }
            }
            (Action::TakeReserved(_), Self::Lost { .. }) => Self::Lost { owner: true },
            (Action::TakeReserved(_), _) => {
                Self::Displaced { owner: true, entered: self.may_be_entered() }
            }
            (Action::MapInPlace, _) => Self::Exclusive(Pages::InPlace),
            (Action::Unprotect, Self::Owner(pages)) => Self::Exclusive(pages),
            (Action::Protect, Self::Exclusive(pages)) => Self::Owner(pages),
            (Action::TakeOut, Self::Exclusive(_)) => Self::Owner(Pages::Absent),
            (Action::Watch, Self::Exclusive(Pages::InPlace)) => Self::Exclusive(Pages::Entered),
            (Action::Watch, Self::Owner(Pages::InPlace)) => Self::Owner(Pages::Entered),
            (Action::ShowCopy { owner }, Self::Lost { .. }) => Self::Lost { owner },
            (Action::ShowCopy { owner }, _) => Self::Displaced { owner, entered: false },
            (Action::Inherit, Self::Borrower { entered: true }) => Self::Owner(Pages::Entered),
            (Action::Inherit, Self::Borrower { entered: false }) => Self::Owner(Pages::Absent),
            (Action::Inherit, Self::Displaced { entered, .. }) => {
                Self::Displaced { owner: true, entered }
            }
            (Action::Inherit, Self::Lost { .. }) => Self::Lost { owner: true },
            (_, unchanged) => unchanged,
        }
    }

    /// What a fork shows where its parent shows this, once that is protected; `None` if it shows zeroes in its own
    /// frame.
    pub(super) fn child(self) -> Option<Self> {
        match self {
            Self::Unready(_) => None,
            Self::Lost { .. } => Some(Self::Lost { owner: false }),
            _ => Some(Self::Borrower { entered: false }),
        }
    }

    /// What a region shows that has a frame to itself which lacks this, if anything, and that is not in its page
    /// tables.
    pub(super) fn fresh(lack: Option<Lack>) -> Self {
        lack.map_or(Self::Exclusive(Pages::Absent), Self::Unready)
    }

    /// What it is after its memory failed.
    pub(super) fn lost(self) -> Self {
        Self::Lost { owner: self.is_owner() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const EVENTS: [Event; 14] = [
        Event::Read,
        Event::Write,
        Event::Own,
        Event::Separate,
        Event::Release,
        Event::TakeBack,
        Event::Settle,
        Event::Detach { copied: false },
        Event::Detach { copied: true },
        Event::OwnerWrites,
        Event::OwnerLeft,
        Event::Forked,
        Event::TakenOut,
        Event::Watched,
    ];

    /// Every slot with what may be said of others: what is exclusive is not shared, and a borrower has an owner.
    fn each_case() -> impl Iterator<Item = (Slot, bool, Event)> {
        let shared = Slot::ALL.into_iter().flat_map(|slot| [(slot, false), (slot, true)]);
        let legal = shared.filter(|&(slot, shared)| match slot {
            Slot::Exclusive(_) | Slot::Unready(_) => !shared,
            _ if slot.borrows() => shared,
            _ => true,
        });
        legal.flat_map(|(slot, shared)| EVENTS.map(|event| (slot, shared, event)))
    }

    #[test]
    fn slot_all_is_in_the_order_of_codes() {
        for (code, slot) in Slot::ALL.into_iter().enumerate() {
            assert_eq!(slot.code(), code as u64);
        }
    }

    /// No plan lets writes through to what others show, or maps for good what is not the region's own.
    #[test]
    fn plan_of_any_slot_and_event_never_opens_a_shared_frame() {
        for (slot, shared, event) in each_case() {
            let (mut now, mut shared) = (slot, shared);
            for &action in slot.plan(shared, event) {
                let opens = match action {
                    Action::Unprotect | Action::MapInPlace => true,
                    Action::Enter { protected } => !protected,
                    _ => false,
                };
                assert!(!opens || !shared && now.is_owner(), "{slot:?} {event:?}: {now:?}");
                let is_displaced = now.is_displaced() || now.is_lost();
                let enters = matches!(action, Action::Enter { .. } | Action::Unprotect);
                assert!(!enters || !is_displaced, "{slot:?} {event:?}: shows another frame");
                let shows = enters || opens || action == Action::Leave;
                assert!(!shows || !now.is_unready(), "{slot:?} {event:?}: shows what is not ready");
                shared &= !matches!(action, Action::DisplaceOthers | Action::TakeReserved(_));
                now = now.after(action);
            }
        }
    }

    /// Each event ends where its caller goes on.
    #[test]
    fn plan_of_any_slot_and_event_ends_where_it_must() {
        for (slot, shared, event) in each_case() {
            let plan = slot.plan(shared, event);
            let end = plan.iter().fold(slot, |slot, &action| slot.after(action));
            let separates = |action| matches!(action, &Action::DisplaceOthers);
            let alone = !shared || plan.iter().any(separates) || slot.borrows();
            let ends_well = match event {
                _ if slot.is_lost() && event == Event::OwnerLeft => end.is_owner(),
                Event::Read | Event::Write | Event::Own | Event::Separate if slot.is_lost() => {
                    plan == [Action::Refuse]
                }
                Event::Release | Event::TakeBack | Event::Settle if slot.is_lost() => {
                    plan == [Action::Refuse]
                }
                Event::Read => !end.is_displaced() && !end.is_unready(),
                Event::Settle => end.is_in_place() || !end.is_exclusive() && !end.is_unready(),
                Event::Release | Event::TakeBack if slot.is_unready() => end == slot,
                Event::TakeBack if slot.is_exclusive() => end.is_unready(),
                Event::Write | Event::Own | Event::Release => end.is_exclusive() && alone,
                Event::TakeBack => end.is_exclusive() && alone,
                Event::Separate => end.is_owner() && !end.is_unready(),
                Event::OwnerLeft => end.is_owner(),
                Event::Detach { .. } => end.is_owner(),
                Event::OwnerWrites => slot.is_owner() || !end.may_be_entered(),
                Event::Forked | Event::TakenOut => !end.is_exclusive(),
                Event::Watched => !end.is_in_place(),
            };
            assert!(ends_well, "{slot:?} {shared} {event:?}: {plan:?} -> {end:?}");
        }
    }

    #[test]
    fn guess_is_a_read_only_where_nothing_can_be_in_the_page_tables() {
        assert_eq!(Slot::Borrower { entered: false }.guess(), Event::Read);
        assert_eq!(Slot::Owner(Pages::Absent).guess(), Event::Read);
        assert_eq!(Slot::Owner(Pages::InPlace).guess(), Event::Write);
        assert_eq!(Slot::Borrower { entered: true }.guess(), Event::Write);
    }

    /// What a thread does with one region of a group that has one slot.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Read(usize),
        Write(usize, u8),
        Release(usize),
        TakeBack(usize),
        Settle(usize),
        /// The kernel takes the pages out of a region's page tables: it swaps them, or is advised to.
        Forget(usize),
        Separate(usize),
        Detach(usize, bool),
        Fork(usize),
        /// By taking the parent's pages out, where it is watched.
        ForkByRemoval(usize),
        Leave(usize),
        /// Memory fails in the next copy.
        Fail,
    }

    /// A region as the kernel and its user see it.
    #[derive(Debug)]
    struct Region {
        slot: Slot,
        frame: usize,
        reserved: usize,
        /// The frame that its addresses map, if the kernel enters it by itself.
        mapped: Option<usize>,
        /// What its page tables have: a frame, and whether writes pass.
        entered: Option<(usize, bool)>,
        /// What its user expects; `None` once it does not matter.
        value: Option<u8>,
    }

    /// A group of regions of one slot, and a kernel that does as it is told.
    #[derive(Debug, Default)]
    struct Model {
        regions: BTreeMap<usize, Region>,
        frames: Vec<u8>,
        next: usize,
        fails: bool,
    }

    impl Model {
        /// A region that is ready, or whose frame holds an earlier owner's byte.
        fn new(ready: bool) -> Self {
            let held = if ready { 0 } else { 0xa5 };
            let mut model = Self { frames: vec![held], next: 1, ..Self::default() };
            let slot = if ready {
                Slot::Exclusive(Pages::InPlace)
            } else {
                Slot::fresh(Some(Lack::Clear))
            };
            let (mapped, value) = (ready.then_some(0), Some(0));
            let region = Region { slot, frame: 0, reserved: 0, mapped, entered: None, value };
            model.regions.insert(0, region);
            model
        }

        fn others(&self, of: usize) -> Vec<usize> {
            let frame = self.regions[&of].frame;
            let sharers = self.regions.iter().filter(|(_, region)| region.frame == frame);
            sharers.map(|(&id, _)| id).filter(|&id| id != of).collect()
        }

        fn at(&mut self, id: usize) -> &mut Region {
            self.regions.get_mut(&id).unwrap()
        }

        /// Whether it was done: what is lost is refused.
        fn serve(&mut self, id: usize, event: Event) -> bool {
            let plan = self.regions[&id].slot.plan(!self.others(id).is_empty(), event);
            plan.iter().all(|&action| self.apply(id, action))
        }

        fn apply(&mut self, id: usize, action: Action) -> bool {
            let frame = self.regions[&id].frame;
            match action {
                Action::Supply => self.frames[frame] = 0,
                Action::TakeBack => {
                    (self.at(id).mapped, self.at(id).entered) = (None, None);
                    self.at(id).value = Some(0);
                }
                Action::Leave => self.at(id).mapped = Some(frame),
                Action::Enter { protected } => self.at(id).entered = Some((frame, !protected)),
                Action::Remove => self.at(id).entered = None,
                Action::MapInPlace => {
                    (self.at(id).mapped, self.at(id).entered) = (Some(frame), Some((frame, true)));
                }
                Action::Unprotect | Action::Protect => {
                    let open = action == Action::Unprotect;
                    let region = self.at(id);
                    if let Some((_, writable)) = &mut region.entered {
                        *writable = open;
                    } else if region.mapped.is_some() {
                        region.entered = Some((frame, open));
                    }
                }
                Action::TakeOut => self.at(id).entered = None,
                Action::Watch => self.at(id).mapped = None,
                Action::DisplaceOthers => return self.displace_others(id),
                Action::TakeReserved(fill) => return self.take_reserved(id, fill),
                Action::Refuse => return false,
                Action::Inherit | Action::ShowCopy { .. } => {}
            }
            self.at(id).slot = self.regions[&id].slot.after(action);
            true
        }

        fn displace_others(&mut self, id: usize) -> bool {
            let others = self.others(id);
            for &other in &others {
                assert!(self.serve(other, Event::OwnerWrites));
            }
            let heir = self.regions[&others[0]].reserved;
            let fails = std::mem::take(&mut self.fails);
            self.frames[heir] = self.frames[self.regions[&id].frame];
            for (number, &other) in others.iter().enumerate() {
                self.at(other).frame = heir;
                self.apply(other, Action::ShowCopy { owner: number == 0 });
                if fails {
                    self.lose(other);
                }
            }
            true
        }

        fn take_reserved(&mut self, id: usize, fill: Fill) -> bool {
            let Region { frame, reserved, .. } = self.regions[&id];
            let fails = fill == Fill::Copy && std::mem::take(&mut self.fails);
            self.frames[reserved] = match fill {
                Fill::Copy => self.frames[frame],
                Fill::Zeroes => 0,
                Fill::AsIs => 0xa5,
            };
            self.at(id).frame = reserved;
            self.at(id).slot = self.regions[&id].slot.after(Action::TakeReserved(fill));
            if fails {
                self.lose(id);
            }
            !fails
        }

        fn lose(&mut self, id: usize) {
            let region = self.at(id);
            region.slot = region.slot.lost();
            (region.mapped, region.entered, region.value) = (None, None, None);
        }

        /// An access as the CPU makes it: by the page tables, or a fault that is served.
        fn access(&mut self, id: usize, write: Option<u8>) {
            if self.regions[&id].slot.is_lost() {
                assert!(!self.serve(id, if write.is_some() { Event::Write } else { Event::Read }));
                return;
            }
            for _ in 0..3 {
                let Region { mapped, entered, .. } = self.regions[&id];
                match (entered, mapped, write) {
                    (Some((frame, true)), _, Some(value)) => {
                        self.frames[frame] = value;
                        self.at(id).value = Some(value);
                        return;
                    }
                    (Some((frame, _)), _, None) => {
                        let expected = self.regions[&id].value;
                        assert!(expected.is_none_or(|value| value == self.frames[frame]));
                        return;
                    }
                    (None, Some(frame), _) => self.at(id).entered = Some((frame, true)),
                    (_, _, write) => {
                        let event = if write.is_some() { Event::Write } else { Event::Read };
                        if !self.serve(id, event) {
                            assert!(self.regions[&id].slot.is_lost());
                            return;
                        }
                    }
                }
            }
            panic!("an access that never ends: {:?}", self.regions[&id]);
        }

        fn fork(&mut self, parent: usize, by_removal: bool) {
            if by_removal {
                self.serve(parent, Event::Watched);
                self.serve(parent, Event::TakenOut);
            } else {
                self.serve(parent, Event::Forked);
            }
            let Region { slot, frame, value, .. } = self.regions[&parent];
            self.frames.push(0x5a);
            let reserved = self.frames.len() - 1;
            let own = (Slot::fresh(Some(Lack::Clear)), reserved);
            let (slot, frame) = slot.child().map_or(own, |slot| (slot, frame));
            let child = Region { slot, frame, reserved, mapped: None, entered: None, value };
            self.regions.insert(self.next, child);
            self.next += 1;
        }

        fn leave(&mut self, id: usize) {
            let others = self.others(id);
            let owned = self.regions[&id].slot.is_owner();
            if let Some(&heir) = others.first().filter(|_| owned) {
                assert!(self.serve(heir, Event::OwnerLeft));
            }
            self.regions.remove(&id);
        }

        fn check(&self) {
            for (&id, region) in &self.regions {
                let others = self.others(id);
                let owners = others.iter().filter(|id| self.regions[id].slot.is_owner()).count();
                assert_eq!(owners + usize::from(region.slot.is_owner()), 1, "{self:?}");
                let writes = region.entered.is_some_and(|(_, writable)| writable);
                assert!(!writes || others.is_empty(), "{id} writes what is shared: {self:?}");
                let shows = region.entered.is_none_or(|(frame, _)| frame == region.frame);
                let may_differ = region.slot.is_displaced() || region.value.is_none();
                assert!(shows || may_differ, "{id} shows another frame: {self:?}");
                let is_seen = region.entered.is_some() || region.mapped.is_some();
                assert!(!region.slot.is_unready() || !is_seen, "{id} shows what is not ready");
            }
        }

        fn step(&mut self, step: Step) {
            let ids: Vec<usize> = self.regions.keys().copied().collect();
            let of = |number: usize| ids[number % ids.len()];
            match step {
                Step::Read(at) => self.access(of(at), None),
                Step::Write(at, value) => self.access(of(at), Some(value)),
                Step::Release(at) => self.release(of(at), Event::Release),
                Step::TakeBack(at) => self.release(of(at), Event::TakeBack),
                Step::Settle(at) => {
                    self.serve(of(at), Event::Settle);
                }
                Step::Forget(at) => {
                    let region = self.at(of(at));
                    // What holds writes back stays in the page tables of shared memory.
                    region.entered = region.entered.filter(|&(_, writable)| !writable);
                }
                Step::Separate(at) => {
                    self.serve(of(at), Event::Separate);
                }
                Step::Detach(at, copied) => {
                    let id = of(at);
                    let had = self.regions[&id].slot.borrows();
                    self.serve(id, Event::Detach { copied });
                    if had && !copied {
                        self.at(id).value = None;
                    }
                }
                Step::Fork(at) if ids.len() < 6 => self.fork(of(at), false),
                Step::ForkByRemoval(at) if ids.len() < 6 => self.fork(of(at), true),
                Step::Leave(at) if ids.len() > 1 => self.leave(of(at)),
                Step::Fail => self.fails = true,
                Step::Fork(_) | Step::ForkByRemoval(_) | Step::Leave(_) => {}
            }
            self.check();
        }

        fn release(&mut self, id: usize, event: Event) {
            let fills = Action::TakeReserved(Fill::Zeroes);
            let shared = !self.others(id).is_empty();
            let is_cleared = self.regions[&id].slot.plan(shared, event).contains(&fills);
            if self.serve(id, event) {
                if !is_cleared && !self.regions[&id].slot.is_unready() {
                    let frame = self.regions[&id].frame;
                    self.frames[frame] = 0;
                }
                self.at(id).value = Some(0);
            }
        }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let id = || 0..6_usize;
        let step = prop_oneof![
            4 => id().prop_map(Step::Read),
            4 => (id(), any::<u8>()).prop_map(|(id, value)| Step::Write(id, value)),
            1 => id().prop_map(Step::Release),
            2 => id().prop_map(Step::TakeBack),
            1 => id().prop_map(Step::Settle),
            1 => id().prop_map(Step::Forget),
            1 => id().prop_map(Step::Separate),
            1 => (id(), any::<bool>()).prop_map(|(id, copied)| Step::Detach(id, copied)),
            3 => id().prop_map(Step::Fork),
            2 => id().prop_map(Step::ForkByRemoval),
            1 => id().prop_map(Step::Leave),
            1 => Just(Step::Fail),
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

        /// Whatever regions do, each reads what it wrote last, or what its parent had when it was forked.
        #[test]
        fn plans_carried_out_in_any_order_keep_each_regions_bytes(
            ready in any::<bool>(),
            steps in steps(),
        ) {
            let mut model = Model::new(ready);
            for step in steps {
                model.step(step);
            }
        }
    }
}
