//! Pages as a fork and a program should find them. Nothing here knows of entries.

use std::collections::HashMap;

use hugekit_pte::Mapping;

/// A page of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) frame: u64,
    /// True if its folio must not be shared.
    pub(crate) pinned: bool,
    pub(crate) writable: bool,
    pub(crate) dirty: bool,
    pub(crate) accessed: bool,
}

impl Page {
    /// The child's page after a fork, which changes the parent's, too. In a private mapping, pages of pinned
    /// folios have a copy.
    pub(crate) fn fork(&mut self, mapping: Mapping, copies: &HashMap<u64, u64>) -> Self {
        let child = Self { accessed: false, ..*self };
        match mapping {
            Mapping::Shared => Self { dirty: false, ..child },
            Mapping::Private if self.pinned => {
                Self { frame: copies[&self.frame], pinned: false, dirty: true, ..child }
            }
            Mapping::Private => {
                self.writable = false;
                Self { writable: false, ..child }
            }
        }
    }
}
