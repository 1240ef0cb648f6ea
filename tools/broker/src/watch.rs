//! Weak references to files: the kernel reports when the last descriptor, mapping or message that
//! holds a file is gone.
//!
//! Pages that the kernel itself holds, such as a page in a pipe or a registered buffer, are not
//! such a reference: the file is gone then, and the page is not (see `returns.rs`). A second watch
//! reports the first hole in a file.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hugekit_sys::input::path_of;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::{self, Errno};

/// The watched files.
#[derive(Debug)]
pub(crate) struct Watches {
    ends: OwnedFd,
    /// The queue of notices of holes: at most one notice for each file, so that clients cannot fill
    /// the queue. Notices of ends have a queue of their own, because a watch of both events would
    /// end with its one notice.
    holes: OwnedFd,
    /// For each watch of a first hole, the watch of the file's end.
    of_hole: BTreeMap<i32, Watched>,
}

/// A watched file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Watched(i32);

#[cfg(test)]
impl Watched {
    /// Makes the ID of a watch from the kernel's number.
    pub(crate) fn of(number: i32) -> Self {
        Self(number)
    }
}

impl Watches {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
        let (ends, holes) = (inotify::init(flags)?, inotify::init(flags)?);
        Ok(Self { ends, holes, of_hole: BTreeMap::new() })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.ends.as_fd()
    }

    /// Watches a file. The error is `ENOSPC` if the user has the highest permitted number of
    /// watches.
    pub(crate) fn add(&mut self, file: impl AsFd) -> io::Result<Watched> {
        let path = path_of(file);
        let watched =
            inotify::add_watch(&self.ends, &path, WatchFlags::DELETE_SELF).map(Watched)?;
        let once = WatchFlags::MODIFY | WatchFlags::ONESHOT;
        match inotify::add_watch(&self.holes, &path, once) {
            Ok(hole) => {
                self.of_hole.insert(hole, watched);
                Ok(watched)
            }
            Err(errno) => {
                self.remove(watched);
                Err(errno)
            }
        }
    }

    /// Stops watching a file, unless the file is gone.
    pub(crate) fn remove(&self, watched: Watched) {
        let _ = inotify::remove_watch(&self.ends, watched.0);
    }

    /// Returns the files that are gone since the last call.
    pub(crate) fn gone(&self) -> io::Result<Vec<Watched>> {
        // The watch ends with its file, so that this one event is never missing.
        let ended = |(watch, kind): (i32, ReadFlags)| {
            kind.contains(ReadFlags::IGNORED).then_some(Watched(watch))
        };
        Ok(events(&self.ends)?.into_iter().filter_map(ended).collect())
    }

    /// Returns the files in which a first hole was made since the last call.
    pub(crate) fn punched(&mut self) -> io::Result<Vec<Watched>> {
        // The watch ends with its one notice, or with the file.
        let first = |(watch, kind): (i32, ReadFlags)| {
            let watched = self.of_hole.remove(&watch)?;
            kind.contains(ReadFlags::MODIFY).then_some(watched)
        };
        Ok(events(&self.holes)?.into_iter().filter_map(first).collect())
    }
}

/// Opens the same file again. Holes that are made through the descriptor of `memfd_create(2)` are
/// not reported.
pub(crate) fn open_again(file: impl AsFd) -> io::Result<OwnedFd> {
    rustix::fs::open(path_of(file), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Returns the watches that have events, with the events.
fn events(queue: &OwnedFd) -> io::Result<Vec<(i32, ReadFlags)>> {
    let mut room = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(queue, &mut room);
    let mut seen = Vec::new();
    loop {
        match events.next() {
            Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                tracing::error!("notices of leases are lost; their quota is not given back");
            }
            Ok(event) => seen.push((event.wd(), event.events())),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(seen),
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use hugekit::pool::Backing;
    use hugekit_lease::MemoryFile;

    use super::*;

    fn file() -> OwnedFd {
        MemoryFile::create("watched", 1 << 20, Backing::Base).unwrap().into_file()
    }

    #[test]
    fn file_is_gone_with_its_last_descriptor() {
        let mut watches = Watches::new().unwrap();
        let (file, other) = (file(), file());
        let watched = watches.add(&file).unwrap();
        let kept = watches.add(&other).unwrap();
        let again = file.try_clone().unwrap();
        let path = path_of(&file);
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

    /// Through a descriptor that was opened again, as clients get it, and through a mapping of it.
    #[test]
    fn first_hole_is_told_once_and_the_end_is_none() {
        let mut watches = Watches::new().unwrap();
        let files = [(); 3].map(|()| file());
        let watched = files.each_ref().map(|file| watches.add(file).unwrap());
        let [punched, removed, whole] = files.each_ref().map(|file| open_again(file).unwrap());
        drop(files);
        assert_eq!(watches.punched().unwrap(), []);
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        for _ in 0..3 {
            rustix::fs::fallocate(&punched, hole, 0, 4096).unwrap();
        }
        let removed = remove_first_page(removed);
        assert_eq!(watches.punched().unwrap(), watched[..2]);
        rustix::fs::fallocate(&punched, hole, 8192, 4096).unwrap();
        drop((punched, removed, whole));
        assert_eq!(watches.punched().unwrap(), []);
        let mut gone = watches.gone().unwrap();
        gone.sort_unstable();
        assert_eq!(gone, watched);
        assert!(watches.of_hole.is_empty());
    }

    /// By advice on a mapping that goes with the process; the descriptor is closed.
    #[allow(unsafe_code)]
    fn remove_first_page(file: OwnedFd) -> OwnedFd {
        let (read, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new shared mapping of which no reference is made, and which is unmapped again.
        unsafe {
            let start = libc::mmap(std::ptr::null_mut(), 4096, read, shared, file.as_raw_fd(), 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::madvise(start, 4096, libc::MADV_REMOVE), 0);
            assert_eq!(libc::munmap(start, 4096), 0);
        }
        file
    }

    /// The message is the only one that has it.
    #[test]
    fn file_in_a_message_is_not_gone() {
        let mut watches = Watches::new().unwrap();
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
