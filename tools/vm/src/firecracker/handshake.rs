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
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Bytes of a message at most.
const LONGEST: usize = 64 << 10;

/// Receives the message and its descriptor.
pub(crate) fn receive(connection: &UnixStream) -> Result<(Vec<u8>, OwnedFd), Refusal> {
    receive_until(connection, Instant::now() + LONGEST_WAIT)
}

fn receive_until(connection: &UnixStream, until: Instant) -> Result<(Vec<u8>, OwnedFd), Refusal> {
    let (mut message, mut descriptors) = (Vec::new(), Vec::new());
    let mut room = vec![0; LONGEST];
    while !is_whole(&message) || descriptors.is_empty() {
        wait(connection, until)?;
        let received = seqpacket::receive(connection, &mut room).map_err(broken)?;
        if received.len == 0 && received.descriptors.is_empty() {
            return Err(missing(descriptors.len(), &message));
        }
        message.extend(&room[..received.len]);
        descriptors.extend(received.descriptors);
        if received.is_cut || descriptors.len() > 1 {
            return Err(Refusal::Descriptors(descriptors.len()));
        }
        if message.len() > LONGEST {
            return Err(Refusal::Layout(crate::firecracker::layout::UnfitLayout::Malformed(
                "the message is too long".to_owned(),
            )));
        }
    }
    let descriptor = descriptors.pop().ok_or(Refusal::Descriptors(0))?;
    Ok((message, descriptor))
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

fn wait(connection: &UnixStream, until: Instant) -> Result<(), Refusal> {
    let left = until.saturating_duration_since(Instant::now());
    let time = Timespec::try_from(left).map_err(|_| Refusal::Silent(LONGEST_WAIT.as_secs()))?;
    match seqpacket::wait_for_message(connection, &time) {
        Ok(true) | Err(Errno::INTR) => Ok(()),
        Ok(false) => Err(Refusal::Silent(LONGEST_WAIT.as_secs())),
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
        let (message, _) = receive(&ours).unwrap();
        assert_eq!(message, b"[{\"a\":1}[]");
        later.join().unwrap();
    }

    #[test]
    fn message_without_a_descriptor_is_refused_when_the_connection_ends() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        send_handshake(&theirs, &json!([]), None).unwrap();
        drop(theirs);
        assert!(matches!(receive(&ours), Err(Refusal::Descriptors(0))));
    }

    #[test]
    fn silent_connection_is_refused_when_its_time_is_over() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        for text in ["", "[{"] {
            theirs.write_all(text.as_bytes()).unwrap();
            assert!(matches!(receive_until(&ours, Instant::now()), Err(Refusal::Silent(5))));
        }
    }

    #[test]
    fn connection_that_ends_within_the_message_is_refused() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"[{\"base").unwrap();
        drop(theirs);
        assert!(matches!(receive(&ours), Err(Refusal::Connection(_))));
    }

    #[test]
    fn message_that_never_ends_is_refused_by_its_length() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || while theirs.write_all(b"[[[[[[[[").is_ok() {});
        assert!(receive(&ours).is_err());
        drop(ours);
        writer.join().unwrap();
    }
}
