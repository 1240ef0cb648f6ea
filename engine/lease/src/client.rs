//! The client of a broker.

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
/// The memory returns to the kernel when the last descriptor and the last mapping are gone.
#[derive(Debug)]
pub struct Lease {
    memory: MemoryFile,
    payer: Payer,
    huge: u64,
}

impl Lease {
    /// Requests `bytes` from the broker at `socket`. `bytes` must be the size of a unit of the
    /// broker. If no unit is ready, the call waits at most `wait` for a unit; if `wait` is zero,
    /// the call does not wait.
    ///
    /// The broker must run as root or as the user of this process. Another user's broker could keep
    /// the memory and write to it.
    ///
    /// # Errors
    /// - [`LeaseError::NoBroker`] if no broker listens at `socket`, and [`LeaseError::Untrusted`]
    ///   if the broker belongs to another user.
    /// - [`LeaseError::Refused`] with the broker's reason.
    /// - [`LeaseError::NoAnswer`] if the broker has not answered 30 seconds after `wait`.
    /// - Another [`LeaseError`] if the answer or its memory does not fit the request.
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

    /// Returns the length of the memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Returns the backing of the memory.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.memory.backing()
    }

    /// Returns the payer of the memory: the process whose control group is charged for it.
    #[must_use]
    pub fn payer(&self) -> Payer {
        self.payer
    }

    /// Returns the number of bytes that were on huge pages when the broker had populated the
    /// memory, according to the broker. On reserved pages these are all bytes. On transparent
    /// pages, they are as many as the kernel had.
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        self.huge
    }

    /// Returns the file of the memory, for another program.
    #[must_use]
    pub fn into_file(self) -> OwnedFd {
        self.memory.into_file()
    }

    /// Returns the leased memory.
    pub fn into_memory(self) -> MemoryFile {
        self.memory
    }
}

/// The process at the other end of a connection, at the moment when it connected or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// The number of the process; 0 if the process is in a namespace that this process cannot see.
    pub pid: u32,
    /// The effective user of the process.
    pub uid: u32,
    /// The effective group of the process.
    pub gid: u32,
}

/// Returns the process at the other end of a connection.
///
/// # Errors
/// [`LeaseError`] if `connection` is not a connection of unix(7).
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

/// Requests that the broker at `socket` returns units to the kernel until `bytes` are free, for a
/// program that starts without a lease. The broker returns only units that no client has.
/// `page_size` is the size of the reserved huge pages that the program needs, or 0 for other
/// memory. Returns the bytes of the returned units.
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
