//! Files that the user names. They are opened without a wait, and only regular files are read.
//!
//! A FIFO waits for a writer, `/dev/zero` has no end, and in a folder that other users may write
//! to, any name may be theirs.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Opens a regular file for reading. Links are followed: the user has named the file.
///
/// # Errors
/// The errors of open(2). `InvalidInput` if the file is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    regular(open_with(path, OFlags::empty())?)
}

/// Opens a regular file whose name follows from another file, and that only this user or root has
/// written: the file is not a link, belongs to this user or root, and is not writable for others.
///
/// # Errors
/// The errors of open(2); ELOOP means that the file is a link. `InvalidInput` if the file is not a
/// regular file, and `PermissionDenied` if another user may have written it.
pub fn open_trusted(path: &Path) -> io::Result<File> {
    trusted(open_with(path, OFlags::NOFOLLOW)?)
}

/// Reads such a file. The file may have at most `most` bytes.
///
/// # Errors
/// The errors of [`open_trusted`]. `InvalidData` if the file is longer.
pub fn read_trusted(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read(&open_trusted(path)?, most)
}

/// Reads a file from its position to its end. At most `most` bytes may be left.
///
/// # Errors
/// The errors of read(2). `InvalidData` if more bytes are left.
pub fn read(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("it is longer than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(bytes)
}

/// Checks that only this user or root can have written an open file.
pub(crate) fn trusted(file: File) -> io::Result<File> {
    let file = regular(file)?;
    let found = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    let (uid, mode) = (found.uid(), found.mode() & 0o7777);
    if uid != own && uid != 0 {
        return Err(denied(format!("it belongs to user {uid}")));
    }
    if mode & 0o022 != 0 {
        return Err(denied(format!("others may write to it (mode {mode:o})")));
    }
    Ok(file)
}

fn open_with(path: &Path, more: OFlags) -> io::Result<File> {
    // For a regular file, NONBLOCK means nothing.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | more;
    File::options().read(true).custom_flags(flags.bits() as i32).open(path)
}

fn regular(file: File) -> io::Result<File> {
    let kind = file.metadata()?.file_type();
    let is = if kind.is_file() {
        return Ok(file);
    } else if kind.is_dir() {
        "a folder"
    } else if kind.is_block_device() {
        "a block device"
    } else if kind.is_char_device() {
        "a character device"
    } else if kind.is_fifo() {
        "a FIFO"
    } else {
        "something else"
    };
    let why = format!("it is {is}, and a regular file is needed");
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

fn denied(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Returns true if a process has the file open for writing, or has a writable mapping of it. `None`
/// if this is unknown, because of the file system or the rights of this process: it must own the
/// file or have `CAP_LEASE`.
#[must_use]
pub fn is_open_for_writing(file: &File) -> Option<bool> {
    // A lease for reading is given only if nobody has the file open for writing. It is returned at once. A process that
    // opens the file in between waits until then, and this one gets a signal that does nothing by default.
    match lease(file, libc::F_RDLCK) {
        Ok(()) => {
            let _ = lease(file, libc::F_UNLCK);
            Some(false)
        }
        Err(Errno::AGAIN) => Some(true),
        Err(_) => None,
    }
}

fn lease(file: &File, kind: libc::c_int) -> rustix::io::Result<()> {
    /// From `linux/fcntl.h`.
    const F_SETSIG: libc::c_int = 10;
    let number = file.as_raw_fd();
    // SAFETY: a number of a descriptor that is open, and numbers.
    crate::last_error(unsafe { libc::fcntl(number, F_SETSIG, libc::SIGURG) } == -1)?;
    // SAFETY: as above.
    crate::last_error(unsafe { libc::fcntl(number, libc::F_SETLEASE, kind) } == -1)
}

/// Returns the path by which this process opens one of its descriptors again.
#[must_use]
pub fn path_of(descriptor: impl AsFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_waits() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).unwrap();
        for (path, says) in [
            (fifo.as_path(), "a FIFO"),
            (folder.path(), "a folder"),
            ("/dev/zero".as_ref(), "a character device"),
        ] {
            for refused in [open(path), open_trusted(path)] {
                let refused = refused.unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{refused}");
                assert!(refused.to_string().contains(says), "{refused}");
            }
        }
    }

    #[test]
    fn links_are_followed_only_if_the_user_named_them() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "text").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        symlink(&file, &link).unwrap();
        assert!(open(&link).is_ok());
        let refused = open_trusted(&link).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ELOOP));
        assert_eq!(read_trusted(&file, 4).unwrap(), b"text");
        let refused = read_trusted(&file, 3).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn file_that_others_can_have_written_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "text").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        let refused = open_trusted(&file).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert!(open_trusted(&file).is_ok());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(60_001), None).unwrap();
            let refused = open_trusted(&file).unwrap_err();
            assert!(refused.to_string().contains("user 60001"), "{refused}");
        }
    }
}
