//! A VMM as a process, held by a descriptor, so that a later process with the same number is never
//! mistaken for it.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use hugekit_machine::processes::ProcessFolder;
use hugekit_sys::pagemap::entries;
use hugekit_sys::poll::readable;
use hugekit_sys::{other_process, seqpacket};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal,
};

use crate::vmm::userfaultfd::is_userfaultfd;

/// `SO_PEERPIDFD` (Linux 6.5), which libc lacks for some targets.
const SO_PEERPIDFD: libc::c_int = 77;

/// A process, identified by a descriptor and by its start time.
#[derive(Debug)]
pub(crate) struct Process {
    pid: i32,
    uid: u32,
    started: u64,
    descriptor: OwnedFd,
    folder: ProcessFolder,
    /// The process's memory in `/proc`, locked.
    claim: Option<File>,
}

impl Process {
    /// Finds the process that connected at the other end.
    pub(crate) fn peer(connection: &UnixStream) -> io::Result<Self> {
        let peer = seqpacket::peer(connection)?;
        let Some(pid) = Pid::from_raw(peer.pid) else {
            return Err(io::Error::other(
                "the peer is in a PID namespace that is not seen from here",
            ));
        };
        let descriptor = match peer_descriptor(connection) {
            Ok(descriptor) => descriptor,
            Err(Errno::NOPROTOOPT) => pidfd_open(pid, PidfdFlags::empty())?,
            Err(errno) => return Err(errno.into()),
        };
        Self::of_descriptor(peer.pid, peer.uid, descriptor)
    }

    /// Finds the process that has this number now, and that started at `started`.
    pub(crate) fn find(pid: i32, started: u64) -> io::Result<Self> {
        let process = Self::running(pid)?;
        if process.started == started { Ok(process) } else { Err(gone()) }
    }

    /// Finds the process that has this number now.
    ///
    /// # Errors
    /// `NotFound` if the process has ended.
    pub(crate) fn running(pid: i32) -> io::Result<Self> {
        let descriptor = pidfd_open(Pid::from_raw(pid).ok_or_else(gone)?, PidfdFlags::empty())
            .map_err(|errno| if errno == Errno::SRCH { gone() } else { errno.into() })?;
        let uid = fs::metadata(format!("/proc/{pid}"))?.uid();
        Self::of_descriptor(pid, uid, descriptor)
    }

    /// Makes this process the only reader of the VM's userfaultfd, because two readers would lose
    /// each other's messages. The claim ends with this value, with this process, and with children
    /// that it forks. Only processes that may debug the VMM can open the locked file.
    ///
    /// # Errors
    /// `WouldBlock` if another process has the claim, and `PermissionDenied` without the right to
    /// debug the VMM.
    pub(crate) fn claim(&mut self) -> io::Result<()> {
        if self.claim.is_some() {
            return Ok(());
        }
        let memory = self.folder.file("mem")?;
        flock(&memory, FlockOperation::NonBlockingLockExclusive)?;
        self.claim = Some(memory);
        Ok(())
    }

    /// Returns the descriptor that holds the claim. The claim ends when the last copy of the
    /// descriptor is closed.
    #[must_use]
    pub(crate) fn claim_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.claim.as_ref().map(AsFd::as_fd)
    }

    fn of_descriptor(pid: i32, uid: u32, descriptor: OwnedFd) -> io::Result<Self> {
        let folder = ProcessFolder::open(pid)?;
        let started = folder.stat()?.started;
        let process = Self { pid, uid, started, descriptor, folder, claim: None };
        // If it lives now, the number was its own when the time was read.
        if process.has_ended() {
            return Err(gone());
        }
        Ok(process)
    }

    /// Returns the number of the process.
    #[must_use]
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the folder of the process in `/proc`.
    pub(crate) fn folder(&self) -> &ProcessFolder {
        &self.folder
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the start time in the kernel's ticks since boot.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// Returns a descriptor that is readable when the process has ended.
    #[must_use]
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Returns true if the process has ended.
    #[must_use]
    pub(crate) fn has_ended(&self) -> bool {
        self.await_end(Duration::ZERO)
    }

    /// Copies the userfaultfds that the process has open. This needs the right to debug the
    /// process.
    ///
    /// # Errors
    /// An error if that right is missing, or if the process has ended.
    pub(crate) fn userfaultfds(&self) -> io::Result<Vec<OwnedFd>> {
        let links = self.links()?;
        let found = links.iter().filter(|(_, link)| is_userfaultfd(link));
        let copies = found.map(|&(number, _)| self.copy(number));
        // The process may close any of them meanwhile.
        let is_open = |copy: &io::Result<OwnedFd>| {
            !copy.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EBADF))
        };
        copies.filter(is_open).collect()
    }

    /// Returns the numbers of the process's descriptors, and their targets.
    pub(crate) fn links(&self) -> io::Result<Vec<(i32, PathBuf)>> {
        let link = |number| Some((number, self.folder.link(&format!("fd/{number}")).ok()?.into()));
        Ok(self.folder.numbers("fd")?.into_iter().filter_map(link).collect())
    }

    /// Returns true if no page is mapped at an address. `false` if `/proc` does not report this.
    pub(crate) fn lacks(&self, address: u64) -> bool {
        let map = self.folder.file("pagemap");
        let page = address..address + 1;
        let entries = map.map(|map| entries::all(map, &page).unwrap_or_default());
        entries.is_ok_and(|entries| entries.iter().any(|entry| !entry.is_populated()))
    }

    /// Copies a descriptor of the process.
    pub(crate) fn copy(&self, number: i32) -> io::Result<OwnedFd> {
        Ok(pidfd_getfd(&self.descriptor, number, PidfdGetfdFlags::empty())?)
    }

    /// Waits until the process has ended. Returns true if it has.
    pub(crate) fn await_end(&self, most: Duration) -> bool {
        readable([self.as_fd()], Some(most)) == Ok([true])
    }

    /// Kills the process, because its memory cannot be supplied.
    ///
    /// # Errors
    /// An error if the process belongs to another user.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.descriptor, Signal::KILL) {
            // It has ended already.
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Puts an aligned 2 MiB of the process's memory on a huge page, or leaves them as they are.
    ///
    /// # Errors
    /// An error if no huge page is free, or if the kernel cannot collapse the memory now or at all.
    pub(crate) fn collapse(&self, start: u64) -> Result<(), Errno> {
        other_process::collapse(self.descriptor.as_fd(), start)
    }
}

fn peer_descriptor(connection: &UnixStream) -> Result<OwnedFd, Errno> {
    let mut descriptor: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which `descriptor` has.
    let answer = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut descriptor).cast(),
            &raw mut len,
        )
    };
    if answer != 0 {
        return Err(last_errno());
    }
    // SAFETY: on success the kernel has just opened this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn gone() -> io::Error {
    io::ErrorKind::NotFound.into()
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_of_a_connection_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Process::peer(&one).unwrap();
        assert_eq!(peer.pid(), std::process::id() as i32);
        assert!(!peer.has_ended());
        let again = Process::find(peer.pid(), peer.started()).unwrap();
        assert_eq!((again.uid(), again.started()), (peer.uid(), peer.started()));
        let other = Process::find(peer.pid(), peer.started() + 1).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn page_that_was_not_touched_is_lacking() {
        let (one, _other) = UnixStream::pair().unwrap();
        let process = Process::peer(&one).unwrap();
        let page = rustix::param::page_size();
        let mut memory = memmap2::MmapMut::map_anon(2 * page).unwrap();
        let _ = memory.advise(memmap2::Advice::NoHugePage);
        memory[0] = 1;
        let address = memory.as_ptr().addr() as u64;
        assert!(!process.lacks(address) && process.lacks(address + page as u64));
    }

    #[test]
    fn userfaultfds_of_a_process_are_found() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = hugekit_sys::userfaultfd::new_user_mode_only().unwrap();
        let found = Process::peer(&one).unwrap().userfaultfds().unwrap();
        assert!(!found.is_empty());
        drop(own);
    }
}
