//! Firecracker's handshake: one message of JSON, with a userfaultfd, which sometimes arrives a
//! moment later.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use hugekit_sys::seqpacket;
use rustix::io::Errno;
use rustix::time::Timespec;
use serde::Deserialize;

use crate::vmm::{Layout, Region, UnfitLayout, base_page};

/// The longest time until a message is complete.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The highest length of a message in bytes.
const LONGEST: usize = 64 << 10;

/// The reason why no complete message arrived.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// No more bytes arrived within the time limit.
    #[error("no whole message came within {0} s")]
    Silent(u64),
    /// The connection failed.
    #[error("the connection broke")]
    Connection(#[source] io::Error),
    /// The message has no descriptor, or several descriptors.
    #[error("its message has {0} descriptors, and one is needed")]
    Descriptors(usize),
    /// The message is longer than any message of a VMM.
    #[error("its message has more than {LONGEST} bytes")]
    Long,
}

/// A region in Firecracker's message. `page_size_kib` is an older name of `page_size`, also in
/// bytes.
#[derive(Debug, Deserialize)]
struct SentRegion {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
    page_size: Option<u64>,
    page_size_kib: Option<u64>,
}

impl SentRegion {
    fn page(&self) -> u64 {
        self.page_size.or(self.page_size_kib).unwrap_or_else(base_page)
    }

    fn region(&self) -> Region {
        Region { start: self.base_host_virt_addr, len: self.size, offset: self.offset }
    }
}

/// Returns the layout in a message, checked against a memory file of `source` bytes.
pub(crate) fn layout(message: &[u8], source: u64) -> Result<Layout, UnfitLayout> {
    let sent: Vec<SentRegion> = serde_json::from_slice(message)
        .map_err(|error| UnfitLayout::Malformed(error.to_string()))?;
    let page = sent.first().map_or(0, SentRegion::page);
    if let Some(other) = sent.iter().map(SentRegion::page).find(|&other| other != page) {
        return Err(UnfitLayout::Pages(other));
    }
    Layout::new(sent.iter().map(SentRegion::region).collect(), page).checked(source)
}

/// The bytes and descriptors that have arrived over a connection, complete or not.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) message: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// True if a descriptor was lost, because this process has reached its limit of descriptors.
    pub(crate) is_cut: bool,
}

/// Receives the message and its descriptor within a time limit. Data that arrived before an error
/// stays in `sent`.
pub(crate) fn receive(
    connection: &UnixStream,
    most: Duration,
    sent: &mut Sent,
) -> Result<(), HandshakeError> {
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
            return Err(HandshakeError::Descriptors(sent.descriptors.len()));
        }
        if sent.message.len() > LONGEST {
            return Err(HandshakeError::Long);
        }
    }
    Ok(())
}

/// Returns true if no more text is expected: the text is JSON, or cannot become JSON.
fn is_whole(message: &[u8]) -> bool {
    let parsed = serde_json::from_slice::<serde::de::IgnoredAny>(message);
    parsed.map_or_else(|error| !error.is_eof(), |_| true)
}

/// Returns the error for a connection that ends too early.
fn missing(descriptors: usize, message: &[u8]) -> HandshakeError {
    if is_whole(message) {
        HandshakeError::Descriptors(descriptors)
    } else {
        HandshakeError::Connection(io::ErrorKind::UnexpectedEof.into())
    }
}

fn wait(connection: &UnixStream, until: Instant, most: Duration) -> Result<(), HandshakeError> {
    let left = until.saturating_duration_since(Instant::now());
    let silent = || HandshakeError::Silent(most.as_secs());
    let time = Timespec::try_from(left).map_err(|_| silent())?;
    match seqpacket::wait_for_message(connection, &time) {
        Ok(true) | Err(Errno::INTR) => Ok(()),
        Ok(false) => Err(silent()),
        Err(errno) => Err(broken(errno)),
    }
}

fn broken(errno: Errno) -> HandshakeError {
    HandshakeError::Connection(errno.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use hugekit_guests::small_vmm::send_handshake;
    use serde_json::json;

    use super::*;

    const HUGE: u64 = 2 << 20;

    fn receive_all(connection: &UnixStream) -> Result<(), HandshakeError> {
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
        assert!(matches!(refused, Err(HandshakeError::Descriptors(2))));
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
        assert!(matches!(receive_all(&ours), Err(HandshakeError::Descriptors(0))));
    }

    #[test]
    fn silent_connection_is_refused_when_its_time_is_over() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        for text in ["", "[{"] {
            theirs.write_all(text.as_bytes()).unwrap();
            let received = receive(&ours, Duration::ZERO, &mut Sent::default());
            assert!(matches!(received, Err(HandshakeError::Silent(0))));
        }
    }

    #[test]
    fn connection_that_ends_within_the_message_is_refused() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"[{\"base").unwrap();
        drop(theirs);
        assert!(matches!(receive_all(&ours), Err(HandshakeError::Connection(_))));
    }

    #[test]
    fn page_size_has_two_names_and_is_one() {
        let region = |start: u64, sizes: &str| {
            format!(r#"{{"base_host_virt_addr":{start},"size":{HUGE},"offset":0{sizes}}}"#)
        };
        let size = |name: &&str| format!(r#","{name}":{HUGE}"#);
        for names in [&["page_size"][..], &["page_size_kib"], &["page_size", "page_size_kib"]] {
            let message = region(HUGE, &names.iter().map(size).collect::<String>());
            let layout = layout(format!("[{message}]").as_bytes(), HUGE).unwrap();
            assert!(layout.is_hugetlb());
            assert_eq!(layout.regions(), [Region { start: HUGE, len: HUGE, offset: 0 }]);
        }
        let mixed = format!("[{},{}]", region(HUGE, ""), region(3 * HUGE, &size(&"page_size")));
        assert_eq!(layout(mixed.as_bytes(), u64::MAX), Err(UnfitLayout::Pages(HUGE)));
    }

    #[test]
    fn garbage_is_malformed() {
        for garbage in [&b""[..], b"\xff\xfe", b"{}", b"[{}]", b"[[[[[[[[", br#"[{"size":-1}]"#] {
            let refused = layout(garbage, u64::MAX);
            assert!(matches!(refused, Err(UnfitLayout::Malformed(_))), "{refused:?}");
        }
        assert_eq!(layout(b"[]", u64::MAX), Err(UnfitLayout::Count(0)));
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
