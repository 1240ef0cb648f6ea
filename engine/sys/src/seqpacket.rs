//! Sockets of whole messages that may carry descriptors: unix(7), `SOCK_SEQPACKET`.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, recvmsg, sendmsg, socket_with,
};

use super::injection::{Call, pass};
use super::last_error;

/// The number of descriptors of a message for which there is room. The kernel drops others. The
/// number is higher than ever expected, so that unexpected descriptors are seen.
const MOST_DESCRIPTORS: usize = 33;

/// A received message.
#[derive(Debug)]
pub struct Message {
    /// The length in bytes; 0 if the other end is closed.
    pub len: usize,
    /// True if the message was longer than the buffer, or carried more descriptors than there was
    /// room for.
    pub is_cut: bool,
    pub descriptors: Vec<OwnedFd>,
}

/// Connects to a listening socket. `EAGAIN` if its queue is full: the call does not wait.
pub fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    pass(Call::Socket)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    io::retry_on_intr(|| {
        pass(Call::Connect)?;
        connect(&socket, &address)
    })?;
    Ok(socket)
}

/// Returns the process that connected or listened at the other end, at that moment. The call uses
/// libc, because rustix has a process number that is never 0. The number is 0 if this process
/// cannot see the other process, for example a container on the same machine.
pub fn peer(socket: impl AsFd) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    pass(Call::Getsockopt)?;
    // SAFETY: the kernel writes no more than `len` bytes, which `peer` has, and any of them are numbers.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    last_error(answer != 0).map(|()| peer)
}

/// Sends one message with descriptors. An error if the other end does not accept it now. `EINVAL`
/// for more descriptors than a message may carry.
pub fn send(socket: impl AsFd, message: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    io::retry_on_intr(|| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut carried = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !carried.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::Errno::INVAL);
        }
        pass(Call::Sendmsg)?;
        sendmsg(&socket, &[IoSlice::new(message)], &mut carried, SendFlags::NOSIGNAL).map(drop)
    })
}

/// Receives one message, whose start is written to `room`. Its descriptors are closed on exec.
pub fn receive(socket: impl AsFd, room: &mut [u8]) -> io::Result<Message> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut carried = RecvAncillaryBuffer::new(&mut space);
    let received = io::retry_on_intr(|| {
        pass(Call::Recvmsg)?;
        recvmsg(&socket, &mut [IoSliceMut::new(room)], &mut carried, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = Vec::new();
    for message in carried.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let is_cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(Message { len: received.bytes, is_cut, descriptors })
}

/// Waits until a message arrives or the other end is closed; `false` if neither happens within the
/// time.
pub fn wait_for_message(socket: impl AsFd, most: &Timespec) -> io::Result<bool> {
    pass(Call::Poll)?;
    let mut waited = [PollFd::new(&socket, PollFlags::IN)];
    poll(&mut waited, Some(most)).map(|ready| ready > 0)
}
