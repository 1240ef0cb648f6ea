//! What a group needs as soon as its regions share memory: from the first fork on.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::OwnedFd;

use super::ForkError;
use super::error::{kernel, unmapped};
use super::hold::{Hold, Needs};
use hugekit_sys::mapping::{Spare, replace_by_nothing};
use hugekit_sys::memfd::{self, FilePages};
use hugekit_sys::pagemap::PageMap;
use hugekit_sys::private_pages::Private;

/// The way by which writes are held back, and reserves for the case that memory or mappings fail.
#[derive(Debug)]
pub(super) struct Sharing {
    pub(super) hold: Hold,
    spare: Private<Spare>,
    /// A file without bytes: lost slots map it.
    nothing: OwnedFd,
    /// Shows which pages are mapped; `None` if it cannot be opened.
    pub(super) pagemap: Option<PageMap>,
}

impl Sharing {
    pub(super) fn new(needs: &Needs<'_>) -> Result<Self, ForkError> {
        let pool = needs.pool;
        let spare = Private::new(Spare::new(pool.memory().file(), pool.page_size()));
        let nothing = memfd::create(c"hugekit:lost", FilePages::Shmem);
        Ok(Self {
            hold: Hold::suited_to(needs),
            spare: spare.map_err(unmapped)?,
            nothing: nothing.map_err(|errno| kernel("memfd_create", errno))?,
            pagemap: PageMap::open().ok(),
        })
    }

    /// Gives up the mappings that are kept for a process that has none left. Async-signal-safe.
    pub(super) fn release_spare(&self) {
        self.spare.release();
    }

    /// Has the kernel answer accesses to addresses by SIGBUS; whether it does.
    pub(super) fn map_nothing(&self, addresses: &Range<usize>) -> bool {
        // SAFETY: addresses of a region, of which the table says that their bytes are lost.
        unsafe { replace_by_nothing(&self.nothing, addresses) }.is_ok()
    }
}
