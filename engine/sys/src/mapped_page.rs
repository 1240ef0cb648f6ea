//! The page size of a mapping, from the kernel: `PROCMAP_QUERY` (Linux 6.11).
#![allow(unsafe_code)]

use rustix::fs::{Mode, OFlags, open};
use rustix::io;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use super::injection::{Call, pass};

const PROCMAP_QUERY: Opcode = opcode::read_write::<Query>(b'f', 17);

/// Returns the page size in bytes of the mapping at `address`. For hugetlbfs this is its huge page;
/// for all other memory, a base page. `NOENT` if nothing is mapped at `address`, and `NOTTY` if the
/// kernel does not have the call.
pub fn page_size_at(address: *const u8) -> io::Result<usize> {
    let mut query =
        Query { size: size_of::<Query>() as u64, addr: address.addr() as u64, ..Query::default() };
    pass(Call::Open)?;
    let maps = open(c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    pass(Call::ProcmapQuery)?;
    // SAFETY: the opcode is that of the structure, which the kernel reads and writes, and nothing else: it is asked for
    // neither a name nor a build ID.
    unsafe { ioctl(&maps, Updater::<PROCMAP_QUERY, Query>::new(&mut query)) }?;
    Ok(query.page_size as usize)
}

/// The C structure `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn page_size_of_memory_is_a_base_page_and_a_hole_has_none() {
        let byte = 0_u8;
        match page_size_at(&raw const byte) {
            Ok(size) => assert_eq!(size, rustix::param::page_size()),
            // A kernel before 6.11, or an emulator of system calls.
            Err(errno) => return assert!(matches!(errno, Errno::NOTTY | Errno::NOSYS), "{errno}"),
        }
        assert_eq!(page_size_at(std::ptr::without_provenance(1)), Err(Errno::NOENT));
    }
}
