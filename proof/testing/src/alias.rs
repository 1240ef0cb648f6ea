//! A pool's own mapping of its file, found from outside, and memory of it that fails.
#![allow(unsafe_code)]
use std::ffi::c_void;

/// Returns the address of another mapping of `len` bytes of the same file than the one at `address`.
pub fn alias_of(address: usize, len: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let fields = |line: &str| {
        let mut fields = line.split_whitespace();
        let (range, inode) = (fields.next()?, fields.nth(3)?);
        let (start, end) = range.split_once('-')?;
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        Some((number(start)?, number(end)?, inode.to_owned()))
    };
    let all: Vec<_> = maps.lines().filter_map(fields).collect();
    let own = all.iter().find(|(start, end, _)| (*start..*end).contains(&address)).unwrap();
    let is_alias = |(start, end, inode): &&(usize, usize, String)| {
        *inode == own.2 && *start != own.0 && end - start == len
    };
    all.iter().find(is_alias).expect("a pool maps all of its file").0
}

/// Returns the start of the page that holds `marker` in a mapping of this many bytes.
pub fn place_of(alias: usize, len: usize, page: usize, marker: &[u8]) -> usize {
    // SAFETY: mapped for as long as the pool exists; no thread writes it meanwhile.
    let bytes =
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(alias), len) };
    let mut pages = bytes.chunks(page);
    let found = pages.position(|page| page.windows(marker.len()).any(|part| part == marker));
    alias + found.expect("the marker is somewhere") * page
}

/// Has the page that holds `marker` answer every access by the pool's own mapping as memory that has failed does,
/// by SIGBUS: it maps a file that has no bytes.
pub fn fail(alias: usize, len: usize, page: usize, marker: &[u8]) {
    let start = place_of(alias, len, page, marker);
    let nothing = rustix::fs::memfd_create("nothing", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let prot = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    let flags = rustix::mm::MapFlags::SHARED;
    let there = std::ptr::with_exposed_provenance_mut::<c_void>(start);
    // SAFETY: what is replaced is the pool's, which is to find out.
    let mapped = unsafe {
        rustix::mm::mmap(there, page, prot, flags | rustix::mm::MapFlags::FIXED, &nothing, 0)
    };
    assert_eq!(mapped.unwrap(), there);
}
