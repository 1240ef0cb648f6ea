//! The states of a slot, and the actions that each event needs. Pure: no kernel, no memory, no locks.
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

/// The presence of a frame in the page tables of its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// The region's addresses map the frame permanently: the kernel enters it.
    InPlace,
    /// A handler has entered it.
    Entered,
    /// A handler has to enter it: every access is a fault that hugekit serves.
    Absent,
}

/// The work that an unready frame needs before a thread may see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// A clear: the frame may hold bytes that an earlier owner left, or that the region released.
    Clear,
    /// Its pages: the file has no pages there.
    Page,
}

/// The state of a slot: what threads see there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Threads see zeroes, but the region's own frame is not ready. The region's addresses map the frame, no other
    /// region shows it, and every access is a fault that hugekit serves.
    Unready(Lack),
    /// A frame that no other region shows. The kernel lets writes through.
    Exclusive(Presence),
    /// A frame that stays with the region, whichever region writes. Writes are held back, because other regions may
    /// show the frame.
    Owner(Presence),
    /// The frame of another region, the owner. This region has a place of its own for a copy.
    Borrower {
        /// True if a handler has entered it into the page tables.
        entered: bool,
    },
    /// Another frame than the one that the region's addresses map. Every access is a fault that hugekit serves.
    Displaced {
        /// True if the region owns the frame. If not, it borrows the frame.
        owner: bool,
        /// True if the page tables may still contain the earlier frame.
        entered: bool,
    },
    /// Permanently nothing: memory failed before it could be copied for the region. The addresses map no bytes.
    Lost {
        /// True if the region owns the recorded frame.
        owner: bool,
    },
}

/// An event at a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A thread reads at the region's addresses.
    Read,
    /// A thread writes at the region's addresses.
    Write,
    /// Writes must pass from now on, even if the page tables do not contain the frame.
    Own,
    /// The region needs a frame of its own that no other region shows, mapped or not.
    Separate,
    /// The region releases the bytes: all of them become zero.
    Release,
    /// Like `Release`, but the bytes may be cleared at the next access.
    TakeBack,
    /// Accesses, also by system calls, must not fault in hugekit as long as the slot is not shared.
    Settle,
    /// No thread uses the region's addresses. The region no longer needs its share of the frame, or needs only a
    /// copy.
    Detach {
        /// True if the region needs a copy of the bytes.
        copied: bool,
    },
    /// The owner of the borrowed frame is about to write.
    OwnerWrites,
    /// The owner of the borrowed frame has left. The region inherits the frame.
    OwnerLeft,
    /// A fork will share the frame.
    Forked,
    /// A fork will share the frame, and writes are held back by removal from the page tables.
    TakenOut,
    /// Accesses to pages that are not in the page tables are faults for hugekit from now on.
    Watched,
}

/// The content of a region's own frame when the region begins to show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// A copy of the frame that the region showed.
    Copy,
    Zeroes,
    /// Any bytes: no thread will look at them.
    AsIs,
}

/// A step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Clear an unready frame, or have the kernel populate it.
    Supply,
    /// Make every access a fault again, and forget the bytes.
    TakeBack,
    /// Leave the addresses to the kernel, which enters the frame by itself.
    Leave,
    /// Enter the frame into the page tables.
    Enter { protected: bool },
    /// Remove the frame from the page tables.
    Remove,
    /// Let all other regions that show the frame show one copy. One of them owns the copy.
    DisplaceOthers,
    /// Show the frame that was reserved for the region.
    TakeReserved(Fill),
    /// Map the frame permanently at the region's addresses.
    MapInPlace,
    /// Let writes through.
    Unprotect,
    /// Hold writes back.
    Protect,
    /// Hold all accesses back: remove the frame from the page tables.
    TakeOut,
    /// The kernel no longer enters the frame by itself.
    Watch,
    /// Show the copy that was made because the owner writes.
    ShowCopy {
        /// True if the region owns the copy.
        owner: bool,
    },
    /// Become the owner of the frame.
    Inherit,
    /// Return an error: the slot is lost.
    Refuse,
}

impl Slot {
    /// Every state, by its code.
    pub(super) const ALL: [Self; 16] = [
        Self::Exclusive(Presence::InPlace),
        Self::Exclusive(Presence::Entered),
        Self::Exclusive(Presence::Absent),
        Self::Owner(Presence::InPlace),
        Self::Owner(Presence::Entered),
        Self::Owner(Presence::Absent),
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

    /// Returns the index of the state in [`ALL`](Self::ALL).
    pub(super) fn code(self) -> u64 {
        match self {
            Self::Exclusive(presence) => presence as u64,
            Self::Owner(presence) => 3 + presence as u64,
            Self::Borrower { entered } => 6 + u64::from(entered),
            Self::Displaced { owner, entered } => 8 + 2 * u64::from(owner) + u64::from(entered),
            Self::Lost { owner } => 12 + u64::from(owner),
            Self::Unready(lack) => 14 + lack as u64,
        }
    }

    /// Returns true if the region owns the frame. Of all regions that show a frame, exactly one
    /// owns it.
    pub(super) fn is_owner(self) -> bool {
        match self {
            Self::Unready(_) | Self::Exclusive(_) | Self::Owner(_) => true,
            Self::Borrower { .. } => false,
            Self::Displaced { owner, .. } | Self::Lost { owner } => owner,
        }
    }

    /// Returns true if the region's addresses map its own frame.
    pub(super) fn maps_its_own(self) -> bool {
        matches!(self, Self::Unready(_) | Self::Exclusive(_) | Self::Owner(_))
    }

    pub(super) fn is_unready(self) -> bool {
        matches!(self, Self::Unready(_))
    }

    pub(super) fn is_exclusive(self) -> bool {
        matches!(self, Self::Exclusive(_))
    }

    /// Returns true if the bytes may change, or have changed, without an event.
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

    /// Returns true if the region's addresses map its frame permanently.
    pub(super) fn is_in_place(self) -> bool {
        matches!(self, Self::Exclusive(Presence::InPlace) | Self::Owner(Presence::InPlace))
    }

    /// Guesses the kind of an access that the CPU does not report: a write if the page tables may have the frame,
    /// because a read would not have faulted.
    pub(super) fn guess(self) -> Event {
        let may_be_read = match self {
            Self::Exclusive(presence) | Self::Owner(presence) => presence != Presence::Absent,
            Self::Borrower { entered } => entered,
            Self::Displaced { .. } | Self::Lost { .. } => true,
            Self::Unready(_) => false,
        };
        if may_be_read { Event::Write } else { Event::Read }
    }

    /// Returns the actions for an event, in order. `shared` is true if other regions show the frame, too.
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
            // The kernel serves the access, or another thread has served it already.
            Self::Exclusive(Presence::InPlace) | Self::Owner(Presence::InPlace) => &[],
            // Also if the frame was entered before: the program may have removed it by advice.
            Self::Exclusive(_) => &[Action::Enter { protected: false }],
            Self::Owner(_) | Self::Borrower { .. } => &[Action::Enter { protected: true }],
            // A shared frame is never mapped at addresses in use: threads could write to it before it is protected.
            Self::Displaced { .. } | Self::Lost { .. } | Self::Unready(_) => self.plan_own(shared),
        }
    }

    /// A slot that may be written is left to the kernel. A shared slot is entered for reads.
    fn plan_settle(self, shared: bool) -> &'static [Action] {
        match self {
            Self::Unready(_) => &[Action::Supply, Action::Leave],
            Self::Exclusive(Presence::Entered | Presence::Absent) => &[Action::Leave],
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

    /// The page tables lose the frame first: the slot may stay like this, and the owner of the frame can write to it
    /// from then on.
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

    /// Returns true if the page tables may contain a frame that a handler has entered and that the
    /// region does not own.
    pub(super) fn may_be_entered(self) -> bool {
        matches!(self, Self::Borrower { entered: true } | Self::Displaced { entered: true, .. })
    }

    /// Returns the state after an action of its plan.
    pub(super) fn after(self, action: Action) -> Self {
        match (action, self) {
            (Action::Supply, Self::Unready(_)) => Self::Exclusive(Presence::Absent),
            (Action::TakeBack, Self::Exclusive(_)) => Self::Unready(Lack::Clear),
            (Action::Leave, Self::Exclusive(_)) => Self::Exclusive(Presence::InPlace),
            (Action::Enter { .. }, Self::Exclusive(_)) => Self::Exclusive(Presence::Entered),
            (Action::Enter { .. }, Self::Owner(_)) => Self::Owner(Presence::Entered),
            (Action::Enter { .. }, Self::Borrower { .. }) => Self::Borrower { entered: true },
            (Action::Remove, Self::Borrower { .. }) => Self::Borrower { entered: false },
            (Action::Remove, Self::Displaced { owner, .. }) => {
                Self::Displaced { owner, entered: false }
            }
            (Action::TakeReserved(_), Self::Lost { .. }) => Self::Lost { owner: true },
            (Action::TakeReserved(_), _) => {
                Self::Displaced { owner: true, entered: self.may_be_entered() }
            }
            (Action::MapInPlace, _) => Self::Exclusive(Presence::InPlace),
            (Action::Unprotect, Self::Owner(presence)) => Self::Exclusive(presence),
            (Action::Protect, Self::Exclusive(presence)) => Self::Owner(presence),
            (Action::TakeOut, Self::Exclusive(_)) => Self::Owner(Presence::Absent),
            (Action::Watch, Self::Exclusive(Presence::InPlace)) => {
                Self::Exclusive(Presence::Entered)
            }
            (Action::Watch, Self::Owner(Presence::InPlace)) => Self::Owner(Presence::Entered),
            (Action::ShowCopy { owner }, Self::Lost { .. }) => Self::Lost { owner },
            (Action::ShowCopy { owner }, _) => Self::Displaced { owner, entered: false },
            (Action::Inherit, Self::Borrower { entered: true }) => Self::Owner(Presence::Entered),
            (Action::Inherit, Self::Borrower { entered: false }) => Self::Owner(Presence::Absent),
            (Action::Inherit, Self::Displaced { entered, .. }) => {
                Self::Displaced { owner: true, entered }
            }
            (Action::Inherit, Self::Lost { .. }) => Self::Lost { owner: true },
            (_, unchanged) => unchanged,
        }
    }

    /// Returns the state of a fork whose parent has this state, after the parent is protected. `None` if the fork
    /// shows zeroes in its own frame.
    pub(super) fn child(self) -> Option<Self> {
        match self {
            Self::Unready(_) => None,
            Self::Lost { .. } => Some(Self::Lost { owner: false }),
            _ => Some(Self::Borrower { entered: false }),
        }
    }

    /// Returns the state of a slot whose frame only this region shows, and that is not in the page tables yet. `lack`
    /// is the work that the frame still needs.
    pub(super) fn fresh(lack: Option<Lack>) -> Self {
        lack.map_or(Self::Exclusive(Presence::Absent), Self::Unready)
    }

    /// Returns the state after its memory failed.
    pub(super) fn lost(self) -> Self {
        Self::Lost { owner: self.is_owner() }
    }
}

#[cfg(test)]
mod tests;
