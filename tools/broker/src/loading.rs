//! The load of an image: a process reads the client's files into a file of memory that the broker
//! has made.
//!
//! The broker never gets the client's descriptors. It inspects the request and leaves it in the
//! socket's queue. The loading process receives the request with the descriptors, and reads with
//! the rights of the client's user. So no file can block the broker, and no file is read that the
//! user may not read.

use std::os::fd::{BorrowedFd, OwnedFd};

use hugekit_image::Image;
use hugekit_lease::protocol::{Answer, ImageName, Load, Refusal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, Mode, memfd_create};

use crate::connection::Connection;
use crate::filler::{FillCommand, Filler};
use crate::ledger::Claim;
use crate::load::LoadOrder;
use crate::unit::{not_populated, refused};

/// An image that a process is loading for a client.
#[derive(Debug)]
pub(crate) struct Loading {
    connection: Connection,
    name: ImageName,
    is_for_all: bool,
    memory: OwnedFd,
    filler: Filler,
    claim: Claim,
    /// True if the client is gone: no answer is sent, and the process was killed.
    is_abandoned: bool,
}

/// The outcome of a load, for the client that requested it.
pub(crate) struct Loaded {
    pub(crate) connection: Connection,
    pub(crate) name: ImageName,
    pub(crate) is_for_all: bool,
    pub(crate) claim: Claim,
    /// The image, and its bytes on huge pages.
    pub(crate) outcome: Result<(Image, u64), Refusal>,
}

impl Loading {
    /// Starts the process. On failure the caller gets the connection and the claim back.
    pub(crate) fn start(
        command: &FillCommand,
        mut order: LoadOrder,
        connection: Connection,
        load: &Load,
        claim: Claim,
    ) -> Result<Self, (Connection, Claim, Refusal)> {
        let (name, is_for_all) = (load.name, load.is_for_all);
        let started = make(name).and_then(|memory| {
            order.owner = connection.owner();
            let filler = Filler::load(command, &order, &memory, connection.as_fd())?;
            Ok((memory, filler))
        });
        match started {
            Ok((memory, filler)) => {
                let is_abandoned = false;
                Ok(Self { connection, name, is_for_all, memory, filler, claim, is_abandoned })
            }
            Err(error) => Err((connection, claim, refused(&error))),
        }
    }

    pub(crate) fn account(&self) -> u32 {
        self.claim.account
    }

    /// Returns the name of the future image, unless the client is gone.
    pub(crate) fn name_to_be(&self) -> Option<ImageName> {
        (!self.is_abandoned).then_some(self.name)
    }

    /// Returns the number of bytes that may still be populated.
    pub(crate) fn claimed(&self) -> u64 {
        if self.is_abandoned { 0 } else { self.claim.bytes }
    }

    /// Returns a descriptor that is ready when the process has ended.
    pub(crate) fn ended(&self) -> BorrowedFd<'_> {
        self.filler.as_fd()
    }

    /// Returns the connection. It hangs up when the client is gone. It is always readable, because
    /// the request may still be in its queue.
    pub(crate) fn connection(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    /// Ends the process and returns the memory at once. The process itself may live as long as a
    /// file system of the client does not answer: not even SIGKILL ends a read(2) that a FUSE
    /// server has received.
    fn abandon(&mut self) {
        self.filler.kill();
        self.is_abandoned = true;
        // Refused if the file is sealed: the process is about to end then.
        let _ = rustix::fs::ftruncate(&self.memory, 0);
    }

    /// Returns the connection for a message, and returns the memory to the kernel.
    pub(crate) fn into_connection(mut self) -> Connection {
        self.abandon();
        self.connection
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    /// Returns the outcome of the process, if it has ended: the bytes on huge pages, or the reason
    /// of its failure.
    pub(crate) fn outcome(&mut self) -> Option<Result<u64, Refusal>> {
        if !self.is_abandoned && self.is_hung_up() {
            self.abandon();
        }
        Some(match self.filler.loaded() {
            Ok(None) => return None,
            // A client that is gone has no use for it.
            _ if self.is_abandoned => Err(Refusal::Ending),
            Ok(Some(Answer::Loaded(facts))) => Ok(facts.huge),
            Ok(Some(Answer::Refused(refusal))) => Err(refusal),
            Ok(Some(_)) => Err(Refusal::NotPopulated { errno: libc::EPROTO as u64, signal: 0 }),
            Err(error) => Err(refused(&error)),
        })
    }

    /// Ends the load, and returns its result.
    pub(crate) fn finish(self, outcome: Result<u64, Refusal>) -> Loaded {
        let Self { connection, name, is_for_all, claim, memory, .. } = self;
        let outcome = outcome.and_then(|huge| Ok((image(memory)?, huge)));
        Loaded { connection, name, is_for_all, claim, outcome }
    }

    fn is_hung_up(&self) -> bool {
        let mut asked = [PollFd::from_borrowed_fd(self.connection.as_fd(), PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut asked, Some(&now)).is_ok() && !asked[0].revents().is_empty()
    }
}

/// Makes the file. Every holder may open it again after the process has filled it.
fn make(name: ImageName) -> std::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(memfd_create(format!("hugekit:{name}"), flags)?)
}

/// Makes an image of the file after checks, because nothing from the process is trusted.
fn image(memory: OwnedFd) -> Result<Image, Refusal> {
    let kernel = |errno: rustix::io::Errno| refused(&errno.into());
    let errno = |error| not_populated(&error);
    let image = Image::check(memory).map_err(errno)?;
    // Cloud Hypervisor and older QEMU open a file for writing that they map privately. It is sealed.
    rustix::fs::fchmod(&image, Mode::from_raw_mode(0o666)).map_err(kernel)?;
    // The descriptor that may write goes.
    Image::check(image.open_again().map_err(errno)?).map_err(errno)
}
