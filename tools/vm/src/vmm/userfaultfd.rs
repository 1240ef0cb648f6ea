//! A userfaultfd of another process: its checks, its messages, and the pages that are put into the
//! process's memory.
#![allow(unsafe_code)]

use std::fs;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use hugekit_machine::processes::ProcessFolder;
use hugekit_sys::userfaultfd as calls;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{self, Errno};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

const UFFDIO_POISON: Opcode = opcode::read_write::<Poison>(0xAA, 0x08);

const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_REMOVE: u8 = 0x15;

/// `UFFD_FEATURE_*` of events and signals. Only remove events are supported.
const FEATURE_EVENT_FORK: u64 = 1 << 1;
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
const FEATURE_SIGBUS: u64 = 1 << 7;
const NOT_UNDERSTOOD: u64 =
    FEATURE_EVENT_FORK | FEATURE_EVENT_REMAP | FEATURE_EVENT_UNMAP | FEATURE_SIGBUS;

/// The number of words of a `struct uffd_msg`.
pub(crate) const MESSAGE_WORDS: usize = 4;

/// The C structure `struct uffdio_poison`.
#[repr(C)]
struct Poison {
    start: u64,
    len: u64,
    mode: u64,
    updated: i64,
}

/// The reason why a descriptor is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnfitDescriptor {
    /// The descriptor is not a userfaultfd.
    #[error("the descriptor is {0}, and not a userfaultfd")]
    Other(String),
    /// The VMM requested events that the pager does not support.
    #[error(
        "the userfaultfd has features {0:#x}, of which the pager understands only remove events"
    )]
    Features(u64),
    /// No handshake was made with the userfaultfd.
    #[error("the userfaultfd was never given its features (UFFDIO_API)")]
    NoHandshake,
    /// `/proc` does not describe the userfaultfd.
    #[error("/proc does not tell what the descriptor is: {0}")]
    Unknown(String),
}

/// The progress of a call that stopped early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Partial {
    /// Bytes that were done before the error.
    pub(crate) done: u64,
    pub(crate) errno: Errno,
}

impl From<(usize, Errno)> for Partial {
    fn from((done, errno): (usize, Errno)) -> Self {
        Self { done: done as u64, errno }
    }
}

/// A message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A thread waits for this address.
    Fault(u64),
    /// These addresses were released, and are zero from now on.
    Removed {
        /// The first address.
        start: u64,
        /// The end of the addresses.
        end: u64,
    },
}

impl Message {
    /// Parses a message. `None` if the words are a message of another kind, or no message.
    #[must_use]
    pub(crate) fn of_words(words: &[AtomicU64]) -> Option<Self> {
        let word = |index: usize| words[index].load(Ordering::Relaxed);
        match word(0) as u8 {
            EVENT_PAGEFAULT => Some(Self::Fault(word(2))),
            EVENT_REMOVE => Some(Self::Removed { start: word(1), end: word(2) }),
            _ => None,
        }
    }
}

/// A userfaultfd. Every operation acts on the memory of the process that made it.
#[derive(Debug)]
pub(crate) struct Userfaultfd(OwnedFd);

impl Userfaultfd {
    /// Checks the descriptor of a client. From now on reads of it do not block, in the VMM as well,
    /// which never reads.
    ///
    /// # Errors
    /// An error if the descriptor is not a userfaultfd, or has features that are not supported.
    pub(crate) fn new(descriptor: OwnedFd) -> Result<Self, UnfitDescriptor> {
        let number = descriptor.as_raw_fd();
        let unknown = |error: std::io::Error| UnfitDescriptor::Unknown(error.to_string());
        let link = fs::read_link(format!("/proc/self/fd/{number}")).map_err(unknown)?;
        if !is_userfaultfd(&link) {
            return Err(UnfitDescriptor::Other(link.display().to_string()));
        }
        let info = ProcessFolder::own().and_then(|own| own.read(&format!("fdinfo/{number}")));
        let info = String::from_utf8_lossy(&info.map_err(unknown)?).into_owned();
        let features = features_of(&info).ok_or(UnfitDescriptor::NoHandshake)?;
        if features & NOT_UNDERSTOOD != 0 {
            return Err(UnfitDescriptor::Features(features));
        }
        let flags = fcntl_getfl(&descriptor).map_err(|errno| unknown(errno.into()))?;
        fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK).map_err(|e| unknown(e.into()))?;
        Ok(Self(descriptor))
    }

    /// Returns the descriptor.
    #[must_use]
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Reads complete messages into `room`, and returns their number. The call does not wait for
    /// messages.
    ///
    /// The kernel writes directly into `room`. If `room` is memory of a file, the messages survive
    /// the end of this process at any moment: no instruction lies between the delivery of a message
    /// and its record.
    ///
    /// # Errors
    /// The kernel's error if it refuses the read.
    pub(crate) fn read(&self, room: &[AtomicU64]) -> io::Result<usize> {
        let bytes = size_of_val(room);
        // SAFETY: the kernel writes at most `bytes` bytes to `room`, which has as many; any bytes
        // are valid words, which are atomic and so may change behind a shared reference.
        let read =
            unsafe { libc::read(self.0.as_raw_fd(), room.as_ptr().cast_mut().cast(), bytes) };
        match usize::try_from(read) {
            Ok(read) => Ok(read / size_of::<[u64; MESSAGE_WORDS]>()),
            Err(_) => match last_errno() {
                Errno::AGAIN | Errno::INTR => Ok(0),
                errno => Err(errno),
            },
        }
    }

    /// Copies bytes to missing pages, and wakes the threads that wait for them.
    pub(crate) fn copy(&self, to: u64, from: &[u8]) -> Result<(), Partial> {
        Ok(calls::copy(self.as_fd(), to as usize, from)?)
    }

    /// Maps zero pages for missing pages, and wakes the threads that wait for them. Not for
    /// hugetlb.
    pub(crate) fn zero(&self, to: &Range<u64>) -> Result<(), Partial> {
        Ok(calls::map_zeroes(self.as_fd(), &in_words(to))?)
    }

    /// Makes every access to missing pages fail (Linux 6.6), and wakes the threads that wait for
    /// them.
    pub(crate) fn poison(&self, pages: &Range<u64>) -> io::Result<()> {
        let len = pages.end - pages.start;
        let mut request = Poison { start: pages.start, len, mode: 0, updated: 0 };
        // SAFETY: reads and writes one `struct uffdio_poison`. Only pages that are not there
        // change.
        unsafe { ioctl(&self.0, Updater::<UFFDIO_POISON, _>::new(&mut request)) }
    }

    /// Calls [`poison`](Self::poison) for all missing pages of a range. A page has `page` bytes.
    ///
    /// # Errors
    /// The kernel's error if it is too old, or if the memory is not registered with this
    /// descriptor.
    pub(crate) fn poison_missing(&self, pages: &Range<u64>, page: u64) -> io::Result<()> {
        let mut start = pages.start;
        while start < pages.end {
            let mut request = Poison { start, len: pages.end - start, mode: 0, updated: 0 };
            // SAFETY: as for `poison`.
            let done = unsafe { ioctl(&self.0, Updater::<UFFDIO_POISON, _>::new(&mut request)) };
            match (done, u64::try_from(request.updated)) {
                (Ok(()), _) => return Ok(()),
                (Err(_), Ok(bytes)) if bytes > 0 => start += bytes,
                // It is there.
                (Err(Errno::EXIST), _) => start += page,
                // The VMM gives memory back, and waits until that is read.
                (Err(Errno::AGAIN), _) => self.discard_messages()?,
                (Err(errno), _) => return Err(errno),
            }
        }
        Ok(())
    }

    fn discard_messages(&self) -> io::Result<()> {
        let room: [AtomicU64; MESSAGE_WORDS] = Default::default();
        while self.read(&room)? > 0 {}
        Ok(())
    }

    /// Registers addresses: first accesses to them become messages of this descriptor. `EBUSY` if
    /// another descriptor has registered them.
    pub(crate) fn register(&self, addresses: &Range<u64>) -> io::Result<()> {
        calls::register_untouched(self.as_fd(), &in_words(addresses))
    }

    /// Unregisters addresses, and leaves them to the kernel.
    ///
    /// # Errors
    /// The kernel's error if it refuses.
    pub(crate) fn unregister(&self, addresses: &Range<u64>) -> io::Result<()> {
        calls::unregister(self.as_fd(), &in_words(addresses))
    }

    /// Wakes waiting threads, which repeat their accesses.
    pub(crate) fn wake(&self, addresses: &Range<u64>) -> io::Result<()> {
        calls::wake(self.as_fd(), &in_words(addresses))
    }

    /// Returns true if a thread of the VMM is releasing memory at this moment, so that a message
    /// about it is, or was, available. The kernel reports this before it checks the addresses,
    /// which are not registered here.
    #[must_use]
    pub(crate) fn is_changing(&self, unregistered: &Range<u64>) -> bool {
        self.zero(unregistered).is_err_and(|partial| partial.errno == Errno::AGAIN)
    }
}

/// Returns true if a link of `/proc/PID/fd` refers to a userfaultfd.
pub(crate) fn is_userfaultfd(link: &std::path::Path) -> bool {
    link.as_os_str() == "anon_inode:[userfaultfd]"
}

/// Returns the features in `API:\taa:FEATURES:IOCTLS` of `fdinfo`; `None` before the handshake.
fn features_of(info: &str) -> Option<u64> {
    const INITIALIZED: u64 = 1 << 31;
    let line = info.lines().find_map(|line| line.strip_prefix("API:\t"))?;
    let features = u64::from_str_radix(line.split(':').nth(1)?, 16).ok()?;
    // Printed as a number of 32 bits whose sign may be extended.
    let features = features & u64::from(u32::MAX);
    (features & INITIALIZED != 0).then_some(features & !INITIALIZED)
}

fn in_words(addresses: &Range<u64>) -> Range<usize> {
    addresses.start as usize..addresses.end as usize
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcode_is_the_kernels() {
        assert_eq!(UFFDIO_POISON, 0xC020_AA08);
    }

    #[test]
    fn features_are_told_from_no_handshake() {
        assert_eq!(features_of("pending:\t0\ntotal:\t0\nAPI:\taa:80000008:1ff\n"), Some(8));
        assert_eq!(features_of("API:\taa:ffffffff80000008:1ff\n"), Some(8));
        assert_eq!(features_of("API:\taa:0:1ff\n"), None);
        assert_eq!(features_of("pos:\t0\n"), None);
    }

    #[test]
    fn descriptor_of_a_file_is_refused_by_its_name() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let refused = Userfaultfd::new(file.into()).unwrap_err();
        assert_eq!(refused, UnfitDescriptor::Other("/dev/null".to_owned()));
    }

    #[test]
    fn descriptor_without_a_handshake_is_refused() {
        let bare = calls::new_user_mode_only().unwrap();
        assert_eq!(Userfaultfd::new(bare).unwrap_err(), UnfitDescriptor::NoHandshake);
    }

    #[test]
    fn descriptor_whose_faults_are_signals_is_refused() {
        let signals = calls::new_user_mode_only().unwrap();
        calls::enable(&signals, FEATURE_SIGBUS).unwrap();
        let refused = Userfaultfd::new(signals).unwrap_err();
        assert_eq!(refused, UnfitDescriptor::Features(FEATURE_SIGBUS));
    }
}
