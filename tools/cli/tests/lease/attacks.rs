//! Clients that flood, lie, do not read, or go: none of it costs another client more than a moment.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use hugekit::pool::Backing;
use hugekit_lease::LeaseError;
use hugekit_lease::protocol::{Answer, LONGEST, MESSAGE, Refusal, Request};
use hugekit_testing::processes::happens;
use hugekit_testing::seed;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};

use super::daemon::{Daemon, PATIENCE};
use super::{Check, UNIT};

pub(crate) const CHECKS: &[Check] = &[
    ("nonsense_is_answered_once", nonsense),
    ("a_second_request_ends_the_connection", second_request),
    ("a_client_that_does_not_read_costs_itself", does_not_read),
    ("a_client_that_goes_while_it_waits_is_forgotten", goes),
    ("any_number_of_bytes_to_give_back_does_no_harm", give_back),
    ("descriptors_of_clients_are_not_kept", descriptors),
    ("random_bytes_do_no_harm", random),
];

/// It waits as long as a connection may be silent, and is the same on every backing.
pub(crate) const CHECKS_OF_ONE: &[Check] =
    &[("a_user_has_no_more_connections_than_it_may", connections)];

/// A connection that follows no protocol.
pub(crate) fn connection(daemon: &Daemon) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    // A broker that accepts nobody fails the test, which would wait without end.
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE)).unwrap();
    connect(&socket, &SocketAddrUnix::new(daemon.socket()).unwrap()).unwrap();
    socket
}

pub(crate) fn say(socket: &OwnedFd, message: &[u8]) {
    let mut none = SendAncillaryBuffer::default();
    // The broker may have hung up.
    let _ = sendmsg(socket, &[IoSlice::new(message)], &mut none, SendFlags::NOSIGNAL);
}

/// What the broker says; `None` once it has hung up.
pub(crate) fn hear(socket: &OwnedFd) -> Option<Answer> {
    let mut room = vec![0; LONGEST];
    let mut none: [MaybeUninit<u8>; 0] = [];
    let mut none = RecvAncillaryBuffer::new(&mut none);
    sockopt::set_socket_timeout(socket, Timeout::Recv, Some(PATIENCE)).unwrap();
    let heard = recvmsg(socket, &mut [IoSliceMut::new(&mut room)], &mut none, RecvFlags::empty());
    assert!(!matches!(heard, Err(Errno::AGAIN)), "the broker neither answers nor hangs up");
    let len = heard.map_or(0, |heard| heard.bytes);
    (len > 0).then(|| Answer::of_message(&room[..len]).unwrap())
}

pub(crate) fn lease(wait_ms: u64) -> Vec<u8> {
    Request::Lease { bytes: UNIT as u64, wait_ms }.to_message()
}

fn connections(backing: Backing) {
    let all = (1_u64 << 50).to_string();
    let daemon = Daemon::listening(backing, 0, &["--keep-free", &all]);
    let before = daemon.descriptors().len();
    // Silent ones go for the others.
    let silent: Vec<_> = (0..300).map(|_| connection(&daemon)).collect();
    daemon.status().unwrap();
    assert!(daemon.descriptors().len() <= before + 64);
    // Those that wait stay.
    let waiting: Vec<_> = (0..64).map(|_| connection(&daemon)).collect();
    waiting.iter().for_each(|client| say(client, &lease(u64::MAX)));
    let since = Instant::now();
    let busy = loop {
        match daemon.status() {
            Ok(_) => assert!(since.elapsed() < PATIENCE),
            Err(busy) => break busy,
        }
    };
    assert!(matches!(busy, LeaseError::Refused(Refusal::Busy { .. })), "{busy:?}");
    drop(waiting);
    daemon.until(|status| status.waiting == 0);
    drop(silent);
    // None is kept for ever, though no other one comes.
    let silent = connection(&daemon);
    assert_eq!(hear(&silent), None);
}

fn nonsense(backing: Backing) {
    let daemon = Daemon::new(backing, 1, &[]);
    let good = lease(0);
    let mut newer = good.clone();
    newer[4] = 9;
    let messages = [&[1][..], &[0; MESSAGE], &[0xff; 4096], &good[..40], &newer];
    for message in messages {
        let socket = connection(&daemon);
        say(&socket, message);
        let refused = Answer::Refused(Refusal::NotUnderstood { newest: 1 });
        assert_eq!(hear(&socket), Some(refused));
        assert_eq!(hear(&socket), None);
    }
    let socket = connection(&daemon);
    say(&socket, &[]);
    assert_eq!(hear(&socket), None);
    assert_eq!(daemon.until(|_| true).ready, 1);
}

fn second_request(backing: Backing) {
    let all = (1_u64 << 50).to_string();
    let daemon = Daemon::listening(backing, 0, &["--keep-free", &all]);
    let socket = connection(&daemon);
    say(&socket, &lease(u64::MAX));
    daemon.until(|status| status.waiting == 1);
    say(&socket, &lease(u64::MAX));
    assert_eq!(hear(&socket), None);
    daemon.until(|status| status.waiting == 0);
}

fn does_not_read(backing: Backing) {
    let uid = rustix::process::geteuid().as_raw();
    let daemon = Daemon::new(backing, 2, &["--quota", &format!("{uid}={}", 2 * UNIT)]);
    let silent = connection(&daemon);
    say(&silent, &lease(1000));
    // What was sent is the client's, read or not.
    daemon.until(|status| status.leases == 1);
    daemon.ask(PATIENCE).unwrap();
    daemon.until(|status| status.leases == 1);
    drop(silent);
    daemon.until(|status| status.leases == 0);
}

fn goes(backing: Backing) {
    let all = (1_u64 << 50).to_string();
    let daemon = Daemon::listening(backing, 0, &["--keep-free", &all]);
    let clients: Vec<_> = (0..20).map(|_| connection(&daemon)).collect();
    clients.iter().for_each(|client| say(client, &lease(u64::MAX)));
    daemon.until(|status| status.waiting == 20);
    drop(clients);
    daemon.until(|status| status.waiting == 0);
    let daemon = Daemon::new(backing, 1, &[]);
    for _ in 0..20 {
        say(&connection(&daemon), &lease(1000));
    }
    daemon.until(|status| status.leases == 0 && status.waiting == 0 && status.ready == 1);
}

fn give_back(backing: Backing) {
    let all = (1_u64 << 50).to_string();
    let daemon = Daemon::listening(backing, 0, &["--keep-free", &all]);
    // Its claim counts while others ask.
    let waiting = connection(&daemon);
    say(&waiting, &lease(u64::MAX));
    daemon.until(|status| status.waiting == 1);
    let page_size = if backing.is_reserved() { backing.page_size() as u64 } else { 0 };
    for bytes in [0, 1, u64::MAX - 1, u64::MAX] {
        for page_size in [page_size, 1, u64::MAX] {
            let given = hugekit_lease::give_back(&daemon.socket(), bytes, page_size);
            assert_eq!(given.unwrap(), 0);
        }
    }
    daemon.until(|status| status.waiting == 1);
}

fn descriptors(backing: Backing) {
    let daemon = Daemon::new(backing, 1, &[]);
    let before = daemon.descriptors().len();
    let all: Vec<_> = (0..20).map(|_| connection(&daemon)).collect();
    for socket in &all {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let files = [file.as_fd(); 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut carried = SendAncillaryBuffer::new(&mut space);
        assert!(carried.push(SendAncillaryMessage::ScmRights(&files)));
        let message = lease(0);
        sendmsg(socket, &[IoSlice::new(&message)], &mut carried, SendFlags::NOSIGNAL).unwrap();
    }
    all.iter().for_each(|socket| drop(hear(socket)));
    let exe = std::fs::read_link("/proc/self/exe").unwrap().display().to_string();
    assert!(happens(|| !daemon.descriptors().contains(&exe)));
    drop(all);
    daemon.until(|status| status.waiting == 0 && status.ready == 1 && status.filling == 0);
    assert!(happens(|| daemon.descriptors().len() <= before));
}

fn random(backing: Backing) {
    let daemon = Daemon::new(backing, 1, &[]);
    let mut random = seed::random();
    let mut next = || random.u64(..);
    for _ in 0..200 {
        let socket = connection(&daemon);
        let mut message = lease(next() % 3);
        for _ in 0..next() % 4 {
            let at = next() as usize % message.len();
            message[at] = next() as u8;
        }
        message.truncate(next() as usize % (message.len() * 2));
        say(&socket, &message);
        if next() % 2 == 0 {
            let _ = hear(&socket);
        }
    }
    daemon.until(|status| status.leases == 0 && status.waiting == 0);
    daemon.ask(Duration::from_secs(60)).unwrap();
}
