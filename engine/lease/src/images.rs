//! Images that a broker holds: sealed memory with a name, loaded once and mapped by many processes.
//!
//! The broker must run as root or as the user of this process, as for a [`Lease`](crate::Lease).

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use hugekit_sys::memfd;

use super::client::status;
use super::error::LeaseError;
use super::exchange::Exchange;
use super::protocol::{Answer, ImageFacts, ImageName, ImageRow, Load, Request};

/// Requests that the broker at `socket` loads an image from open files. The call waits at most
/// `wait` for the end of the load. The broker reads the files with the rights of this process's
/// user. If the broker is stopped before the load begins, the call returns an error after 30
/// seconds.
///
/// # Errors
/// [`LeaseError`] if there is no broker, if the broker belongs to another user, or if it refuses,
/// with its reason.
pub fn load(
    socket: &Path,
    load: &Load,
    sources: &[BorrowedFd<'_>],
    wait: Duration,
) -> Result<ImageFacts, LeaseError> {
    load_telling(socket, load, sources, wait, &mut |_, _| {})
}

/// Like [`load`]. If the load requests reports, `tell` is called repeatedly with the bytes of the
/// sources that were read, and the bytes of all sources.
///
/// # Errors
/// The errors of [`load`].
pub fn load_telling(
    socket: &Path,
    load: &Load,
    sources: &[BorrowedFd<'_>],
    wait: Duration,
    tell: &mut dyn FnMut(u64, u64),
) -> Result<ImageFacts, LeaseError> {
    // A load takes minutes. A broker that is stopped does not answer this, either.
    status(socket)?;
    let request = Request::Load(Box::new(load.clone()));
    match Exchange::new(socket, wait).ask_with(&request, sources, tell)? {
        (Answer::Loaded(facts), None) => Ok(facts),
        other => Err(refused(other)),
    }
}

/// Returns the file of an image. The file is sealed against writes and changes of its length, and
/// opened for reading.
///
/// # Errors
/// The errors of [`load`], and an error if the broker sends a file that can be changed.
pub fn get(socket: &Path, name: ImageName) -> Result<(OwnedFd, ImageFacts), LeaseError> {
    match Exchange::new(socket, Duration::ZERO).ask(&Request::Get(name))? {
        (Answer::Image(facts), Some(file)) => {
            let sealed = memfd::has_sealed_contents(&file);
            let call = "fcntl(F_GET_SEALS)";
            match sealed.map_err(|errno| LeaseError::Kernel { call, source: errno.into() })? {
                true => Ok((file, facts)),
                false => Err(LeaseError::Unasked("a file that can be changed")),
            }
        }
        other => Err(refused(other)),
    }
}

/// Requests that the broker drops an image. Processes that map the image keep it.
///
/// # Errors
/// The errors of [`load`].
pub fn drop(socket: &Path, name: ImageName) -> Result<(), LeaseError> {
    match Exchange::new(socket, Duration::ZERO).ask(&Request::Drop(name))? {
        (Answer::Dropped, None) => Ok(()),
        other => Err(refused(other)),
    }
}

/// Returns the images that this user may use, the oldest first. Root and the broker's own user get
/// all images.
///
/// # Errors
/// The errors of [`load`].
pub fn list(socket: &Path) -> Result<Vec<ImageRow>, LeaseError> {
    match Exchange::new(socket, Duration::ZERO).ask(&Request::Images)? {
        (Answer::Images(rows), None) => Ok(rows),
        other => Err(refused(other)),
    }
}

fn refused(answer: (Answer, Option<OwnedFd>)) -> LeaseError {
    match answer {
        (Answer::Refused(refusal), None) => LeaseError::Refused(refusal),
        _ => LeaseError::Unasked("another answer than to a request about images"),
    }
}
