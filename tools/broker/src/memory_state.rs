//! Free memory of a kind, and the used memory that the broker has accounted for.

use hugekit::pool::Backing;
use hugekit_machine::available::Available;
use hugekit_machine::{Root, hugepages};

/// Memory of one kind at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryState {
    /// Free memory that is not promised to a process.
    pub(crate) free: u64,
    /// Memory in use or promised. `None` if memory of this kind is not reserved, because this
    /// number then has no meaning.
    pub(crate) taken: Option<u64>,
}

impl MemoryState {
    /// Returns the state now. If the kernel's files cannot be read, nothing is free, and the used
    /// memory is as before.
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

    /// Returns the used memory minus the memory that the broker has accounted for. The result is
    /// negative if leases have holes, because the broker counts leases with their full size.
    pub(crate) fn elsewhere(&self, known: u64) -> Option<i128> {
        self.taken.map(|taken| i128::from(taken) - i128::from(known))
    }
}

/// Returns the available memory of the machine, and of the control groups of the paying process, if
/// there is one.
pub(crate) fn available(root: &Root, payer: Option<u32>) -> u64 {
    let payer: Vec<i32> = payer.into_iter().map(u32::cast_signed).collect();
    match Available::read(root, &payer).bytes {
        // The kernel does not say.
        u64::MAX => 0,
        bytes => bytes,
    }
}
