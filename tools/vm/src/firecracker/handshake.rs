//! Firecracker's handshake: one message of JSON, with a userfaultfd, which sometimes comes a moment
//! later.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use hugekit_sys::seqpacket;
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::pager::Refusal;

/// The longest time until a message is complete.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Bytes of a message at most.
const LONGEST: usize = 64 << 10;

/// Everything that has come over a connection, whole or not.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) message: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// True if a descriptor was lost, because this process may have no more.
    pub(crate) is_cut: bool,
}

/// Receives the message and its descriptor, within a time. Everything that came before a refusal stays in `sent`.
pub(crate) fn receive(
    connection: &UnixStream,
    most: Duration,
    sent: &mut Sent,
) -> Result<(), Refusal> {
    let until = Instant::now() + most;
    let mut room = vec![0; LONGEST];
    while !is_whole(&sent.message) || sent.descriptors.is_empty() {
        wait(connection, until, most)?;
        let received = seqpacket::receive(connection, &mut room).map_err(broken)?;
        if received.len == 0 && received.descriptors.is_empty() {
            return Err(missing(sent.descriptors.len(), &sent.message));
        }
        sent.message.extend(&room[..received.len]);
        sent.descriptors.extend(received.descriptors);
        sent.is_cut |= received.is_cut;
        if sent.is_cut || sent.descriptors.len() > 1 {
            return Err(Refusal::Descriptors(sent.descriptors.len()));
        }
        if sent.message.len() > LONGEST {
            return Err(Refusal::Layout(crate::firecracker::layout::UnfitLayout::Malformed(
                "the message is too long".to_owned(),
            )));
        }
    }
    Ok(())
}

/// Returns whether nothing more of the text can come: it is JSON, or cannot become JSON.
fn is_whole(message: &[u8]) -> bool {
    let parsed = serde_json::from_slice::<serde::de::IgnoredAny>(message);
    parsed.map_or_else(|error| !error.is_eof(), |_| true)
}

/// Returns the refusal for a connection that ends too early.
fn missing(descriptors: usize, message: &[u8]) -> Refusal {
    if is_whole(message) {
        Refusal::Descriptors(descriptors)
    } else {
        Refusal::Connection(std::io::ErrorKind::UnexpectedEof.into())
    }
}

fn wait(connection: &UnixStream, until: Instant, most: Duration) -> Result<(), Refusal> {
    let left = until.saturating_duration_since(Instant::now());
    let silent = || Refusal::Silent(most.as_secs());
    let time = Timespec::try_from(left).map_err(|_| silent())?;
    match seqpacket::wait_for_message(connection, &time) {
        Ok(true) | Err(Errno::INTR) => Ok(()),
        Ok(false) => Err(silent()),
        Err(errno) => Err(broken(errno)),
    }
}

fn broken(errno: Errno) -> Refusal {
    Refusal::Connection(errno.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use hugekit_guests::small_vmm::send_handshake;
    use serde_json::json;

    use super::*;

    fn receive_all(connection: &UnixStream) -> Result<(), Refusal> {
        receive(connection, LONGEST_WAIT, &mut Sent::default())
    }

    #[test]
    fn two_descriptors_are_refused_and_kept() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        for _ in 0..2 {
            let descriptor = Some(std::os::fd::AsFd::as_fd(&file));
            (&theirs).write_all(b"[").unwrap();
            send_handshake(&theirs, &json!(1), descriptor).unwrap();
        }
        let mut sent = Sent::default();
        let refused = receive(&ours, LONGEST_WAIT, &mut sent);
        assert!(matches!(refused, Err(Refusal::Descriptors(2))));
        assert_eq!(sent.descriptors.len(), 2);
    }

    #[test]
    fn descriptor_that_comes_later_is_waited_for() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"[{\"a\"").unwrap();
        let later = std::thread::spawn(move || {
            theirs.write_all(b":1}").unwrap();
            let file = std::fs::File::open("/dev/null").unwrap();
            // The last byte of the list, as a message of its own.
            let descriptor = Some(std::os::fd::AsFd::as_fd(&file));
            send_handshake(&theirs, &json!([]), descriptor).unwrap();
        });
        let mut sent = Sent::default();
        receive(&ours, LONGEST_WAIT, &mut sent).unwrap();
        assert_eq!(sent.message, b"[{\"a\":1}[]");
        later.join().unwrap();
    }

    #[test]
    fn message_without_a_descriptor_is_refused_when_the_connection_ends() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        send_handshake(&theirs, &json!([]), None).unwrap();
        drop(theirs);
        assert!(matches!(receive_all(&ours), Err(Refusal::Descriptors(0))));
    }

    #[test]
    fn silent_connection_is_refused_when_its_time_is_over() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        for text in ["", "[{"] {
            theirs.write_all(text.as_bytes()).unwrap();
            let received = receive(&ours, Duration::ZERO, &mut Sent::default());
            assert!(matches!(received, Err(Refusal::Silent(0))));
        }
    }

    #[test]
    fn connection_that_ends_within_the_message_is_refused() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"[{\"base").unwrap();
        drop(theirs);
        assert!(matches!(receive_all(&ours), Err(Refusal::Connection(_))));
    }

    #[test]
    fn message_that_never_ends_is_refused_by_its_length() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || while theirs.write_all(b"[[[[[[[[").is_ok() {});
        assert!(receive_all(&ours).is_err());
        drop(ours);
        writer.join().unwrap();
    }
}
