//! Memory of our own, apart from every allocator: for what a fault handler writes. It must never be part of
//! memory whose faults we serve, and the heap may be.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Deref;
use std::ptr::{self, NonNull};

use rustix::io;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::injection::{Call, pass};
use super::mapping;

/// Zeroed bytes that take memory when they are touched. Readable and writable, and unmapped on drop, in a
/// forked child too, which has them all as a copy unless they are [kept from it](Self::keep_from_children).
#[derive(Debug)]
pub(crate) struct OwnBytes {
    mapped: NonNull<u8>,
    mapped_len: usize,
    start: NonNull<u8>,
}

// SAFETY: an address range; whoever follows its addresses says why that is sound.
unsafe impl Send for OwnBytes {}
// SAFETY: as above.
unsafe impl Sync for OwnBytes {}

impl OwnBytes {
    /// `len` bytes at a multiple of `align`, a power of two.
    pub(crate) fn new(len: usize, align: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let slack = if align > page { align } else { 0 };
        let mapped_len = len.max(1).checked_add(slack).ok_or(io::Errno::NOMEM)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        pass(Call::Mmap)?;
        // SAFETY: a new mapping at an address of the kernel's choice replaces none.
        let mapped =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), mapped_len, prot, flags) }?;
        let mapped = NonNull::new(mapped.cast::<u8>()).ok_or(io::Errno::NOMEM)?;
        let start = mapped.map_addr(|address| {
            // Rounding a number up that is not 0 leaves it so, below the end of the mapping.
            address.saturating_add(address.get().next_multiple_of(align) - address.get())
        });
        Ok(Self { mapped, mapped_len, start })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Leaves it out of forked children, in which it must not be dropped then.
    pub(crate) fn keep_from_children(&self) -> io::Result<()> {
        self.advise(Advice::LinuxDontFork)
    }

    /// Asks for transparent huge pages; `EINVAL` from a kernel without.
    pub(crate) fn want_huge_pages(&self) -> io::Result<()> {
        self.advise(Advice::LinuxHugepage)
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        pass(Call::Madvise)?;
        // SAFETY: neither advice changes a byte or an access of this process.
        unsafe { rustix::mm::madvise(self.mapped.as_ptr().cast(), self.mapped_len, advice) }
    }
}

impl Drop for OwnBytes {
    fn drop(&mut self) {
        // SAFETY: exactly the addresses that were mapped; a reference into them borrows this value.
        let _ = unsafe { mapping::unmap(self.mapped.as_ptr(), self.mapped_len) };
    }
}

/// A value in memory of our own.
pub(crate) struct Own<T> {
    bytes: OwnBytes,
    value: NonNull<T>,
}

// SAFETY: owns its value, as a `Box` does.
unsafe impl<T: Send> Send for Own<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Own<T> {}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> io::Result<Self> {
        let bytes = OwnBytes::new(size_of::<T>(), align_of::<T>())?;
        let place = bytes.start.cast::<T>();
        // SAFETY: as many bytes as the value has, aligned, and nobody else's.
        unsafe { place.write(value) };
        Ok(Self { bytes, value: place })
    }

    /// For good.
    pub(crate) fn leak(self) -> &'static T {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: neither dropped nor unmapped from here on.
        unsafe { this.value.as_ref() }
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: written in `new`, and there as long as this is.
        unsafe { self.value.as_ref() }
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        // SAFETY: the value is there, and nobody refers to it any more; its memory goes afterwards.
        unsafe { self.value.drop_in_place() };
    }
}

impl<T: fmt::Debug> fmt::Debug for Own<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Own").field(&**self).field(&self.bytes.mapped_len).finish()
    }
}

/// Atomic words in memory of our own, all of them 0 at first.
#[derive(Debug)]
pub(crate) struct OwnWords<T> {
    bytes: OwnBytes,
    len: usize,
    of: std::marker::PhantomData<T>,
}

/// An atomic integer, of which zeroed memory is a valid one.
pub(crate) trait Word: Sync {}
impl Word for std::sync::atomic::AtomicU32 {}
impl Word for std::sync::atomic::AtomicU64 {}

impl<T: Word> OwnWords<T> {
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let bytes = OwnBytes::new(len * size_of::<T>(), align_of::<T>())?;
        Ok(Self { bytes, len, of: std::marker::PhantomData })
    }
}

impl<T: Word> Deref for OwnWords<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: as many words as were mapped, zeroed, which is a valid value; there as long as this is.
        unsafe { std::slice::from_raw_parts(self.bytes.start().cast::<T>(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn values_live_and_die_as_in_a_box() {
        let inner = Arc::new(7);
        let own = Own::new(Arc::clone(&inner)).unwrap();
        assert_eq!((**own, Arc::strong_count(&inner)), (7, 2));
        drop(own);
        assert_eq!(Arc::strong_count(&inner), 1);
    }

    #[test]
    fn bytes_are_aligned_and_words_are_zero() {
        for align in [1, 4096, 2 << 20] {
            let bytes = OwnBytes::new(5000, align).unwrap();
            assert_eq!(bytes.start().addr() % align, 0);
            // SAFETY: within the bytes, which are nobody else's.
            unsafe { bytes.start().add(4999).write(1) };
        }
        let words = OwnWords::<AtomicU32>::new(3000).unwrap();
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }
}
