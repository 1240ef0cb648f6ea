//! Locks on single bytes of a file that every process can open. The kernel releases a lock when its
//! process ends.
//!
//! A lock belongs to the file as it was opened once. A second open, by any process, has other
//! locks. A forked child shares the lock. No call waits.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{self, Errno};

use super::injection::{Call, pass};

/// Opens the file. If there is none, makes it for all users. Anything but a plain file is refused.
pub fn open(path: &CStr) -> io::Result<OwnedFd> {
    let open = |more| {
        pass(Call::Open)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | more;
        rustix::fs::open(path, flags, Mode::from_raw_mode(0o666))
    };
    // Not asked to make it first: in a directory that all may write, the kernel refuses that of another user's file.
    let file = match open(OFlags::empty()) {
        Err(Errno::NOENT) => match open(OFlags::CREATE | OFlags::EXCL) {
            Ok(file) => made_for_all(file),
            Err(Errno::EXIST) => open(OFlags::empty()),
            Err(errno) => Err(errno),
        },
        opened => opened,
    }?;
    pass(Call::Fstat)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file),
        _ => Err(Errno::INVAL),
    }
}

/// Sets the mode of the file for all users, whatever the mask of this process is.
fn made_for_all(file: OwnedFd) -> io::Result<OwnedFd> {
    pass(Call::Fchmod)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o666))?;
    Ok(file)
}

/// Locks a byte, unless another open of the file has the lock. Returns true if this call has locked
/// it.
pub fn try_lock(file: impl AsFd, at: u64) -> io::Result<bool> {
    match set(file, at, libc::F_WRLCK) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Releases the lock of a byte.
pub fn unlock(file: impl AsFd, at: u64) -> io::Result<()> {
    set(file, at, libc::F_UNLCK)
}

fn set(file: impl AsFd, at: u64, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: plain numbers, of which zero is a legal value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = libc::off_t::try_from(at).map_err(|_| Errno::OVERFLOW)?;
    lock.l_len = 1;
    pass(Call::SetLock)?;
    // SAFETY: the kernel reads one structure.
    let answer =
        unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    super::last_error(answer != 0)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn file_of_locks_is_made_for_all_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks");
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        let file = open(&name).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o666);
        let another = open(&name).unwrap();
        assert_eq!(try_lock(&file, 7), Ok(true));
        assert_eq!(try_lock(&another, 7), Ok(false));
        assert_eq!(try_lock(&another, 8), Ok(true));
        assert_eq!(unlock(&file, 7), Ok(()));
        assert_eq!(try_lock(&another, 7), Ok(true));
        drop(another);
        assert_eq!(try_lock(&file, 8), Ok(true));
    }

    #[test]
    fn file_of_locks_that_is_a_link_or_a_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        for path in [link.as_path(), folder.path()] {
            let name = CString::new(path.as_os_str().as_bytes()).unwrap();
            assert!(open(&name).is_err());
        }
        assert_eq!(open(c"/dev/null").err(), Some(Errno::INVAL));
    }
}
