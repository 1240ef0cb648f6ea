//! Private anonymous memory, as a program has it.

use std::io;
use std::ptr;

use hugekit::HUGE_PAGE_BYTES as HUGE;

/// Mapped memory at a multiple of 2 MiB, unmapped on drop.
#[derive(Debug)]
pub struct AnonymousMapping {
    mapped: *mut u8,
    mapped_len: usize,
    start: *mut u8,
    len: usize,
}

// SAFETY: an address; what lies there is only accessed as atomics.
unsafe impl Send for AnonymousMapping {}
// SAFETY: an address; what lies there is only accessed as atomics.
unsafe impl Sync for AnonymousMapping {}

impl AnonymousMapping {
    /// Untouched memory, on huge pages if the kernel has any, or on base pages.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(len: usize, huge: bool) -> io::Result<Self> {
        let mapped_len = len + HUGE;
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // SAFETY: a new mapping at an address of the kernel's choice, and advice that changes no byte.
        let mapped = unsafe {
            let mapped = libc::mmap(ptr::null_mut(), mapped_len, prot, flags, -1, 0);
            if mapped == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            // A kernel without transparent huge pages refuses either advice, and has base pages.
            libc::madvise(mapped, mapped_len, advice);
            mapped.cast::<u8>()
        };
        let start = mapped.map_addr(|address| address.next_multiple_of(HUGE));
        Ok(Self { mapped, mapped_len, start, len })
    }

    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    #[must_use]
    pub fn range(&self) -> *const [u8] {
        ptr::slice_from_raw_parts(self.start, self.len)
    }
}

impl Drop for AnonymousMapping {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped.
        unsafe { libc::munmap(self.mapped.cast(), self.mapped_len) };
    }
}
