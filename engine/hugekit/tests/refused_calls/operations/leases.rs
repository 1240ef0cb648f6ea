//! Memory of another process: made, looked at, asked for, and adopted.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::{Pool, PoolError, PopulateOptions};
use hugekit_lease::protocol::{Answer, Payer};
use hugekit_lease::{Lease, LeaseError, MemoryFile};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept, bind, listen, sendmsg, socket_with,
};

use super::{FOLIOS, Run, is_whole, is_zero};
use crate::case::{Point, have};

pub(super) const EACH: &[(&str, Run)] = hugekit_testing::checks![
    a_file_is_made,
    a_file_is_made_in_a_folder,
    a_file_is_adopted,
    a_lease_is_asked_for,
];

/// As long on base pages, so that it is one of shared memory in whole folios, whatever its pages.
fn bytes() -> usize {
    FOLIOS * hugekit::HUGE_PAGE_BYTES
}

fn made(backing: Backing) -> MemoryFile {
    let file = have(MemoryFile::create("test", bytes(), backing), LeaseError::kind);
    have(file.populate(&PopulateOptions::new(), None), LeaseError::kind);
    file
}

fn a_file_is_made(point: &Point, backing: Backing, _: FaultMode) {
    let make = || {
        let file = MemoryFile::create("test", bytes(), backing)?;
        file.reserve()?;
        file.populate(&PopulateOptions::new(), None)?;
        MemoryFile::check(file.into_file())?.present()
    };
    let present = point.refuse(make);
    if let Some(present) = point.unless_refused(present, LeaseError::kind) {
        point.check(present == bytes() as u64, "not all there");
    }
}

fn a_file_is_made_in_a_folder(point: &Point, _: Backing, _: FaultMode) {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = folder.path().join("memory");
    let make = || {
        let file = MemoryFile::create_in(folder.path(), bytes())?;
        file.populate(&PopulateOptions::new(), None)?;
        file.link(&path)
    };
    let made = point.unless_refused(point.refuse(make), LeaseError::kind);
    point.check(path.exists() == made.is_some(), "a name");
}

fn a_file_is_adopted(point: &Point, backing: Backing, _: FaultMode) {
    let file = made(backing).into_file();
    // SAFETY: this test does not write to it.
    let builder = unsafe { Pool::builder(bytes()).adopt(file).scrub_threads(0) };
    let built = point.refuse(|| builder.build());
    let Some(pool) = point.unless_refused(built, PoolError::kind) else { return };
    let region = pool.region(bytes()).unwrap();
    point.check(is_zero(&region), "not clean");
    drop(region);
    is_whole(point, &pool);
}

fn a_lease_is_asked_for(point: &Point, backing: Backing, _: FaultMode) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.sock");
    let file = made(backing);
    let listener = listening(&path);
    std::thread::scope(|scope| {
        scope.spawn(|| answer_all(&listener, &file));
        let asked = point.refuse(|| Lease::ask(&path, bytes(), Duration::ZERO));
        if let Some(lease) = point.unless_refused(asked, LeaseError::kind) {
            point.check(lease.bytes() == bytes(), "another size");
        }
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
    });
}

fn listening(path: &std::path::Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, 1).unwrap();
    socket
}

/// Until no connection can come any more. Makes no call that this crate's tests refuse.
fn answer_all(listener: &OwnedFd, file: &MemoryFile) {
    let page_size = file.backing().page_size() as u64;
    let answer = Answer::Leased { bytes: bytes() as u64, page_size, payer: Payer::Broker, huge: 0 };
    let message = answer.to_message();
    while let Ok(connection) = accept(listener) {
        let files = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut carried = SendAncillaryBuffer::new(&mut space);
        carried.push(SendAncillaryMessage::ScmRights(&files));
        let message = [IoSlice::new(&message)];
        let _ = sendmsg(&connection, &message, &mut carried, SendFlags::NOSIGNAL);
        // Until the client has read it: closed before its request was read, the connection is reset.
        let _ = rustix::io::read(&connection, &mut [0; 64]);
    }
}
