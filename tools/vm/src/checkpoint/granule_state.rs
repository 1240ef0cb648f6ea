//! The state of one granule of a VM, from one saved moment to the next, as pure functions.
//!
//! Protected memory does not change: the first access that would change it waits, and releases it.
//! There is one exception: memory that the VM releases. Its message comes before the memory is
//! gone, so the memory may still change while it is protected, until the moment after the next is
//! chosen.

/// The state of one granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GranuleState {
    /// The granule is protected, and equals the moment that was saved last.
    Saved,
    /// The granule is protected, may differ from the moment that was saved last, and is not copied.
    Changed {
        /// True if the VM released memory of the granule: it is copied again at the next moment.
        again: bool,
    },
    /// The granule is copied for the moment that is being saved.
    Copied {
        /// True if the VM released memory of the granule: it is copied again at the next moment.
        again: bool,
        /// False if the VM may write to the granule.
        is_protected: bool,
    },
    /// The VM may write to the granule, and it is not copied.
    Open {
        /// True if the VM released memory of the granule: it is copied again at the next moment but
        /// one.
        again: bool,
    },
}

/// An event of a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GranuleEvent {
    /// All memory is protected: a moment is chosen.
    Protect,
    /// The granule is left to the VM.
    Release,
    /// The granule is left to the VM, which releases memory of it.
    GiveBack,
    /// The granule is copied.
    Copy,
    /// The copies are dropped: another moment is chosen.
    Drop,
    /// The moment is saved: all granules that are [in turn](GranuleState::is_in_turn) were copied.
    Save,
    /// The last moment does not count any more.
    Forget,
}

impl GranuleState {
    /// The state of memory that was never saved.
    pub(crate) const NEW: Self = Self::Open { again: false };

    /// Returns true if the bytes of the granule belong to the moment, copied or still to be copied.
    pub(crate) fn is_in_turn(self) -> bool {
        matches!(self, Self::Changed { .. } | Self::Copied { .. })
    }

    /// Returns true if the granule must still be copied for the moment.
    pub(crate) fn is_to_copy(self) -> bool {
        matches!(self, Self::Changed { .. })
    }

    pub(crate) fn after(self, event: GranuleEvent) -> Self {
        let again = self.is_again();
        let is_protected = self.is_protected();
        match (event, self) {
            (GranuleEvent::Protect, Self::Copied { .. } | Self::Open { .. }) => {
                Self::Changed { again }
            }
            (GranuleEvent::Release, Self::Copied { .. }) => {
                Self::Copied { again, is_protected: false }
            }
            (GranuleEvent::Release, _) => Self::Open { again },
            (GranuleEvent::GiveBack, Self::Copied { .. }) => {
                Self::Copied { again: true, is_protected: false }
            }
            (GranuleEvent::GiveBack, _) => Self::Open { again: true },
            (GranuleEvent::Copy, Self::Changed { .. }) => {
                Self::Copied { again, is_protected: true }
            }
            (GranuleEvent::Drop | GranuleEvent::Save, Self::Copied { .. }) if !is_protected => {
                Self::Open { again }
            }
            (GranuleEvent::Drop, Self::Copied { .. }) => Self::Changed { again },
            (GranuleEvent::Save, Self::Copied { .. }) if again => Self::Changed { again: false },
            (GranuleEvent::Save, Self::Copied { .. }) => Self::Saved,
            (GranuleEvent::Forget, Self::Saved) => Self::Changed { again: false },
            (
                GranuleEvent::Protect
                | GranuleEvent::Copy
                | GranuleEvent::Drop
                | GranuleEvent::Save
                | GranuleEvent::Forget,
                _,
            ) => self,
        }
    }

    fn is_again(self) -> bool {
        match self {
            Self::Saved => false,
            Self::Changed { again } | Self::Copied { again, .. } | Self::Open { again } => again,
        }
    }

    fn is_protected(self) -> bool {
        !matches!(self, Self::Open { .. } | Self::Copied { is_protected: false, .. })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const STATES: [GranuleState; 9] = [
        GranuleState::Saved,
        GranuleState::Changed { again: false },
        GranuleState::Changed { again: true },
        GranuleState::Copied { again: false, is_protected: true },
        GranuleState::Copied { again: true, is_protected: true },
        GranuleState::Copied { again: false, is_protected: false },
        GranuleState::Copied { again: true, is_protected: false },
        GranuleState::Open { again: false },
        GranuleState::Open { again: true },
    ];

    /// Rows are [`STATES`], columns are the events in their order. A state is named by its position
    /// in the list.
    const AFTER: [[usize; 7]; 9] = [
        // Protect, Release, GiveBack, Copy, Drop, Save, Forget
        [0, 7, 8, 0, 0, 0, 1],
        [1, 7, 8, 3, 1, 1, 1],
        [2, 8, 8, 4, 2, 2, 2],
        [1, 5, 6, 3, 1, 0, 3],
        [2, 6, 6, 4, 2, 1, 4],
        [1, 5, 6, 5, 7, 7, 5],
        [2, 6, 6, 6, 8, 8, 6],
        [1, 7, 8, 7, 7, 7, 7],
        [2, 8, 8, 8, 8, 8, 8],
    ];

    const EVENTS: [GranuleEvent; 7] = [
        GranuleEvent::Protect,
        GranuleEvent::Release,
        GranuleEvent::GiveBack,
        GranuleEvent::Copy,
        GranuleEvent::Drop,
        GranuleEvent::Save,
        GranuleEvent::Forget,
    ];

    #[test]
    fn every_event_in_every_state_leads_where_the_table_says() {
        for (state, row) in STATES.into_iter().zip(AFTER) {
            for (event, after) in EVENTS.into_iter().zip(row) {
                assert_eq!(state.after(event), STATES[after], "{state:?} {event:?}");
            }
        }
    }

    /// A granule, with the facts about its bytes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    struct ModelGranule {
        state: GranuleState,
        /// True if its bytes may differ from those that were saved last.
        differs: bool,
        /// True if its bytes differ from the copy for this moment.
        differs_from_copy: bool,
        /// The VM released memory that may still vanish, protected or not: 2 until a moment is
        /// saved, then 1 until the next moment is chosen.
        vanishes: u8,
        /// True if memory is protected, and the moment is not saved.
        is_chosen: bool,
    }

    impl ModelGranule {
        fn changed(self) -> Self {
            Self { differs: true, differs_from_copy: true, ..self }
        }

        fn with(self, event: GranuleEvent) -> Self {
            Self { state: self.state.after(event), ..self }
        }

        /// Returns all possible next states.
        fn nexts(self) -> Vec<Self> {
            let mut nexts = Vec::new();
            if !self.state.is_protected() {
                nexts.push(self.changed());
            }
            if self.vanishes > 0 {
                nexts.push(self.changed());
            }
            nexts.push(Self { vanishes: 2, ..self.with(GranuleEvent::GiveBack) });
            nexts.push(self.with(GranuleEvent::Release));
            let vanishes = if self.vanishes == 1 { 0 } else { self.vanishes };
            nexts.push(Self { is_chosen: true, vanishes, ..self.with(GranuleEvent::Protect) });
            nexts.push(Self { differs: true, ..self.with(GranuleEvent::Forget) });
            if !self.is_chosen {
                return nexts;
            }
            nexts.push(self.with(GranuleEvent::Drop));
            if self.state.is_to_copy() {
                nexts.push(Self { differs_from_copy: false, ..self.with(GranuleEvent::Copy) });
            } else {
                let vanishes = self.vanishes.min(1);
                let differs =
                    if self.state.is_in_turn() { self.differs_from_copy } else { self.differs };
                let saved = self.with(GranuleEvent::Save);
                nexts.push(Self { differs, vanishes, is_chosen: false, ..saved });
            }
            nexts
        }
    }

    /// In every order of events, memory that differs from the saved bytes is protected only if it
    /// is copied next.
    #[test]
    fn no_change_is_skipped_whatever_happens() {
        let new = ModelGranule {
            state: GranuleState::NEW,
            differs: true,
            differs_from_copy: true,
            vanishes: 0,
            is_chosen: false,
        };
        let (mut seen, mut left) = (HashSet::from([new]), vec![new]);
        while let Some(granule) = left.pop() {
            let is_skipped = granule.state == GranuleState::Saved;
            assert!(!(is_skipped && (granule.differs || granule.vanishes > 0)), "{granule:?}");
            left.extend(granule.nexts().into_iter().filter(|next| seen.insert(*next)));
        }
        let states: HashSet<GranuleState> = seen.iter().map(|granule| granule.state).collect();
        assert_eq!(states.len(), STATES.len(), "every state was reached");
    }
}
