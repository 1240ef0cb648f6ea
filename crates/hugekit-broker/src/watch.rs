//! Weak references to files: the kernel says when the last descriptor, mapping or message that holds one is gone.
//!
//! What the kernel holds by itself, such as a page in a pipe or a registered buffer, is no such reference: the file is
//! gone then, and the page is not (see `pages.rs`).

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::{self, Errno};

/// Files that are watched.
#[derive(Debug)]
pub(crate) struct Watches(OwnedFd);

/// A watched file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Watched(i32);

impl Watches {
    pub(crate) fn new() -> io::Result<Self> {
        inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map(Self)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// `ENOSPC` where the user has as many watches as it may have.
    pub(crate) fn add(&self, file: impl AsFd) -> io::Result<Watched> {
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        inotify::add_watch(&self.0, path, WatchFlags::DELETE_SELF).map(Watched)
    }

    /// Watches it no longer, unless it is gone.
    pub(crate) fn remove(&self, watched: Watched) {
        let _ = inotify::remove_watch(&self.0, watched.0);
    }

    /// Files that are gone since the last look.
    pub(crate) fn gone(&self) -> io::Result<Vec<Watched>> {
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.0, &mut room);
        let mut gone = Vec::new();
        loop {
            match events.next() {
                // The watch ends with its file, so that this one event is never missing.
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => {
                    gone.push(Watched(event.wd()));
                }
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    tracing::error!(
                        "notices of ended leases are lost; their quota is not given back"
                    );
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(gone),
                Err(errno) => return Err(errno),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use hugekit::lease::MemoryFile;
    use hugekit::pool::Backing;

    use super::*;

    fn file() -> OwnedFd {
        MemoryFile::create("watched", 1 << 20, Backing::Base).unwrap().into_file()
    }

    #[test]
    fn file_is_gone_with_its_last_descriptor() {
        let watches = Watches::new().unwrap();
        let (file, other) = (file(), file());
        let watched = watches.add(&file).unwrap();
        let kept = watches.add(&other).unwrap();
        let again = file.try_clone().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let reopened = std::fs::File::open(path).unwrap();
        for descriptor in [file, again] {
            drop(descriptor);
            assert_eq!(watches.gone().unwrap(), []);
        }
        drop(reopened);
        assert_eq!(watches.gone().unwrap(), [watched]);
        watches.remove(kept);
        watches.remove(watched);
    }

    /// The message is the only one that has it.
    #[test]
    fn file_in_a_message_is_not_gone() {
        let watches = Watches::new().unwrap();
        let (here, there) = crate::connection::tests::pair();
        let file = file();
        let watched = watches.add(&file).unwrap();
        crate::connection::send(&here, &[1], Some(file.as_fd())).unwrap();
        drop(file);
        assert_eq!(watches.gone().unwrap(), []);
        drop(here);
        assert_eq!(watches.gone().unwrap(), []);
        drop(there);
        assert_eq!(watches.gone().unwrap(), [watched]);
    }
}
