//! A program that asks a broker.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use super::error::{LeaseError, Unfit};
use super::exchange::{Exchange, kernel};
use super::memory_file::MemoryFile;
use super::protocol::{Answer, Payer, Request, Status};
use hugekit_sys::backing::Backing;
use hugekit_sys::seqpacket;

/// The default time that a pool's builder waits for a unit.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// Memory from a broker: populated, zeroed, and used by no other process.
///
/// When its last descriptor and mapping are gone, the memory returns to the kernel.
#[derive(Debug)]
pub struct Lease {
    memory: MemoryFile,
    payer: Payer,
    huge: u64,
}

impl Lease {
    /// Asks the broker at `socket` for `bytes`, which are the size of its units, and waits up to `wait` for one to be
    /// ready: not at all if that is zero.
    ///
    /// The broker has to run as root or as the user of this process: another one could keep the memory and write to
    /// it.
    ///
    /// # Errors
    /// [`LeaseError`]: no broker, or one of another user; it refuses, with its reason; it has not answered 30 seconds
    /// after `wait`; it sends other memory than that.
    pub fn ask(socket: &Path, bytes: usize, wait: Duration) -> Result<Self, LeaseError> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let request = Request::Lease { bytes: bytes as u64, wait_ms };
        match Exchange::new(socket, wait).ask(&request)? {
            (Answer::Leased { bytes: said, page_size, payer, huge }, Some(file)) => {
                let memory = MemoryFile::check(file)?;
                check(&memory, bytes, said, page_size)?;
                Ok(Self { memory, payer, huge })
            }
            (Answer::Refused(refusal), None) => Err(LeaseError::Refused(refusal)),
            (Answer::Leased { .. }, None) => Err(LeaseError::Unasked("a lease without memory")),
            (Answer::Refused(_), Some(_)) => Err(LeaseError::Unasked("memory with a refusal")),
            _ => Err(LeaseError::Unasked("another answer than to a lease")),
        }
    }

    /// Returns the number of bytes of the memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Returns the backing of the memory.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.memory.backing()
    }

    /// Whose control group it is charged to.
    #[must_use]
    pub fn payer(&self) -> Payer {
        self.payer
    }

    /// Returns the number of bytes of it that were on huge pages when the broker had populated it,
    /// as the broker says: all of it on reserved pages, and of transparent ones as many as the
    /// kernel had.
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        self.huge
    }

    /// Returns the file, to be passed on to another program.
    #[must_use]
    pub fn into_file(self) -> OwnedFd {
        self.memory.into_file()
    }

    /// Returns the memory that was leased.
    pub fn into_memory(self) -> MemoryFile {
        self.memory
    }
}

/// The process on the other end of a connection, as it was when it connected or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its number; 0 if it is in a namespace that this process cannot see.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// Who is on the other end of a connection.
///
/// # Errors
/// It is no connection of unix(7).
pub fn peer(connection: impl AsFd) -> Result<Peer, LeaseError> {
    let peer = seqpacket::peer(connection).map_err(kernel("getsockopt(SO_PEERCRED)"))?;
    Ok(Peer { pid: peer.pid.unsigned_abs(), uid: peer.uid, gid: peer.gid })
}

/// Returns the status of the broker at `socket`.
///
/// # Errors
/// The errors of [`Lease::ask`].
pub fn status(socket: &Path) -> Result<Status, LeaseError> {
    match Exchange::new(socket, Duration::ZERO).ask(&Request::Status)? {
        (Answer::Status(status), None) => Ok(*status),
        (Answer::Refused(refusal), None) => Err(LeaseError::Refused(refusal)),
        _ => Err(LeaseError::Unasked("no status")),
    }
}

/// Has the broker at `socket` give units back to the kernel that no client has, if less than `bytes` are free: for a
/// program that starts without a lease. `page_size` is that of the reserved huge pages which the program needs; 0 for
/// other memory. Returns the bytes of these units.
///
/// # Errors
/// The errors of [`Lease::ask`].
pub fn give_back(socket: &Path, bytes: u64, page_size: u64) -> Result<u64, LeaseError> {
    let request = Request::GiveBack { bytes, page_size };
    match Exchange::new(socket, Duration::ZERO).ask(&request)? {
        (Answer::GivenBack { bytes }, None) => Ok(bytes),
        (Answer::Refused(refusal), None) => Err(LeaseError::Refused(refusal)),
        _ => Err(LeaseError::Unasked("another answer than to a request to give memory back")),
    }
}

/// Checks that the memory has the requested length and the promised pages.
fn check(memory: &MemoryFile, asked: usize, said: u64, page_size: u64) -> Result<(), LeaseError> {
    let (bytes, present) = (memory.bytes(), memory.present()?);
    if bytes != asked || said != asked as u64 {
        return Err(Unfit::Other { bytes, wanted: asked }.into());
    }
    if memory.backing().is_reserved() && page_size != memory.backing().page_size() as u64 {
        return Err(LeaseError::Unasked("pages of another size"));
    }
    if present < bytes as u64 {
        return Err(Unfit::NotPopulated { bytes, present }.into());
    }
    Ok(())
}
