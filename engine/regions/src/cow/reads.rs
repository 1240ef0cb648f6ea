//! How a read of shared memory is served, where the kernel has not entered the page.

use super::slot::Event;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// It is entered, protected from writes.
    Share,
    /// The reader gets a copy, as if it wrote: this kernel enters no page of a file that is protected from the
    /// beginning (Linux 6.4), and to protect it afterwards would let a write pass in between.
    Copy,
}

impl Reads {
    /// The event of a slot that a thread reads.
    pub(super) fn event(self) -> Event {
        match self {
            Self::Share => Event::Read,
            Self::Copy => Event::Write,
        }
    }
}
