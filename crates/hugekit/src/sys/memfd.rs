//! Files of memory: `memfd_create`, seals and holes.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io;

use super::injection::{Call, pass};

/// What a file's pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Base pages, or transparent huge ones where they are asked for.
    Shmem,
    /// From the kernel's pool of 2 MiB pages.
    Hugetlb2M,
    /// From the kernel's pool of 1 GiB pages.
    Hugetlb1G,
}

/// An empty file that is closed on exec and may be sealed. `EINVAL` or `ENODEV` for a page size
/// that the kernel does not have.
pub(crate) fn create(name: &CStr, pages: Pages) -> io::Result<OwnedFd> {
    let flags = match pages {
        Pages::Shmem => MemfdFlags::empty(),
        Pages::Hugetlb2M => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        Pages::Hugetlb1G => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
    };
    pass(Call::MemfdCreate)?;
    rustix::fs::memfd_create(name, flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
}

/// Gives the file its length, all of it holes, for good: no holder of the descriptor can change
/// it or lift that seal.
pub(crate) fn size_for_good(file: impl AsFd, len: u64) -> io::Result<()> {
    io::retry_on_intr(|| {
        pass(Call::Ftruncate)?;
        rustix::fs::ftruncate(&file, len)
    })?;
    pass(Call::Seal)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

/// Frees the pages of a range, which reads as zeroes afterwards, for every process that maps it.
pub(crate) fn punch(file: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
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
    fn memfd_that_is_sealed_keeps_its_length_and_can_be_punched() {
        let file = create(c"hugekit-test", Pages::Shmem).unwrap();
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
