//! Free memory of a kind, and how much of what is taken the broker knows of.

use hugekit::machine::{Memory, Root, hugepages};
use hugekit::pool::Backing;

/// Memory of one kind at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    /// Free, and promised to no process.
    pub(crate) free: u64,
    /// In use or promised; `None` of memory that is not set apart, where that says nothing.
    pub(crate) taken: Option<u64>,
}

impl Pages {
    /// What cannot be read is none.
    pub(crate) fn now(root: &Root, backing: Backing) -> Self {
        if !backing.is_reserved() {
            let free = Memory::read(root).map_or(0, |memory| memory.available);
            return Self { free, taken: None };
        }
        let page_size = backing.page_size() as u64;
        match hugepages::read_size(root, page_size) {
            Ok(pool) => Self {
                free: pool.unpromised() * page_size,
                taken: Some(pool.total.saturating_sub(pool.unpromised()) * page_size),
            },
            Err(_) => Self::default(),
        }
    }

    /// What is taken beside what the broker knows of.
    pub(crate) fn elsewhere(&self, known: u64) -> Option<u64> {
        self.taken.map(|taken| taken.saturating_sub(known))
    }
}
