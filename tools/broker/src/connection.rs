//! One client: a connection with one request and one answer. The broker never waits for the client.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use hugekit_lease::protocol::{Answer, LONGEST_REQUEST, Malformed, Request};
use hugekit_lease::{Peer, peer};
use rustix::io::{self, Errno};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketFlags, accept_with, recvmsg, sendmsg,
};

/// A client. The connection is closed when this value is dropped; the client can still receive sent
/// messages then.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    pub(crate) peer: Peer,
    pub(crate) since: Instant,
}

/// A message of a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ClientMessage {
    Nothing,
    Request(Request),
    /// Bytes that are not a valid message.
    Nonsense(Malformed),
    /// The client is gone, or cannot be used any more.
    Gone,
}

impl Connection {
    /// Returns the next waiting client; `None` if there is none.
    pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match accept_with(listener, flags) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let Ok(peer) = peer(&socket) else { return Ok(None) };
        Ok(Some(Self { socket, peer, since: Instant::now() }))
    }

    pub(crate) fn uid(&self) -> u32 {
        self.peer.uid
    }

    pub(crate) fn pid(&self) -> u32 {
        self.peer.pid
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads one message. Descriptors that came with the message are dropped, because the call has
    /// no room for them. A load stays in the queue, with its descriptors, for the loading process.
    pub(crate) fn receive(&self) -> ClientMessage {
        match self.read(RecvFlags::PEEK) {
            ClientMessage::Request(load @ Request::Load(_)) => ClientMessage::Request(load),
            ClientMessage::Nothing => ClientMessage::Nothing,
            _ => self.read(RecvFlags::empty()),
        }
    }

    /// Removes a load from the queue that no process receives. Without this, the close of the
    /// connection would discard the answer for some clients.
    pub(crate) fn discard(&self) {
        let _ = self.read(RecvFlags::empty());
    }

    fn read(&self, how: RecvFlags) -> ClientMessage {
        let mut room = [0; LONGEST_REQUEST + 1];
        let mut none: [MaybeUninit<u8>; 0] = [];
        let mut carried = RecvAncillaryBuffer::new(&mut none);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | how;
        match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut room)], &mut carried, flags) {
            Ok(received) if received.bytes == 0 => ClientMessage::Gone,
            Ok(received) => {
                let message = &room[..received.bytes.min(room.len())];
                Request::of_message(message)
                    .map_or_else(ClientMessage::Nonsense, ClientMessage::Request)
            }
            Err(Errno::AGAIN | Errno::INTR) => ClientMessage::Nothing,
            Err(_) => ClientMessage::Gone,
        }
    }

    /// Returns the user and the group whose rights the client has; `None` if they are this
    /// process's own.
    pub(crate) fn owner(&self) -> Option<(u32, u32)> {
        let is_own = self.peer.uid == rustix::process::geteuid().as_raw();
        (!is_own).then_some((self.peer.uid, self.peer.gid))
    }

    /// Sends the answer, if the client's queue has room now.
    pub(crate) fn answer(&self, answer: &Answer, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        send(&self.socket, &answer.to_message(), file)
    }
}

/// Sends one message, completely or not at all.
pub(crate) fn send(
    socket: impl AsFd,
    message: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let files: Vec<_> = file.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut carried = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(carried.push(SendAncillaryMessage::ScmRights(&files)), "there is room for one");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    io::retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(message)], &mut carried, flags)).map(drop)
}

#[cfg(test)]
pub(crate) mod tests {
    use rustix::net::{AddressFamily, SocketType, socketpair};

    use hugekit_lease::protocol::{Load, MESSAGE};

    use super::*;

    pub(crate) fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    fn connection() -> (Connection, OwnedFd) {
        let (socket, client) = pair();
        let peer = peer(&socket).unwrap();
        (Connection { socket, peer, since: Instant::now() }, client)
    }

    #[test]
    fn request_is_received_whole_and_nonsense_is_said_to_be_that() {
        let (connection, client) = connection();
        assert_eq!(connection.receive(), ClientMessage::Nothing);
        let request = Request::Lease { bytes: 1, wait_ms: 2 };
        send(&client, &request.to_message(), None).unwrap();
        assert_eq!(connection.receive(), ClientMessage::Request(request.clone()));
        for message in [&[0; 3][..], &[0; MESSAGE], &[0; LONGEST_REQUEST + 500]] {
            send(&client, message, None).unwrap();
            assert!(matches!(connection.receive(), ClientMessage::Nonsense(_)));
        }
        drop(client);
        assert_eq!(connection.receive(), ClientMessage::Gone);
    }

    #[test]
    fn descriptors_of_a_client_are_not_received() {
        let (connection, client) = connection();
        let (file, other) = pair();
        send(&client, &Request::Status.to_message(), Some(file.as_fd())).unwrap();
        assert_eq!(connection.receive(), ClientMessage::Request(Request::Status));
        // The only other one was in the message, and is closed: the other end says so.
        drop(file);
        assert_eq!(rustix::io::read(&other, &mut [0]), Ok(0));
    }

    /// The process that loads receives it, with its descriptors.
    #[test]
    fn load_stays_in_the_queue_until_it_is_discarded() {
        let (connection, client) = connection();
        let (file, other) = pair();
        let (name, most) = ("web".parse().unwrap(), 1);
        let (is_for_all, tells_progress, state, ranges) = (false, false, None, vec![]);
        let load = Load { name, most, is_for_all, tells_progress, state, ranges };
        let load = Request::Load(Box::new(load));
        send(&client, &load.to_message(), Some(file.as_fd())).unwrap();
        drop(file);
        for _ in 0..2 {
            assert_eq!(connection.receive(), ClientMessage::Request(load.clone()));
        }
        assert_eq!(rustix::io::read(&other, &mut [0]), Err(Errno::AGAIN));
        connection.discard();
        assert_eq!(connection.receive(), ClientMessage::Nothing);
        assert_eq!(rustix::io::read(&other, &mut [0]), Ok(0));
    }
}
