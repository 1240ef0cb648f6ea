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

/// The way by which a frame that a region shows gets into the page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// The region's addresses map the frame for good: the kernel enters it.
    InPlace,
    /// A handler has entered it.
    Entered,
    /// A handler has to enter it: every access comes to us.
    Absent,
}

/// The work that an unready frame needs before a thread may see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// A clear: it may hold bytes that an earlier owner left, or that the region released.
    Clear,
    /// Its pages: the file has none there.
    Page,
}

/// The state of a slot: what threads see there.
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
        /// True if a handler has entered it into the page tables.
        entered: bool,
    },
    /// Another frame than the region's addresses map: every access comes to us.
    Displaced {
        /// True if the frame is its own. If not, it borrows it.
        owner: bool,
        /// True if the page tables may still have the frame that it showed before.
        entered: bool,
    },
    /// Nothing, for good: memory failed before it could be copied for the region. Its addresses map no bytes.
    Lost {
        /// True if the frame that is noted is its own.
        owner: bool,
    },
}

/// An event at a slot.
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
    /// Like `Release`, but the next access may clear them.
    TakeBack,
    /// Accesses to it, by system calls too, are to meet no fault of ours as long as it is not shared.
    Settle,
    /// The region's addresses are not used, and it needs its share of the frame no more, or only its copy.
    Detach {
        /// True if it keeps the bytes.
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

/// The content of a region's own frame when the region begins to show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// A copy of what the region showed.
    Copy,
    Zeroes,
    /// Whatever it is: no thread will look.
    AsIs,
}

/// A step that a plan consists of.
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
        /// True if the copy is its own.
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

    /// Returns whether the frame that it shows is its own: of all who show a frame, exactly one region owns it.
    pub(super) fn is_owner(self) -> bool {
        match self {
            Self::Unready(_) | Self::Exclusive(_) | Self::Owner(_) => true,
            Self::Borrower { .. } => false,
            Self::Displaced { owner, .. } | Self::Lost { owner } => owner,
        }
    }

    /// Returns whether the region's addresses map its own frame.
    pub(super) fn maps_its_own(self) -> bool {
        matches!(self, Self::Unready(_) | Self::Exclusive(_) | Self::Owner(_))
    }

    pub(super) fn is_unready(self) -> bool {
        matches!(self, Self::Unready(_))
    }

    pub(super) fn is_exclusive(self) -> bool {
        matches!(self, Self::Exclusive(_))
    }

    /// Returns whether its bytes may become others than they were, or are already, with no event to come before.
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

    /// Returns whether the region's addresses map its frame for good.
    pub(super) fn is_in_place(self) -> bool {
        matches!(self, Self::Exclusive(Pages::InPlace) | Self::Owner(Pages::InPlace))
    }

    /// Guesses the kind of an access that the CPU does not report: a write if the page tables may have the frame,
    /// because a read would not have faulted.
    pub(super) fn guess(self) -> Event {
        let may_be_read = match self {
            Self::Exclusive(pages) | Self::Owner(pages) => pages != Pages::Absent,
            Self::Borrower { entered } => entered,
            Self::Displaced { .. } | Self::Lost { .. } => true,
            Self::Unready(_) => false,
        };
        if may_be_read { Event::Write } else { Event::Read }
    }

    /// Returns the actions for an event, in order. `shared`: other regions show the frame, too.
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

    /// A slot that may be written is left to the kernel. A shared one is entered for reading.
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

    /// The page is taken out of the page tables first: the slot may be left like this, and the owner of the frame that
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

    /// Returns whether the page tables may have a frame that is not the region's own, entered by a handler.
    pub(super) fn may_be_entered(self) -> bool {
        matches!(self, Self::Borrower { entered: true } | Self::Displaced { entered: true, .. })
    }

    /// Returns the state after an action of its plan.
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

    /// Returns the state of a fork whose parent has this state, once that is protected; `None` if the fork shows zeroes
    /// in its own frame.
    pub(super) fn child(self) -> Option<Self> {
        match self {
            Self::Unready(_) => None,
            Self::Lost { .. } => Some(Self::Lost { owner: false }),
            _ => Some(Self::Borrower { entered: false }),
        }
    }

    /// Returns the state of a region that has a frame to itself, which lacks this, if anything, and is not in its page
    /// tables.
    pub(super) fn fresh(lack: Option<Lack>) -> Self {
        lack.map_or(Self::Exclusive(Pages::Absent), Self::Unready)
    }

    /// Returns the state after its memory failed.
    pub(super) fn lost(self) -> Self {
        Self::Lost { owner: self.is_owner() }
    }
}

#[cfg(test)]
mod tests;
