//! Files of memory: `memfd_create`, seals and holes.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io;

use super::injection::{Call, pass};
use super::input::path_of;

/// The kind of a file's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilePages {
    /// Base pages, or transparent huge pages if they are requested.
    Shmem,
    /// Huge pages of this size from the kernel's pool.
    Hugetlb {
        /// Bytes of a page, a power of two.
        bytes: usize,
    },
}

/// The longest name that the kernel accepts.
const LONGEST_NAME: usize = 249;

/// Returns the name of a file of this library, as `/proc` shows it after `/memfd:`. The name is cut
/// at the first NUL, and to the length that the kernel accepts.
pub fn name(name: &str) -> CString {
    let name = format!("hugekit:{name}");
    let name = name.bytes().take_while(|&byte| byte != 0).take(LONGEST_NAME).collect::<Vec<_>>();
    CString::new(name).expect("cut at the first NUL")
}

/// Makes an empty file that is closed on exec and that may be sealed. `EINVAL` or `ENODEV` if the
/// kernel does not have pages of this size.
pub fn create(name: &CStr, pages: FilePages) -> io::Result<OwnedFd> {
    let flags = match pages {
        FilePages::Shmem => MemfdFlags::empty(),
        FilePages::Hugetlb { bytes } => MemfdFlags::HUGETLB | of_size(bytes),
    };
    pass(Call::MemfdCreate)?;
    rustix::fs::memfd_create(name, flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
}

/// Returns the flag for huge pages of this size, which is its logarithm (`memfd_create(2)`).
fn of_size(bytes: usize) -> MemfdFlags {
    MemfdFlags::from_bits_retain(bytes.ilog2() << libc::MFD_HUGE_SHIFT)
}

/// Makes an empty file without a name in a folder. The file is closed on exec.
pub fn create_in(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    pass(Call::Open)?;
    rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)
}

/// Gives a file without a name its first name. `EEXIST` if another file has the name.
pub fn link(file: impl AsFd, path: &Path) -> io::Result<()> {
    let now = path_of(file);
    pass(Call::Linkat)?;
    rustix::fs::linkat(CWD, now, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// Sets the length of a file, all holes.
pub fn size(file: impl AsFd, len: u64) -> io::Result<()> {
    io::retry_on_intr(|| {
        pass(Call::Ftruncate)?;
        rustix::fs::ftruncate(&file, len)
    })
}

/// Sets the length of a file permanently, all holes: no holder of the descriptor can change the
/// length or lift that seal.
pub fn size_for_good(file: impl AsFd, len: u64) -> io::Result<()> {
    size(&file, len)?;
    pass(Call::Seal)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

/// The seals that fix the length and the bytes of a file.
const CONTENTS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

/// Seals the length and the bytes of a file permanently. `EBUSY` while a writable shared mapping of it exists, or while
/// the kernel itself holds pages of it.
pub fn seal_contents(file: impl AsFd) -> io::Result<()> {
    pass(Call::Seal)?;
    rustix::fs::fcntl_add_seals(&file, CONTENTS | SealFlags::SEAL)
}

/// Returns true if no process can change the length or a byte of a file. False for a file that
/// cannot be sealed. The call never waits, because the kernel does not ask the file's own file
/// system.
pub fn has_sealed_contents(file: impl AsFd) -> io::Result<bool> {
    pass(Call::GetSeals)?;
    match rustix::fs::fcntl_get_seals(&file) {
        Err(io::Errno::INVAL) => Ok(false),
        seals => Ok(seals?.contains(CONTENTS)),
    }
}

/// Opens the same file again for reading only. Every process with a descriptor may do this if the
/// file's mode permits all users to read it.
pub fn open_for_reading(file: impl AsFd) -> io::Result<OwnedFd> {
    let path = path_of(file);
    pass(Call::Open)?;
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Permits every holder of a descriptor to open the file for reading, and nobody to open it for
/// writing.
pub fn make_readable(file: impl AsFd) -> io::Result<()> {
    pass(Call::Fchmod)?;
    rustix::fs::fchmod(file, Mode::RUSR | Mode::RGRP | Mode::ROTH)
}

/// Permits every holder of a descriptor to open a sealed file again, for writing, too, although no
/// write succeeds. Some programs open a file for writing that they only map privately.
pub fn make_openable(file: impl AsFd) -> io::Result<()> {
    pass(Call::Fchmod)?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(0o666))
}

/// Facts about a file as memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The length in bytes.
    pub len: u64,
    /// Bytes of it that are populated.
    pub present: u64,
    /// The size of its pages in bytes if they are reserved huge pages; `None` for shared memory.
    pub huge_page: Option<u64>,
    /// True if its length can never change.
    pub has_one_length: bool,
    /// True if this descriptor permits writing.
    pub is_writable: bool,
}

/// Magic numbers of `linux/magic.h`.
const HUGETLBFS: u64 = 0x9584_58f6;
const TMPFS: u64 = 0x0102_1994;

/// Returns the page size of a memory file: `Some(None)` for ordinary pages, and `None` for a file
/// that is not memory.
pub fn huge_page(file: impl AsFd) -> io::Result<Option<Option<u64>>> {
    let system = io::retry_on_intr(|| {
        pass(Call::Fstatfs)?;
        rustix::fs::fstatfs(&file)
    })?;
    // The kernel's type of either number depends on the architecture.
    #[allow(clippy::unnecessary_cast)]
    Ok(match system.f_type as u64 & 0xffff_ffff {
        HUGETLBFS => Some(Some(system.f_bsize as u64)),
        TMPFS => Some(None),
        _ => None,
    })
}

/// Inspects any file. `None` if it is not a file of memory, or cannot be sealed.
pub fn facts(file: impl AsFd) -> io::Result<Option<Facts>> {
    let Some(huge_page) = huge_page(&file)? else { return Ok(None) };
    pass(Call::Fstat)?;
    let found = rustix::fs::fstat(&file)?;
    pass(Call::GetSeals)?;
    let seals = match rustix::fs::fcntl_get_seals(&file) {
        Err(io::Errno::INVAL) => return Ok(None),
        seals => seals?,
    };
    let mode = rustix::fs::fcntl_getfl(&file)? & OFlags::RWMODE;
    let read_only = SealFlags::WRITE | SealFlags::FUTURE_WRITE;
    Ok(Some(Facts {
        len: u64::try_from(found.st_size).unwrap_or(0),
        present: u64::try_from(found.st_blocks).unwrap_or(0) * 512,
        huge_page,
        has_one_length: seals.contains(SealFlags::GROW | SealFlags::SHRINK),
        is_writable: mode == OFlags::RDWR && !seals.intersects(read_only),
    }))
}

/// Frees the pages of a range. Afterwards the range reads as zeroes in every process that maps it.
pub fn punch(file: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    io::retry_on_intr(|| {
        pass(Call::Fallocate)?;
        rustix::fs::fallocate(&file, how, offset, len)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_that_are_sealed_cannot_be_written_or_truncated() {
        let file = create(c"hugekit-test", FilePages::Shmem).unwrap();
        size(&file, 8192).unwrap();
        assert!(!has_sealed_contents(&file).unwrap());
        seal_contents(&file).unwrap();
        make_openable(&file).unwrap();
        assert!(has_sealed_contents(&file).unwrap());
        assert_eq!(rustix::io::pwrite(&file, &[7], 0), Err(io::Errno::PERM));
        for len in [0, 16384] {
            assert_eq!(rustix::fs::ftruncate(&file, len), Err(io::Errno::PERM));
        }
        assert_eq!(punch(&file, 0, 4096), Err(io::Errno::PERM));
        let read_only = open_for_reading(&file).unwrap();
        assert!(has_sealed_contents(&read_only).unwrap());
        let plain = std::fs::File::open("/proc/self/status").unwrap();
        assert!(!has_sealed_contents(&plain).unwrap());
    }

    #[test]
    fn flag_for_each_size_is_the_kernels() {
        assert_eq!(of_size(2 << 20), MemfdFlags::HUGE_2MB);
        assert_eq!(of_size(1 << 30), MemfdFlags::HUGE_1GB);
        assert_eq!(of_size(16 << 30), MemfdFlags::HUGE_16GB);
    }

    #[test]
    fn memfd_that_is_sealed_keeps_its_length_and_can_be_punched() {
        let file = create(c"hugekit-test", FilePages::Shmem).unwrap();
        size_for_good(&file, 1 << 20).unwrap();
        for len in [0, 2 << 20] {
            assert_eq!(rustix::fs::ftruncate(&file, len), Err(io::Errno::PERM));
        }
        assert_eq!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE), Err(io::Errno::PERM));
        assert_eq!(rustix::io::pwrite(&file, &[7], 4096), Ok(1));
        punch(&file, 0, 1 << 20).unwrap();
        let mut byte = [1];
        assert_eq!(rustix::io::pread(&file, &mut byte, 4096), Ok(1));
        assert_eq!(byte, [0]);
    }
}
