//! Memory of hugekit outside of every allocator, for the data that a fault handler writes. Such
//! data must never lie in memory whose faults hugekit handles, and the heap may be such memory.
//!
//! Data of handlers is mapped for writing only. Every CPU and kernel can read writable memory, as
//! `mmap(2)` explains. But a mapping that is not marked as readable is never part of a snapshot,
//! even if a program takes its range from `/proc/self/maps`.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use rustix::io;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use super::injection::{Call, pass};
use super::{apart, mapping};

/// Zeroed bytes, readable and writable, which use memory only after they are touched. A drop unmaps
/// them. A forked child has a copy, and unmaps that, unless they are [excluded from
/// forks](Self::keep_from_children).
#[derive(Debug)]
pub struct PrivateBytes {
    mapped: NonNull<u8>,
    mapped_len: usize,
    start: NonNull<u8>,
}

// SAFETY: owns the address of a mapping that all threads of the process share. Its methods change no byte of the
// mapping, except `give_back`, which is `unsafe`.
unsafe impl Send for PrivateBytes {}
// SAFETY: as for `Send`: no safe method reads or writes through the address.
unsafe impl Sync for PrivateBytes {}

impl PrivateBytes {
    /// Reserves `len` bytes at a multiple of `align`, a power of two.
    pub fn new(len: usize, align: usize) -> io::Result<Self> {
        Self::mapped(len, align, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Like [`new`](Self::new), and no snapshot can protect them until they are [readable](Self::make_readable).
    pub fn for_handlers(len: usize, align: usize) -> io::Result<Self> {
        Self::mapped(len, align, ProtFlags::WRITE)
    }

    /// Like [`for_handlers`](Self::for_handlers), in whole pages. The lowest page is a guard
    /// against overflows of a stack that grows down.
    pub(super) fn as_a_stack(len: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let stack = Self::for_handlers(len, page)?;
        pass(Call::Mprotect)?;
        // SAFETY: a page just mapped, that no other thread knows of.
        unsafe { rustix::mm::mprotect(stack.start().cast(), page, MprotectFlags::empty()) }?;
        Ok(stack)
    }

    fn mapped(len: usize, align: usize, prot: ProtFlags) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let slack = if align > page { align } else { 0 };
        let mapped_len = len.max(1).checked_add(slack).ok_or(io::Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let mapped = apart::map_anonymous(mapped_len, prot, flags)?;
        let start = mapped.map_addr(|address| {
            // Rounding a number up that is not 0 leaves it so, below the end of the mapping.
            address.saturating_add(address.get().next_multiple_of(align) - address.get())
        });
        Ok(Self { mapped, mapped_len, start })
    }

    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Excludes the bytes from forked children. A child must not drop them then.
    pub fn keep_from_children(&self) -> io::Result<()> {
        self.advise(Advice::LinuxDontFork)
    }

    /// Requests transparent huge pages. `EINVAL` if the kernel does not have them.
    pub fn want_huge_pages(&self) -> io::Result<()> {
        self.advise(Advice::LinuxHugepage)
    }

    /// Lets snapshots protect bytes that were made [for handlers](Self::for_handlers): no handler writes to them any more.
    pub fn make_readable(&self) -> io::Result<()> {
        self.set_access(MprotectFlags::READ | MprotectFlags::WRITE)
    }

    /// Lets handlers write to the bytes again, as they are after [`for_handlers`](Self::for_handlers).
    pub fn forbid_reads(&self) -> io::Result<()> {
        self.set_access(MprotectFlags::WRITE)
    }

    fn set_access(&self, flags: MprotectFlags) -> io::Result<()> {
        pass(Call::Mprotect)?;
        // SAFETY: this value's own mapping, of which no byte changes. It can be written as before, and the CPU reads what
        // it may write.
        unsafe { rustix::mm::mprotect(self.mapped.as_ptr().cast(), self.mapped_len, flags) }
    }

    /// Releases the memory to the kernel. Bytes that are touched again are zeroes.
    ///
    /// # Safety
    /// No thread uses the content, now or later.
    pub unsafe fn give_back(&self) -> io::Result<()> {
        pass(Call::MadviseDontNeed)?;
        let (start, len) = (self.mapped.as_ptr().cast(), self.mapped_len);
        // SAFETY: `mapped` and `mapped_len` are this value's own mapping, and no thread uses what it holds: the
        // contract of this function.
        unsafe { rustix::mm::madvise(start, len, Advice::LinuxDontNeed) }
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        pass(Call::Madvise)?;
        // SAFETY: neither advice changes a byte or an access of this process.
        unsafe { rustix::mm::madvise(self.mapped.as_ptr().cast(), self.mapped_len, advice) }
    }
}

impl Drop for PrivateBytes {
    fn drop(&mut self) {
        // SAFETY: exactly the addresses that were mapped; a reference into them borrows this value.
        let _ = unsafe { mapping::unmap(self.mapped.as_ptr(), self.mapped_len) };
    }
}

/// A value in memory outside of every allocator.
pub struct Private<T> {
    bytes: PrivateBytes,
    value: NonNull<T>,
}

// SAFETY: owns its value, as a `Box` does.
unsafe impl<T: Send> Send for Private<T> {}
// SAFETY: a shared reference gives only `&T`, which may be shared because `T` is `Sync`.
unsafe impl<T: Sync> Sync for Private<T> {}

impl<T> Private<T> {
    pub fn new(value: T) -> io::Result<Self> {
        let bytes = PrivateBytes::for_handlers(size_of::<T>(), align_of::<T>())?;
        let place = bytes.start.cast::<T>();
        // SAFETY: as many bytes as the value has, aligned, and no other value has them.
        unsafe { place.write(value) };
        Ok(Self { bytes, value: place })
    }

    /// Keeps the value permanently.
    pub fn leak(self) -> &'static T {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: neither dropped nor unmapped from here on.
        unsafe { this.value.as_ref() }
    }
}

impl<T> Deref for Private<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: written in `new`, and there as long as this is.
        unsafe { self.value.as_ref() }
    }
}

impl<T> Drop for Private<T> {
    fn drop(&mut self) {
        // SAFETY: the value is there, and no reference is left to it any more; its memory goes afterwards.
        unsafe { self.value.drop_in_place() };
    }
}

impl<T: fmt::Debug> fmt::Debug for Private<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Private").field(&**self).field(&self.bytes.mapped_len).finish()
    }
}

/// A piece of private memory that is divided into slices, one after the other. A mapping for each
/// slice would cost more than the work that needs the slices.
#[derive(Debug)]
pub struct PrivatePiece {
    bytes: Arc<PrivateBytes>,
    len: usize,
    used: usize,
}

/// Values in private memory that are not dropped, such as atomic words.
#[derive(Debug)]
pub struct PrivateSlice<T> {
    /// The memory, kept mapped.
    _bytes: Arc<PrivateBytes>,
    start: NonNull<T>,
    len: usize,
}

// SAFETY: owns its values, as a boxed slice does.
unsafe impl<T: Send> Send for PrivateSlice<T> {}
// SAFETY: a shared reference gives only `&[T]`, which may be shared because `T` is `Sync`.
unsafe impl<T: Sync> Sync for PrivateSlice<T> {}

/// Words that are 0 at first.
pub type OwnWords<T> = PrivateSlice<T>;

/// An atomic integer, for which zeroed memory is a valid value.
pub trait Word: Sync {}
impl Word for AtomicU8 {}
impl Word for AtomicU32 {}
impl Word for AtomicU64 {}

impl PrivatePiece {
    pub fn new(len: usize) -> io::Result<Self> {
        let bytes = Arc::new(PrivateBytes::for_handlers(len, rustix::param::page_size())?);
        Ok(Self { bytes, len, used: 0 })
    }

    /// Returns the highest number of bytes of a piece that a slice of `len` values needs.
    pub const fn bytes_of<T>(len: usize) -> usize {
        len * size_of::<T>() + align_of::<T>()
    }

    fn split_off<T>(&mut self, len: usize) -> PrivateSlice<T> {
        const { assert!(!std::mem::needs_drop::<T>()) }
        let start = self.used.next_multiple_of(align_of::<T>());
        self.used = start + len * size_of::<T>();
        assert!(
            self.used <= self.len,
            "a piece of {} bytes is too short for {}",
            self.len,
            self.used
        );
        // SAFETY: within the piece, as was checked.
        let start = unsafe { self.bytes.start.add(start) }.cast::<T>();
        PrivateSlice { _bytes: Arc::clone(&self.bytes), start, len }
    }

    /// Returns the next `len` words, all of them 0.
    pub fn words<T: Word>(&mut self, len: usize) -> PrivateSlice<T> {
        self.split_off(len)
    }

    /// Returns the next `len` values. `make` makes each of them.
    pub fn filled<T>(&mut self, len: usize, mut make: impl FnMut(usize) -> T) -> PrivateSlice<T> {
        let slice = self.split_off::<T>(len);
        for index in 0..len {
            // SAFETY: within the slice, which no other one overlaps; it has room for so many, aligned.
            unsafe { slice.start.add(index).write(make(index)) };
        }
        slice
    }
}

impl<T: Word> PrivateSlice<T> {
    /// Makes `len` words, all of them 0, in a piece of their own.
    pub fn new(len: usize) -> io::Result<Self> {
        Ok(PrivatePiece::new(PrivatePiece::bytes_of::<T>(len))?.words(len))
    }
}

impl<T> PrivateSlice<T> {
    /// Shortens the slice to its first `len` values.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl<T> Deref for PrivateSlice<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: as many as were cut, each written, or a word that was zeroed; there as long as this is.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::HUGE_PAGE_BYTES;
    use hugekit_machine::{Root, mappings};

    #[test]
    fn value_in_private_pages_lives_and_dies_as_in_a_box() {
        let inner = Arc::new(7);
        let own = Private::new(Arc::clone(&inner)).unwrap();
        assert_eq!((**own, Arc::strong_count(&inner)), (7, 2));
        drop(own);
        assert_eq!(Arc::strong_count(&inner), 1);
    }

    #[test]
    fn pieces_when_new_are_aligned_and_zero() {
        for align in [1, 4096, HUGE_PAGE_BYTES] {
            let bytes = PrivateBytes::new(5000, align).unwrap();
            assert_eq!(bytes.start().addr() % align, 0);
            // SAFETY: within the bytes, which no other value has.
            unsafe { bytes.start().add(4999).write(1) };
        }
        let words = OwnWords::<AtomicU32>::new(3000).unwrap();
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn slices_of_one_piece_are_apart_and_hold_their_values() {
        let len = PrivatePiece::bytes_of::<u8>(3) + PrivatePiece::bytes_of::<u64>(700);
        let mut piece = PrivatePiece::new(len).unwrap();
        let bytes = piece.filled(3, |index| index as u8);
        let mut numbers = piece.filled(700, |index| index as u64 + 1);
        drop(piece);
        numbers.truncate(600);
        assert_eq!(*bytes, [0, 1, 2]);
        assert!(numbers.iter().enumerate().all(|(index, &number)| number == index as u64 + 1));
        assert_eq!(numbers.len(), 600);
    }

    #[test]
    #[should_panic(expected = "too short")]
    fn slice_beyond_its_piece_panics() {
        let _ = PrivatePiece::new(100).unwrap().words::<AtomicU64>(100);
    }

    /// A snapshot refuses memory that `/proc/self/maps` does not mark as readable.
    #[test]
    fn pages_that_handlers_write_are_readable_but_do_not_say_so() {
        let own = Private::new(AtomicU32::new(7)).unwrap();
        assert_eq!(own.load(Ordering::Relaxed), 7);
        let all = mappings::read(&Root::default()).unwrap();
        let address = std::ptr::from_ref(&*own).addr();
        let found = all.iter().find(|mapping| mapping.addresses.contains(&address)).unwrap();
        assert!(!found.is_readable, "{found:?}");
    }
}
