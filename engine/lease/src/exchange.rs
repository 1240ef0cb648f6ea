//! One request to a broker, and its answer. Each step has a time limit, so a stopped broker blocks
//! no client.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use hugekit_sys::headroom::{self, HeapShortage};
use hugekit_sys::seqpacket::{self, Message};
use rustix::event::Timespec;
use rustix::io::Errno;

use super::client::{Peer, peer};
use super::error::LeaseError;
use super::protocol::{Answer, LONGEST, Request};

/// The time limit of a broker's answer, beyond the time that a client would wait for a unit. A
/// broker answers from one thread that never waits, but a host that was short of memory once
/// delayed the answer by more than 10 s.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// The pause between attempts to connect while the broker's queue is full.
const RETRY: Duration = Duration::from_millis(5);

/// An answer, and the descriptor that may come with it.
type Answered = (Answer, Option<OwnedFd>);

/// A connection to a broker, and the times at which the client gives up.
#[derive(Debug)]
pub(crate) struct Exchange<'a> {
    socket: &'a Path,
    since: Instant,
    /// The moment by which the broker must have room in its queue.
    connects_within: Duration,
    /// The moment by which the broker must have answered. The time begins before the connection.
    answers_within: Duration,
}

impl<'a> Exchange<'a> {
    /// With the broker at `socket`, which may wait `wait` before it answers.
    pub(crate) fn new(socket: &'a Path, wait: Duration) -> Self {
        Self {
            socket,
            since: Instant::now(),
            connects_within: ANSWERED_WITHIN,
            answers_within: wait.saturating_add(ANSWERED_WITHIN),
        }
    }

    /// Sends a request without descriptors.
    pub(crate) fn ask(&self, request: &Request) -> Result<Answered, LeaseError> {
        self.ask_with(request, &[], &mut |_, _| {})
    }

    /// Sends a request with descriptors. Calls `tell` with the progress of a load.
    pub(crate) fn ask_with(
        &self,
        request: &Request,
        files: &[BorrowedFd<'_>],
        tell: &mut dyn FnMut(u64, u64),
    ) -> Result<Answered, LeaseError> {
        headroom::check()?;
        let connection = self.connect(request)?;
        self.check_user(&connection)?;
        match seqpacket::send(&connection, &request.to_message(), files) {
            // It may have answered without having read: that there are too many connections.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(errno) => return Err(kernel("sendmsg")(errno)),
        }
        self.answer(&connection, tell)
    }

    fn check_user(&self, connection: &OwnedFd) -> Result<(), LeaseError> {
        let Peer { uid, .. } = peer(connection)?;
        if uid == 0 || uid == rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        Err(LeaseError::Untrusted { socket: self.socket.to_owned(), uid })
    }

    /// Tries again while the broker's queue is full: connect(2) itself never waits here.
    fn connect(&self, request: &Request) -> Result<OwnedFd, LeaseError> {
        loop {
            match seqpacket::connect_to(self.socket) {
                Err(Errno::AGAIN) if self.since.elapsed() < self.connects_within => {
                    std::thread::sleep(RETRY);
                }
                Err(Errno::AGAIN) => return Err(self.no_answer(self.connects_within)),
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                    return Err(kernel("socket")(errno));
                }
                Err(errno) => return Err(self.no_broker(request, errno)),
                Ok(connection) => return Ok(connection),
            }
        }
    }

    /// Returns the answer, behind the messages about the progress of a load.
    fn answer(
        &self,
        connection: &OwnedFd,
        tell: &mut dyn FnMut(u64, u64),
    ) -> Result<Answered, LeaseError> {
        let mut room = Vec::new();
        room.try_reserve_exact(LONGEST).map_err(|_| HeapShortage)?;
        room.resize(LONGEST, 0);
        loop {
            let message = self.receive(connection, &mut room)?;
            match answer(message, &room)? {
                (Answer::Loading { .. }, None) if self.left().is_zero() => {
                    return Err(self.no_answer(self.answers_within));
                }
                (Answer::Loading { done, total }, None) => tell(done, total),
                other => return Ok(other),
            }
        }
    }

    fn receive(&self, connection: impl AsFd, room: &mut [u8]) -> Result<Message, LeaseError> {
        let mut was_reset = false;
        loop {
            self.wait_for_message(&connection)?;
            match seqpacket::receive(&connection, room) {
                Err(Errno::AGAIN) => {}
                // The broker hung up before it had read the request; what it had answered is behind this.
                Err(Errno::CONNRESET) if !was_reset => was_reset = true,
                Err(Errno::CONNRESET | Errno::PIPE) => return Err(LeaseError::HungUp),
                other => return other.map_err(kernel("recvmsg")),
            }
        }
    }

    fn wait_for_message(&self, connection: impl AsFd) -> Result<(), LeaseError> {
        loop {
            let left = self.left();
            let longest = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
            let most = Timespec::try_from(left).unwrap_or(longest);
            match seqpacket::wait_for_message(&connection, &most) {
                Ok(true) => return Ok(()),
                Ok(false) if left.is_zero() => return Err(self.no_answer(self.answers_within)),
                Ok(false) | Err(Errno::INTR) => {}
                Err(errno) => return Err(kernel("poll")(errno)),
            }
        }
    }

    fn left(&self) -> Duration {
        self.answers_within.saturating_sub(self.since.elapsed())
    }

    fn no_answer(&self, within: Duration) -> LeaseError {
        LeaseError::NoAnswer { socket: self.socket.to_owned(), within }
    }

    fn no_broker(&self, request: &Request, errno: Errno) -> LeaseError {
        let unit = match request {
            Request::Lease { bytes, .. } => Some(*bytes),
            _ => None,
        };
        LeaseError::NoBroker { socket: self.socket.to_owned(), unit, source: errno.into() }
    }
}

pub(crate) fn kernel(call: &'static str) -> impl Fn(Errno) -> LeaseError {
    move |errno| LeaseError::Kernel { call, source: errno.into() }
}

fn answer(mut message: Message, room: &[u8]) -> Result<Answered, LeaseError> {
    if message.len == 0 {
        return Err(LeaseError::HungUp);
    }
    if message.is_cut || message.descriptors.len() > 1 {
        return Err(LeaseError::Unasked("more than fits any answer"));
    }
    let answer = Answer::of_message(&room[..message.len]).map_err(LeaseError::Malformed)?;
    Ok((answer, message.descriptors.pop()))
}

#[cfg(test)]
mod tests {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
    };

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    /// Returns a socket that no program serves, as that of a stopped broker.
    fn unserved(path: &Path) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        listen(&socket, 1).unwrap();
        socket
    }

    fn asked(socket: &Path, connects_within: Duration, answers_within: Duration) -> LeaseError {
        let since = Instant::now();
        let exchange = Exchange { socket, since, connects_within, answers_within };
        exchange.ask(&Request::Status).unwrap_err()
    }

    fn gave_up_after(error: LeaseError) -> Duration {
        match error {
            LeaseError::NoAnswer { within, .. } => within,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn broker_that_does_not_read_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _listener = unserved(&path);
        assert_eq!(gave_up_after(asked(&path, SHORT * 2, SHORT)), SHORT);
    }

    #[test]
    fn broker_whose_queue_stays_full_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _listener = unserved(&path);
        let mut queue = Vec::new();
        while let Ok(connection) = seqpacket::connect_to(&path) {
            queue.push(connection);
        }
        assert_eq!(gave_up_after(asked(&path, SHORT, SHORT * 2)), SHORT);
    }

    #[test]
    fn client_gives_up_30_seconds_after_its_wait() {
        let of = |wait| Exchange::new(Path::new("/socket"), wait).answers_within;
        assert_eq!(of(Duration::ZERO), ANSWERED_WITHIN);
        assert_eq!(of(Duration::from_secs(5)), ANSWERED_WITHIN + Duration::from_secs(5));
        assert_eq!(of(Duration::MAX), Duration::MAX);
    }
}
