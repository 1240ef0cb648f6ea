//! Brokers that lie: a client believes nothing that it can look at.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;

use hugekit::PopulateOptions;
use hugekit::pool::Backing;
use hugekit_lease::protocol::{Answer, MESSAGE, Malformed, Payer, Refusal, Status};
use hugekit_lease::{Lease, LeaseError, MemoryFile, Unfit};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, recvmsg, sendmsg,
    socket_with,
};

use super::daemon::PATIENCE;
use super::{Check, UNIT};

pub(crate) const CHECKS: &[Check] = &[
    ("an_answer_that_is_none_is_refused", answers),
    ("memory_that_is_none_is_refused", memory),
    ("a_broker_that_hangs_up_is_no_wait", hangs_up),
];

fn listening(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, 1).unwrap();
    socket
}

/// What a client makes of a message and of what comes with it.
fn told(message: &[u8], files: &[BorrowedFd<'_>]) -> Result<Lease, LeaseError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("liar.sock");
    let listener = listening(&path);
    thread::scope(|scope| {
        let client = scope.spawn(|| Lease::ask(&path, UNIT, PATIENCE));
        let connection = accept(&listener).unwrap();
        let mut room = [0; MESSAGE];
        let mut none: [MaybeUninit<u8>; 0] = [];
        let mut none = RecvAncillaryBuffer::new(&mut none);
        let room = &mut [IoSliceMut::new(&mut room)];
        recvmsg(&connection, room, &mut none, RecvFlags::empty()).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut carried = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(carried.push(SendAncillaryMessage::ScmRights(files)));
        }
        if !message.is_empty() {
            let message = [IoSlice::new(message)];
            sendmsg(&connection, &message, &mut carried, SendFlags::NOSIGNAL).unwrap();
        }
        drop(connection);
        client.join().unwrap()
    })
}

fn leased(bytes: usize) -> Vec<u8> {
    let (bytes, page_size) = (bytes as u64, Backing::Base.page_size() as u64);
    Answer::Leased { bytes, page_size, payer: Payer::Broker, huge: 0 }.to_message()
}

fn good(bytes: usize) -> MemoryFile {
    let memory = MemoryFile::create("good", bytes, Backing::Base).unwrap();
    memory.populate(&PopulateOptions::new(), None).unwrap();
    memory
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn answers(_: Backing) {
    let memory = good(UNIT);
    let file = memory.as_fd();
    let before = descriptors();
    assert_eq!(told(&leased(UNIT), &[file]).unwrap().bytes(), UNIT);
    let unasked = |message: &[u8], files: &[BorrowedFd<'_>]| match told(message, files) {
        Err(LeaseError::Unasked(_)) => {}
        other => panic!("{other:?}"),
    };
    unasked(&leased(UNIT), &[]);
    unasked(&leased(UNIT), &[file, file]);
    unasked(&leased(UNIT), &[file; 8]);
    unasked(&Answer::Refused(Refusal::Ending).to_message(), &[file]);
    unasked(&Answer::Status(Box::new(Status::new(Backing::Base, 1, 1))).to_message(), &[]);
    unasked(&[0; 1 << 17], &[]);
    let malformed = |message: &[u8]| match told(message, &[file]) {
        Err(LeaseError::Malformed(malformed)) => malformed,
        other => panic!("{other:?}"),
    };
    assert_eq!(malformed(&[7; MESSAGE]), Malformed::Magic);
    assert_eq!(malformed(&leased(UNIT)[..9]), Malformed::Length { len: 9 });
    let mut newer = leased(UNIT);
    newer[4] = 2;
    assert_eq!(malformed(&newer), Malformed::Version { version: 2 });
    assert_eq!(descriptors(), before, "what comes with a lie is closed");
}

fn memory(_: Backing) {
    let unfit = |file: BorrowedFd<'_>| match told(&leased(UNIT), &[file]) {
        Err(LeaseError::Unfit(unfit)) => unfit,
        other => panic!("{other:?}"),
    };
    let short = good(UNIT / 2);
    let other = Unfit::Other { bytes: UNIT / 2, wanted: UNIT };
    assert_eq!(unfit(short.as_fd()), other);
    let empty = MemoryFile::create("empty", UNIT, Backing::Base).unwrap();
    assert_eq!(unfit(empty.as_fd()), Unfit::NotPopulated { bytes: UNIT, present: 0 });
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let unsealed = memfd_create("unsealed", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, UNIT as u64).unwrap();
    assert_eq!(unfit(unsealed.as_fd()), Unfit::NotSealed);
    let plain = File::open("/proc/self/exe").unwrap();
    assert_eq!(unfit(plain.as_fd()), Unfit::NoMemoryFile);
    // It says another size than that of what it sends, which is what was asked for.
    let memory = good(UNIT);
    let lie = told(&leased(UNIT / 2), &[memory.as_fd()]);
    assert!(matches!(lie, Err(LeaseError::Unfit(Unfit::Other { .. }))), "{lie:?}");
}

fn hangs_up(_: Backing) {
    assert!(matches!(told(&[], &[]), Err(LeaseError::HungUp)));
}
