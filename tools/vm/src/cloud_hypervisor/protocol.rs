//! Cloud Hypervisor's migration protocol, as spoken by a process that sends a VM to the same host.
//!
//! Each request is a head of 16 bytes and its payload: the command (2 bytes), the version of the
//! protocol (2 bytes, 0), 4 bytes of zeroes, and the payload's length (8 bytes). Each answer is a
//! head of 16 bytes: the status (2 bytes), 6 bytes of zeroes, and a length (8 bytes). Numbers are
//! little-endian. A VM is sent as `Start`, `MemoryFd` for each slot, `Config`, `State`, and
//! `Complete` or `CompletePaused`.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

const HEAD: usize = 16;

/// The longest time for one request of the VMM. For some requests, the VMM makes the whole VM.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum MigrationCommand {
    Start = 1,
    Config = 2,
    State = 3,
    /// The VM is complete, and runs.
    Complete = 5,
    /// A file is the memory of a slot.
    MemoryFd = 7,
    /// The VM is complete, and stays paused.
    CompletePaused = 8,
}

impl MigrationCommand {
    /// Returns the subject of the request for an error.
    pub(crate) fn subject(self) -> &'static str {
        match self {
            Self::Start => "beginning",
            Self::Config => "configuration",
            Self::State => "state",
            Self::MemoryFd => "memory",
            Self::Complete | Self::CompletePaused => "completion",
        }
    }

    fn head(self, len: usize) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..2].copy_from_slice(&(self as u16).to_le_bytes());
        head[8..].copy_from_slice(&(len as u64).to_le_bytes());
        head
    }
}

/// The VMM's status of a successful request.
const OK: u16 = 1;

/// The reason why a request failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Broken(io::Error),
    /// The VMM refused the request. Only its API knows the reason.
    Rejected,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// The VMM that receives the VM.
#[derive(Debug)]
pub(crate) struct Receiver {
    stream: UnixStream,
}

impl Receiver {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(LONGEST_WAIT))?;
        stream.set_write_timeout(Some(LONGEST_WAIT))?;
        Ok(Self { stream })
    }

    /// Sends a request, and waits until the VMM has carried it out.
    pub(crate) fn send(
        &mut self,
        command: MigrationCommand,
        payload: &[u8],
    ) -> Result<(), Failure> {
        self.stream.write_all(&command.head(payload.len()))?;
        self.stream.write_all(payload)?;
        self.await_answer()
    }

    /// Sends the file that is the memory of a slot.
    pub(crate) fn send_memory(&mut self, slot: u32, file: BorrowedFd<'_>) -> Result<(), Failure> {
        let payload = slot.to_le_bytes();
        self.stream.write_all(&MigrationCommand::MemoryFd.head(payload.len()))?;
        let files = [file];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut carried = SendAncillaryBuffer::new(&mut space);
        assert!(carried.push(SendAncillaryMessage::ScmRights(&files)), "there is room for one");
        let parts = [IoSlice::new(&payload)];
        let sent = sendmsg(self.stream.as_fd(), &parts, &mut carried, SendFlags::NOSIGNAL);
        if sent.map_err(io::Error::from)? != payload.len() {
            return Err(io::Error::from(io::ErrorKind::WriteZero).into());
        }
        self.await_answer()
    }

    fn await_answer(&mut self) -> Result<(), Failure> {
        let mut head = [0; HEAD];
        self.stream.read_exact(&mut head)?;
        let status = u16::from_le_bytes([head[0], head[1]]);
        let len = u64::from_le_bytes(head[8..].try_into().expect("eight bytes"));
        // Answers to these requests have no payload; another one would be read as the next head.
        match (status, len) {
            (OK, 0) => Ok(()),
            (OK, _) => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
            _ => Err(Failure::Rejected),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Answers one request of `len` bytes with this head, and returns the received bytes.
    fn answered(head: [u8; HEAD], len: usize) -> (Result<(), Failure>, Vec<u8>) {
        let (one, mut other) = UnixStream::pair().unwrap();
        let vmm = thread::spawn(move || {
            let mut came = vec![0; len];
            other.read_exact(&mut came).unwrap();
            other.write_all(&head).unwrap();
            came
        });
        let sent = Receiver::new(one).unwrap().send(MigrationCommand::Config, b"{}");
        (sent, vmm.join().unwrap())
    }

    fn head(status: u16, len: u64) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..2].copy_from_slice(&status.to_le_bytes());
        head[8..].copy_from_slice(&len.to_le_bytes());
        head
    }

    #[test]
    fn request_is_its_head_and_payload() {
        let (sent, came) = answered(head(OK, 0), HEAD + 2);
        sent.unwrap();
        assert_eq!(came, [&[2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0][..], b"{}"].concat());
    }

    #[test]
    fn refusals_and_nonsense_are_errors() {
        assert!(matches!(answered(head(2, 0), HEAD + 2).0, Err(Failure::Rejected)));
        assert!(matches!(answered(head(0, 0), HEAD + 2).0, Err(Failure::Rejected)));
        assert!(matches!(answered(head(OK, 1 << 62), HEAD + 2).0, Err(Failure::Broken(_))));
    }

    #[test]
    fn vmm_that_hangs_up_is_an_error() {
        let (one, other) = UnixStream::pair().unwrap();
        drop(other);
        let sent = Receiver::new(one).unwrap().send(MigrationCommand::Start, &[]);
        assert!(matches!(sent, Err(Failure::Broken(_))));
    }
}
