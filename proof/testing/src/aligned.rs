//! Mappings at multiples of 2 MiB, wherever the kernel puts mappings.
#![allow(unsafe_code)]

use std::ptr::without_provenance_mut;

use hugekit::HUGE_PAGE_BYTES as HUGE;

/// Calls `make` until the `len` bytes that it maps begin at a multiple of 2 MiB, and returns its result. Nothing but
/// hugekit then stands in the way of huge pages.
pub fn aligned<T>(len: usize, make: impl Fn() -> T, address: impl Fn(&T) -> usize) -> T {
    let mut fillers = Vec::new();
    for _ in 0..64 {
        let made = make();
        let start = address(&made);
        if start.is_multiple_of(HUGE) {
            return made;
        }
        drop(made);
        fillers.push(Filler::below(start + len, start % HUGE));
    }
    panic!("no address at a multiple of 2 MiB was found");
}

/// Addresses that are taken, so that the kernel puts the next mapping that much lower.
struct Filler(*mut libc::c_void, usize);

impl Filler {
    fn below(end: usize, len: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let start = without_provenance_mut(end - len);
        // SAFETY: a new mapping that replaces none; where another thread was faster there is none.
        Self(unsafe { libc::mmap(start, len, libc::PROT_NONE, flags, -1, 0) }, len)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and inaccessible; nothing if nothing was.
        unsafe { libc::munmap(self.0, self.1) };
    }
}
