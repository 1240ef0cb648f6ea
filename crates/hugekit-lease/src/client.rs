//! A program that asks a broker.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::io::Errno;

use super::error::{LeaseError, Unfit};
use super::memory_file::MemoryFile;
use super::protocol::{Answer, LONGEST, Payer, Request, Status};
use hugekit_sys::backing::Backing;
use hugekit_sys::headroom::{self, HeapShortage};
use hugekit_sys::seqpacket::{self, Message};

/// How long a pool's builder waits for a unit to be ready.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// What a broker is given beyond the time that a client would wait for a unit: it answers from one thread that never
/// waits, but on a machine with other things to do, or whose own host is short of memory: more than 10 s were seen.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

/// How often a connection is tried where the broker's queue is full.
const RETRY: Duration = Duration::from_millis(5);

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
    /// [`LeaseError`]: no broker, or one of another user; it refuses, with its reason; what it sends is not what was
    /// asked for.
    pub fn ask(socket: &Path, bytes: usize, wait: Duration) -> Result<Self, LeaseError> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let request = Request::Lease { bytes: bytes as u64, wait_ms };
        match exchange(socket, &request, &[], wait)? {
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

    /// Bytes of the memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// The backing of the memory.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.memory.backing()
    }

    /// Whose control group it is charged to.
    #[must_use]
    pub fn payer(&self) -> Payer {
        self.payer
    }

    /// Bytes of it that were on huge pages when the broker had populated it, as the broker says: all of it on reserved
    /// pages, and of transparent ones as many as the kernel had.
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        self.huge
    }

    /// The file, to be passed on to another program.
    #[must_use]
    pub fn into_file(self) -> OwnedFd {
        self.memory.into_file()
    }

    /// The memory that was leased.
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

/// What the broker at `socket` has.
///
/// # Errors
/// As of [`Lease::ask`].
pub fn status(socket: &Path) -> Result<Status, LeaseError> {
    match exchange(socket, &Request::Status, &[], Duration::ZERO)? {
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
/// As of [`Lease::ask`].
pub fn give_back(socket: &Path, bytes: u64, page_size: u64) -> Result<u64, LeaseError> {
    match exchange(socket, &Request::GiveBack { bytes, page_size }, &[], Duration::ZERO)? {
        (Answer::GivenBack { bytes }, None) => Ok(bytes),
        (Answer::Refused(refusal), None) => Err(LeaseError::Refused(refusal)),
        _ => Err(LeaseError::Unasked("another answer than to a request to give memory back")),
    }
}

/// Whether the memory is what was asked for and what was said.
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

fn kernel(call: &'static str) -> impl Fn(Errno) -> LeaseError {
    move |errno| LeaseError::Kernel { call, source: errno.into() }
}

/// One request with its descriptors, and its answer with the one descriptor that may come with it.
pub(crate) fn exchange(
    socket: &Path,
    request: &Request,
    files: &[BorrowedFd<'_>],
    wait: Duration,
) -> Result<(Answer, Option<OwnedFd>), LeaseError> {
    exchange_telling(socket, request, files, wait, &mut |_, _| {})
}

/// As [`exchange`], telling how far the broker is before it answers.
pub(crate) fn exchange_telling(
    socket: &Path,
    request: &Request,
    files: &[BorrowedFd<'_>],
    wait: Duration,
    tell: &mut dyn FnMut(u64, u64),
) -> Result<(Answer, Option<OwnedFd>), LeaseError> {
    headroom::check()?;
    let within = wait.saturating_add(ANSWERED_WITHIN);
    let connection = connect(socket, within)?;
    let Peer { uid, .. } = peer(&connection)?;
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        return Err(LeaseError::Untrusted { socket: socket.to_owned(), uid });
    }
    match seqpacket::send(&connection, &request.to_message(), files) {
        // It may have answered without having read: that there are too many connections.
        Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(errno) => return Err(kernel("sendmsg")(errno)),
    }
    let mut room = Vec::new();
    room.try_reserve_exact(LONGEST).map_err(|_| HeapShortage)?;
    room.resize(LONGEST, 0);
    let since = Instant::now();
    loop {
        let message = receive(&connection, &mut room, since, within)?;
        match answer(message, &room)? {
            (Answer::Loading { done, total }, None) if since.elapsed() < within => {
                tell(done, total);
            }
            (Answer::Loading { .. }, None) => return Err(LeaseError::NoAnswer { within }),
            other => return Ok(other),
        }
    }
}

/// Waits for no longer than that for room in the broker's queue.
fn connect(socket: &Path, within: Duration) -> Result<OwnedFd, LeaseError> {
    let since = Instant::now();
    loop {
        match seqpacket::connect_to(socket) {
            Err(Errno::AGAIN) if since.elapsed() < within => std::thread::sleep(RETRY),
            Err(Errno::AGAIN) => return Err(LeaseError::NoAnswer { within }),
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                return Err(kernel("socket")(errno));
            }
            Err(errno) => {
                return Err(LeaseError::NoBroker {
                    socket: socket.to_owned(),
                    source: errno.into(),
                });
            }
            Ok(connection) => return Ok(connection),
        }
    }
}

fn receive(
    connection: impl AsFd,
    room: &mut [u8],
    since: Instant,
    within: Duration,
) -> Result<Message, LeaseError> {
    let mut was_reset = false;
    loop {
        let left = within.saturating_sub(since.elapsed());
        let most = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match seqpacket::wait_for_message(&connection, &most) {
            Ok(true) => {}
            Ok(false) if left.is_zero() => return Err(LeaseError::NoAnswer { within }),
            Ok(false) | Err(Errno::INTR) => continue,
            Err(errno) => return Err(kernel("poll")(errno)),
        }
        match seqpacket::receive(&connection, room) {
            Err(Errno::AGAIN) => {}
            // The broker hung up before it had read the request; what it had answered is behind this.
            Err(Errno::CONNRESET) if !was_reset => was_reset = true,
            Err(Errno::CONNRESET | Errno::PIPE) => return Err(LeaseError::HungUp),
            other => return other.map_err(kernel("recvmsg")),
        }
    }
}

fn answer(mut message: Message, room: &[u8]) -> Result<(Answer, Option<OwnedFd>), LeaseError> {
    if message.len == 0 {
        return Err(LeaseError::HungUp);
    }
    if message.is_cut || message.descriptors.len() > 1 {
        return Err(LeaseError::Unasked("more than fits any answer"));
    }
    let answer = Answer::of_message(&room[..message.len]).map_err(LeaseError::Malformed)?;
    Ok((answer, message.descriptors.pop()))
}
