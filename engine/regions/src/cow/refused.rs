//! Why a slot could not be given what it needs.

use rustix::io::Errno;

use hugekit_bulk::populate::PopulateError;

/// Said in the gate, where nothing is allocated.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refused {
    /// It would cost more mappings than there are for forks, or than the process has.
    Mappings,
    /// Its memory has failed.
    Broken,
    /// The kernel has no page for it.
    Unpopulated(PopulateError),
    Kernel(Errno),
}

impl Refused {
    /// Returns whether it may pass once all of the region is mapped anew.
    pub(super) fn is_for_mappings(self) -> bool {
        matches!(self, Self::Mappings | Self::Kernel(_))
    }
}

impl From<Refused> for PopulateError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Mappings | Refused::Kernel(Errno::NOMEM) => Self::OutOfMemory,
            Refused::Broken => Self::Poisoned,
            Refused::Unpopulated(error) => error,
            Refused::Kernel(errno) => Self::Kernel(std::io::Error::from(errno).kind()),
        }
    }
}
