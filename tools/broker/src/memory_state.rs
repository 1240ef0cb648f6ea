//! Free memory of a kind, and how much of the taken memory the broker knows of.

use hugekit::pool::Backing;
use hugekit_machine::available::Available;
use hugekit_machine::{Root, hugepages};

/// Memory of one kind at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryState {
    /// Free, and promised to no process.
    pub(crate) free: u64,
    /// In use or promised; `None` of memory that is not set apart, where that says nothing.
    pub(crate) taken: Option<u64>,
}

impl MemoryState {
    /// Returns the next look. If the kernel's files cannot be read, nothing is free, and as much is
    /// taken as before.
    pub(crate) fn next(self, root: &Root, backing: Backing, payer: Option<u32>) -> Self {
        if !backing.is_reserved() {
            return Self { free: available(root, payer), taken: None };
        }
        let page_size = backing.page_size() as u64;
        match hugepages::read_size(root, page_size) {
            Ok(pool) => Self {
                free: pool.unpromised() * page_size,
                taken: Some(pool.total.saturating_sub(pool.unpromised()) * page_size),
            },
            Err(_) => Self { free: 0, ..self },
        }
    }

    /// Taken memory less the memory that the broker knows of. Negative where leases have holes: the broker knows them
    /// by their full size.
    pub(crate) fn elsewhere(&self, known: u64) -> Option<i128> {
        self.taken.map(|taken| i128::from(taken) - i128::from(known))
    }
}

/// Memory that the machine leaves, and the control groups of the process that pays for it, if that is one.
pub(crate) fn available(root: &Root, payer: Option<u32>) -> u64 {
    let payer: Vec<i32> = payer.into_iter().map(u32::cast_signed).collect();
    match Available::read(root, &payer).bytes {
        // The kernel does not say.
        u64::MAX => 0,
        bytes => bytes,
    }
}
