//! Waiting for descriptors.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{self, Errno};
use rustix::time::Timespec;

use super::injection::{Call, pass};

/// Waits until a descriptor can be read, until its other end is closed, or until the time is over;
/// `None` means no time limit. Returns true for each readable descriptor. No descriptor is readable
/// after a signal.
pub fn readable<const N: usize>(
    descriptors: [BorrowedFd<'_>; N],
    longest: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut waited = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    // A time that the kernel cannot express is for ever.
    let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
    pass(Call::Poll)?;
    match poll(&mut waited, longest.as_ref()) {
        Ok(_) => Ok(waited.map(|waited| !waited.revents().is_empty())),
        Err(Errno::INTR) => Ok([false; N]),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn descriptors_with_bytes_or_without_another_end_are_readable() {
        let [(one, to_one), (other, to_other)] = [(); 2].map(|()| rustix::pipe::pipe().unwrap());
        let look = || readable([one.as_fd(), other.as_fd()], Some(Duration::ZERO)).unwrap();
        assert_eq!(look(), [false, false]);
        io::write(&to_one, &[1]).unwrap();
        assert_eq!(look(), [true, false]);
        drop(to_other);
        assert_eq!(look(), [true, true]);
        assert_eq!(readable([one.as_fd()], None), Ok([true]));
    }
}
