//! Shared mappings of a file, and the kernel calls on them.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use rustix::param::page_size;

use super::apart;
use super::fork_mark::ForkMark;
use super::injection::{Call, pass};
use super::last_error;
use crate::HUGE_PAGE_BYTES;

/// Addresses that map a part of a file, readable and writable. The memory is shared with every
/// other mapping of that part in this process. Forked children do not get the mapping unless it was
/// [made for children too](Self::of_children_too). A drop does not unmap the addresses, because
/// only the holder knows when no thread uses them any more, and if they are still its own (a forked
/// child has other mappings there, or none).
#[derive(Debug)]
pub struct SharedMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an address range. No safe method reads or writes a byte of it, so threads that have it do not race.
unsafe impl Send for SharedMapping {}
// SAFETY: as for `Send`: no safe method reads or writes a byte of the range.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps `len` bytes from `offset` on, at an address that is a multiple of `align`. `offset`,
    /// `len` and `align` are multiples of the file's page size, `align` is a power of two, and
    /// `len` is not 0.
    ///
    /// The mapping becomes accessible only after it is excluded from forks. Otherwise a process
    /// that another thread forks in between would continue to share the memory with later owners.
    pub fn new(file: impl AsFd, offset: u64, len: usize, align: usize) -> io::Result<Self> {
        Self::inaccessible(&file, offset, len, align)?.opened_by(Self::open_to_this_process)
    }

    /// Maps pieces of the file one after the other, each an offset and a length, at an address that
    /// is a multiple of `align`, and excludes them from forks. A process that another thread forks
    /// meanwhile gets them, too, but no thread in either process knows the address yet. (On huge
    /// pages, making the mapping accessible afterwards, as [`new`](Self::new) does, costs as much
    /// as everything else.)
    pub fn of_pieces(file: impl AsFd, pieces: &[(u64, usize)], align: usize) -> io::Result<Self> {
        let len = pieces.iter().map(|(_, len)| len).sum();
        let &[(offset, _), ref others @ ..] = pieces else { return Err(io::Errno::INVAL) };
        let at_once = match others {
            [] => Some(Self::anywhere(&file, offset, len, READ_WRITE)?),
            _ => None,
        };
        let (mapping, pieces) = match at_once {
            Some(mapping) if mapping.suits(align) => (mapping, &pieces[..0]),
            other => {
                if let Some(mapping) = other {
                    // SAFETY: just mapped, and no other thread knows of it.
                    unsafe { mapping.unmap() }?;
                }
                (Self::reserve(len, align)?, pieces)
            }
        };
        let map = || -> io::Result<()> {
            let mut at = mapping.start.as_ptr();
            for &(offset, len) in pieces {
                let fixed = SHARED | MapFlags::FIXED;
                // SAFETY: what is replaced lies within the addresses just taken, which no thread uses.
                unsafe { map(at, len, READ_WRITE, fixed, &file, offset) }?;
                at = at.wrapping_add(len);
            }
            mapping.advise(Advice::LinuxDontFork)
        };
        match map() {
            Ok(()) => Ok(mapping),
            Err(error) => {
                // SAFETY: just mapped, and no other thread knows of it.
                unsafe { mapping.unmap() }?;
                Err(error)
            }
        }
    }

    /// Reserves aligned addresses without memory, none of which must be [avoided](apart).
    pub(super) fn reserve(len: usize, align: usize) -> io::Result<Self> {
        let no_room = io::Errno::NOMEM;
        let short = len.checked_add(align).ok_or(no_room)?;
        if let Some(held) = Self::reserve_within(short, len, align)? {
            return Ok(held);
        }
        let room = apart::room_for(short).ok_or(no_room)?;
        Self::reserve_within(room, len, align)?.ok_or(no_room)
    }

    /// Reserves some of a free run of addresses; `None` if none are free.
    fn reserve_within(room: usize, len: usize, align: usize) -> io::Result<Option<Self>> {
        let hold = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces none.
        let first = unsafe { map_anonymous(ptr::null_mut(), room, NO_ACCESS, hold) }?.as_ptr();
        let all = first.addr()..first.addr() + room;
        let Some(start) = apart::free_within(&all, len, align) else {
            // SAFETY: addresses just taken, which no thread uses.
            unsafe { unmap(first, room) }?;
            return Ok(None);
        };
        let start = first.with_addr(start);
        let before = start.addr() - all.start;
        for (address, len) in [(first, before), (start.wrapping_add(len), room - before - len)] {
            if len > 0 {
                // SAFETY: within the addresses just taken, outside of the part that is returned, and used by no
                // thread.
                unsafe { unmap(address, len) }?;
            }
        }
        Ok(Some(Self { start: not_null(start)?, len }))
    }

    /// Returns true if the mapping lies at permitted addresses.
    fn suits(&self, align: usize) -> bool {
        let start = self.start.as_ptr().addr();
        start % align == 0 && !apart::is_taken(&(start..start + self.len))
    }

    fn inaccessible(file: impl AsFd, offset: u64, len: usize, align: usize) -> io::Result<Self> {
        let mapping = Self::anywhere(&file, offset, len, NO_ACCESS)?;
        if mapping.suits(align) {
            return Ok(mapping);
        }
        // SAFETY: just mapped, and no other thread knows of it.
        unsafe { mapping.unmap() }?;
        Self::aligned(&file, offset, len, align)
    }

    /// Like [`new`](Self::new), but children that are forked from now on have the mapping, too.
    pub fn of_children_too(
        file: impl AsFd,
        offset: u64,
        len: usize,
        align: usize,
    ) -> io::Result<Self> {
        Self::inaccessible(&file, offset, len, align)?.opened_by(Self::open)
    }

    /// Makes this new mapping accessible. If that fails, nothing stays mapped.
    fn opened_by(self, open: fn(&Self) -> io::Result<()>) -> io::Result<Self> {
        match open(&self) {
            Ok(()) => Ok(self),
            Err(error) => {
                // SAFETY: just mapped, and no other thread knows of it.
                unsafe { self.unmap() }?;
                Err(error)
            }
        }
    }

    fn open_to_this_process(&self) -> io::Result<()> {
        self.advise(Advice::LinuxDontFork)?;
        self.open()
    }

    fn open(&self) -> io::Result<()> {
        let read_write = MprotectFlags::READ | MprotectFlags::WRITE;
        pass(Call::Mprotect)?;
        // SAFETY: the mapping is this value's, and no thread accesses it yet.
        unsafe { rustix::mm::mprotect(self.start.as_ptr().cast(), self.len, read_write) }
    }

    fn anywhere(file: impl AsFd, offset: u64, len: usize, access: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice replaces none.
        let start = unsafe { map(ptr::null_mut(), len, access, SHARED, file, offset) }?;
        Ok(Self { start, len })
    }

    /// Maps the file over reserved addresses.
    fn aligned(file: impl AsFd, offset: u64, len: usize, align: usize) -> io::Result<Self> {
        let mapping = Self::reserve(len, align)?;
        let (start, fixed) = (mapping.start.as_ptr(), SHARED | MapFlags::FIXED);
        // SAFETY: what is replaced are the addresses just taken, which no thread uses.
        let mapped = unsafe { map(start, len, NO_ACCESS, fixed, file, offset) };
        if mapped.is_err() {
            // SAFETY: the addresses just taken: mapping over them failed, and no thread uses them.
            unsafe { mapping.unmap() }?;
        }
        mapped.map(|_| mapping)
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn addresses(&self) -> std::ops::Range<usize> {
        let start = self.start.as_ptr().addr();
        start..start + self.len
    }

    /// Excludes the mapping from core dumps.
    pub fn keep_from_dumps(&self) -> io::Result<()> {
        self.advise(Advice::LinuxDontDump)
    }

    /// Requests transparent huge pages. `EINVAL` if the kernel does not have them.
    pub fn want_huge_pages(&self) -> io::Result<()> {
        self.advise(Advice::LinuxHugepage)
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        pass(Call::Madvise)?;
        // SAFETY: none of the advices above changes a byte or an access of this process.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.len, advice) }
    }

    /// Unmaps everything except the first `len` bytes. `len` is a multiple of the page size, not 0,
    /// and less than the whole length.
    ///
    /// # Safety
    /// The conditions of [`unmap`](Self::unmap), for the addresses from `len` on.
    pub unsafe fn unmap_from(&mut self, len: usize) -> io::Result<()> {
        assert!(0 < len && len < self.len);
        let tail = self.start.as_ptr().wrapping_add(len);
        // SAFETY: the tail lies within this mapping (the assertion), and no thread uses it any more: the contract of
        // this function.
        unsafe { unmap(tail, self.len - len) }?;
        self.len = len;
        Ok(())
    }

    /// Unmaps it.
    ///
    /// # Safety
    /// The addresses still belong to this mapping, and no thread uses them any more.
    pub unsafe fn unmap(&self) -> io::Result<()> {
        // SAFETY: exactly the addresses that were mapped; they are still this mapping's, and no thread uses them: the
        // contract of this function.
        unsafe { unmap(self.start.as_ptr(), self.len) }
    }
}

/// Replaces the memory at some addresses by another part of a file, atomically for all threads that
/// access them. The new mapping is made elsewhere, excluded from forks, and then moved to the
/// addresses. Registrations of the addresses end. A process that another thread forks before the
/// exclusion has the mapping too, at an address that no thread knows. (Making the mapping
/// accessible only afterwards would interrupt the other CPUs.) Async-signal-safe.
///
/// # Safety
/// The addresses are parts of one or several [`SharedMapping`]s, whose users expect the new content
/// there.
pub unsafe fn replace(
    file: impl AsFd,
    offset: u64,
    addresses: &Range<usize>,
    in_core_dumps: bool,
) -> io::Result<()> {
    let fresh = fresh(file, offset, addresses)?;
    let there = ptr::with_exposed_provenance_mut::<c_void>(addresses.start);
    let prepare = || -> io::Result<()> {
        fresh.advise(Advice::LinuxDontFork)?;
        if !in_core_dumps {
            fresh.keep_from_dumps()?;
        }
        let (from, len) = (fresh.start.as_ptr().cast(), fresh.len);
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        pass(Call::Mremap)?;
        // Not by rustix, which on top of libc passes `MAP_FIXED` instead of `MREMAP_FIXED` (1.1.6): it fails.
        // SAFETY: the old addresses are those just mapped, which no thread uses. The new ones are part of
        // `SharedMapping`s whose users expect to find this part of the file there: the contract of this function.
        last_error(unsafe { libc::mremap(from, len, len, how, there) } == libc::MAP_FAILED)
    };
    prepare().inspect_err(|_| {
        // SAFETY: just mapped, and no other thread knows of it.
        let _ = unsafe { fresh.unmap() };
    })
}

/// The addresses at which the last mapping was prepared before it moved to a multiple of a huge
/// page. They are free.
static PREPARED: AtomicUsize = AtomicUsize::new(0);

/// Returns a new mapping that will be moved to these addresses. It has no page tables of its own,
/// because a move would take along the page tables of every 2 MiB that it is a part of, which
/// neighbours may share. Where a page table exists, no huge page is mapped. So memory that will lie
/// on huge pages begins at a multiple of a huge page, if the kernel permits it.
fn fresh(file: impl AsFd, offset: u64, addresses: &Range<usize>) -> io::Result<SharedMapping> {
    let len = addresses.len();
    if addresses.start % HUGE_PAGE_BYTES != 0 || len % HUGE_PAGE_BYTES != 0 {
        return SharedMapping::anywhere(file, offset, len, READ_WRITE);
    }
    let near = |hint: usize| -> io::Result<SharedMapping> {
        let hint = ptr::without_provenance_mut(hint);
        // SAFETY: a new mapping, at the hint or at an address of the kernel's choice, replaces none.
        let start = unsafe { map(hint, len, READ_WRITE, SHARED, &file, offset) }?;
        Ok(SharedMapping { start, len })
    };
    let first = near(PREPARED.load(Ordering::Relaxed))?;
    let start = first.start.as_ptr().addr();
    if start % HUGE_PAGE_BYTES == 0 {
        return Ok(first);
    }
    // SAFETY: just mapped, and no other thread knows of it.
    unsafe { first.unmap() }?;
    // New mappings come below older ones: there is room below this one, more likely than not.
    let below = start - start % HUGE_PAGE_BYTES;
    PREPARED.store(below, Ordering::Relaxed);
    near(below)
}

/// Like [`replace`], if no mapping is left to prepare the memory elsewhere. The addresses must be
/// those of whole mappings, so that the number of mappings does not grow. A process that another
/// thread forks at this moment may get the memory, too.
///
/// # Safety
/// The conditions of [`replace`].
pub unsafe fn replace_all(
    file: impl AsFd,
    offset: u64,
    addresses: &Range<usize>,
    in_core_dumps: bool,
) -> io::Result<()> {
    // SAFETY: this function has the contract of `replace`.
    if unsafe { replace(&file, offset, addresses, in_core_dumps) }.is_ok() {
        return Ok(());
    }
    let (there, fixed) =
        (ptr::with_exposed_provenance_mut(addresses.start), SHARED | MapFlags::FIXED);
    // SAFETY: what is replaced are the addresses of `SharedMapping`s whose users expect to find this part of the file
    // there: the contract of this function.
    let start = unsafe { map(there, addresses.len(), READ_WRITE, fixed, file, offset) }?;
    let there = SharedMapping { start, len: addresses.len() };
    there.advise(Advice::LinuxDontFork)?;
    if in_core_dumps { Ok(()) } else { there.keep_from_dumps() }
}

/// Makes every access to some addresses fail: the kernel sends SIGBUS, and a system call returns
/// EFAULT. The addresses then map an empty file. Async-signal-safe.
///
/// # Safety
/// The addresses are parts of one or several [`SharedMapping`]s, whose users do not need the memory
/// any more.
pub unsafe fn replace_by_nothing(empty: impl AsFd, addresses: &Range<usize>) -> io::Result<()> {
    let there = ptr::with_exposed_provenance_mut(addresses.start);
    let fixed = SHARED | MapFlags::FIXED;
    // SAFETY: what is replaced is part of `SharedMapping`s whose users are to find nothing there any more: the contract
    // of this function.
    let start = unsafe { map(there, addresses.len(), READ_WRITE, fixed, empty, 0) }?;
    let nothing = SharedMapping { start, len: addresses.len() };
    // A forked child that has it finds nothing there either.
    let _ = nothing.advise(Advice::LinuxDontFork);
    Ok(())
}

/// Makes every access to some addresses fail: the kernel sends SIGSEGV, and a system call returns
/// EFAULT. This needs no further mapping if the addresses are those of whole mappings.
/// Async-signal-safe.
///
/// # Safety
/// The conditions of [`replace_by_nothing`].
pub unsafe fn forbid(addresses: &Range<usize>) -> io::Result<()> {
    let there = ptr::with_exposed_provenance_mut(addresses.start);
    pass(Call::Mprotect)?;
    // SAFETY: the addresses are part of `SharedMapping`s whose users are to find nothing there any more: the contract
    // of this function.
    unsafe { rustix::mm::mprotect(there, addresses.len(), MprotectFlags::empty()) }
}

/// Permits or forbids writes to some addresses. A forbidden write ends in SIGSEGV, and a system
/// call returns EFAULT; reads still work. Huge pages stay huge. After an error nothing is changed.
/// Async-signal-safe.
///
/// # Safety
/// The addresses belong to a [`SharedMapping`]. Its threads may write to them, or tolerate that
/// they may not.
pub unsafe fn set_writable(addresses: &Range<usize>, writable: bool) -> io::Result<()> {
    let there = ptr::with_exposed_provenance_mut(addresses.start);
    let set = |rights| {
        pass(Call::Mprotect)?;
        // SAFETY: addresses of a `SharedMapping`; its threads may write them, or can bear that they may not: the
        // contract of this function.
        unsafe { rustix::mm::mprotect(there, addresses.len(), rights) }
    };
    let read_write = MprotectFlags::READ | MprotectFlags::WRITE;
    if writable {
        return set(read_write);
    }
    // What comes before a part that is refused has been changed.
    set(MprotectFlags::READ).inspect_err(|_| {
        let _ = set(read_write);
    })
}

/// Mappings in reserve. A process without a mapping left releases them, so that it can change other
/// mappings.
#[derive(Debug)]
pub struct Spare {
    pages: [AtomicUsize; 4],
    page_size: usize,
    mark: ForkMark,
}

impl Spare {
    /// Makes as many mappings as the process may have. Each maps the file's first page without
    /// access, so the kernel cannot merge two of them.
    pub fn new(file: impl AsFd, page_size: usize) -> Self {
        let page = |_| {
            let mapping = SharedMapping::inaccessible(&file, 0, page_size, page_size).ok()?;
            let _ = mapping.advise(Advice::LinuxDontFork);
            Some(mapping.start.as_ptr().expose_provenance())
        };
        let pages = std::array::from_fn(|index| AtomicUsize::new(page(index).unwrap_or(0)));
        Self { pages, page_size, mark: ForkMark::new() }
    }

    /// Releases the mappings. Async-signal-safe.
    pub fn release(&self) {
        for page in &self.pages {
            let page = ptr::with_exposed_provenance_mut::<u8>(page.swap(0, Ordering::Relaxed));
            if !page.is_null() && self.mark.is_ours() {
                // SAFETY: mapped by `new` in this process, and accessed by no thread.
                let _ = unsafe { unmap(page, self.page_size) };
            }
        }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.release();
    }
}

/// Untouched private pages that no forked child has. A drop does not unmap them, as for a
/// [`SharedMapping`]. They are mapped for writing only, although every CPU can then read them, so
/// that no snapshot takes them for a program's memory and touches them (`own.rs`).
#[derive(Debug)]
pub struct UntouchedPages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an address range. No method reads or writes a byte of it, and `forget` leaves it zeroes, which it is.
unsafe impl Send for UntouchedPages {}
// SAFETY: as for `Send`: no method changes what a reader of the range finds.
unsafe impl Sync for UntouchedPages {}

/// The number of attempts to make the kernel forget pages.
const LOCKED_TRIES: u32 = 1000;

impl UntouchedPages {
    pub fn new(len: usize) -> io::Result<Self> {
        let start = apart::map_anonymous(len, ProtFlags::WRITE, MapFlags::PRIVATE)?;
        let pages = Self { start, len };
        let advise = || {
            pass(Call::Madvise)?;
            // SAFETY: the advice changes nothing for this process.
            unsafe { rustix::mm::madvise(start.as_ptr().cast(), len, Advice::LinuxDontFork) }
        };
        if let Err(error) = advise() {
            // SAFETY: just mapped, and no other thread knows of it.
            unsafe { pages.unmap() }?;
            return Err(error);
        }
        Ok(pages)
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub fn addresses(&self) -> std::ops::Range<usize> {
        let start = self.start.as_ptr().addr();
        start..start + self.len
    }

    /// Makes whole pages untouched again, locked pages too. Readers find zeroes before and
    /// afterwards.
    pub fn forget(&self, bytes: std::ops::Range<usize>) {
        assert!(bytes.start <= bytes.end && bytes.end <= self.len);
        let start = self.start.as_ptr().wrapping_add(bytes.start).cast();
        let forget_locked = || {
            // SAFETY: pages of this mapping, which are never written.
            unsafe { libc::madvise(start, bytes.len(), libc::MADV_DONTNEED_LOCKED) == 0 }
        };
        let unlock_and_forget = || {
            // SAFETY: pages of this mapping, which are never written, so that they are zeroes before and afterwards.
            unsafe {
                let _ = rustix::mm::munlock(start, bytes.len());
                rustix::mm::madvise(start, bytes.len(), Advice::LinuxDontNeed).is_ok()
            }
        };
        // Before Linux 5.18 another thread may lock them again in between. A system-call filter refuses for ever.
        let _ = (0..LOCKED_TRIES).any(|_| forget_locked() || unlock_and_forget());
    }

    /// Unmaps it.
    ///
    /// # Safety
    /// The conditions of [`SharedMapping::unmap`].
    pub unsafe fn unmap(&self) -> io::Result<()> {
        // SAFETY: exactly the addresses that were mapped; they are still this mapping's, and no thread uses them: the
        // contract of this function.
        unsafe { unmap(self.start.as_ptr(), self.len) }
    }
}

const NO_ACCESS: ProtFlags = ProtFlags::empty();
pub(super) const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const SHARED: MapFlags = MapFlags::SHARED;

/// Checks that the process may have this many further mappings at this moment.
pub(super) fn check_room(mappings: usize) -> io::Result<()> {
    let page = page_size();
    let (first, all) = (MapFlags::PRIVATE | MapFlags::NORESERVE, mappings * page);
    // SAFETY: a new mapping at an address of the kernel's choice replaces none.
    let start = unsafe { map_anonymous(ptr::null_mut(), all, NO_ACCESS, first) }?.as_ptr();
    // Neighbours with different rights are mappings of their own.
    let room = (0..mappings).step_by(2).try_for_each(|index| {
        pass(Call::Mprotect)?;
        let at = start.wrapping_add(index * page).cast();
        // SAFETY: a page just mapped, that no other thread knows of.
        unsafe { rustix::mm::mprotect(at, page, MprotectFlags::READ) }
    });
    // SAFETY: the addresses just mapped, which no other thread knows of.
    unsafe { unmap(start, all) }?;
    room
}

/// `mmap(2)` with a file.
///
/// # Safety
/// The conditions of [`rustix::mm::mmap`].
pub(super) unsafe fn map(
    at: *mut u8,
    len: usize,
    access: ProtFlags,
    how: MapFlags,
    file: impl AsFd,
    offset: u64,
) -> io::Result<NonNull<u8>> {
    pass(Call::Mmap)?;
    // SAFETY: this function has the contract of `rustix::mm::mmap`.
    not_null(unsafe { rustix::mm::mmap(at.cast(), len, access, how, file, offset) }?.cast())
}

/// `mmap(2)` without a file.
///
/// # Safety
/// The conditions of [`rustix::mm::mmap_anonymous`].
pub(super) unsafe fn map_anonymous(
    at: *mut u8,
    len: usize,
    access: ProtFlags,
    how: MapFlags,
) -> io::Result<NonNull<u8>> {
    pass(Call::Mmap)?;
    // SAFETY: this function has the contract of `rustix::mm::mmap_anonymous`.
    not_null(unsafe { rustix::mm::mmap_anonymous(at.cast(), len, access, how) }?.cast())
}

/// The highest number of attempts to unmap. The kernel needs memory for that, which may be short
/// for a moment.
const TRIES: usize = 3;

/// `munmap(2)`.
///
/// # Errors
/// `ENOMEM` if the call splits a mapping, and the process may have no further mapping.
///
/// # Safety
/// The conditions of [`rustix::mm::munmap`].
pub(super) unsafe fn unmap(start: *mut u8, len: usize) -> io::Result<()> {
    let unmap = || {
        pass(Call::Munmap)?;
        // SAFETY: this function has the contract of `rustix::mm::munmap`.
        unsafe { rustix::mm::munmap(start.cast(), len) }
    };
    (1..TRIES).fold(unmap(), |done, _| match done {
        Err(io::Errno::NOMEM) => unmap(),
        done => done,
    })
}

/// Checks that an address is not 0, where the kernel maps nothing without a request.
fn not_null(start: *mut u8) -> io::Result<NonNull<u8>> {
    NonNull::new(start).ok_or(io::Errno::NOMEM)
}

/// The kernel's number; libc has it only for glibc.
pub const MADV_COLLAPSE: libc::c_int = 25;

/// Makes transparent huge pages of the aligned 2 MiB within the memory, whatever the setting is
/// (Linux 6.1). Holes count as zeroes.
///
/// # Safety
/// No first access to these addresses waits for a userfaultfd of a program that has not supplied
/// the content yet, because a collapse maps the present content.
pub unsafe fn collapse(start: *mut u8, len: usize) -> io::Result<()> {
    let collapse = || {
        pass(Call::MadviseCollapse)?;
        // SAFETY: a collapse changes no byte of what is there, and it waits for no userfaultfd's owner to fill a page:
        // the contract of this function.
        last_error(unsafe { libc::madvise(start.cast(), len, MADV_COLLAPSE) } != 0)
    };
    io::retry_on_intr(collapse)
}

/// Returns true if the kernel may know `MADV_COLLAPSE`. It checks the advice before the length.
pub fn can_collapse() -> bool {
    // SAFETY: of no bytes.
    unsafe { collapse(ptr::null_mut(), 0) != Err(io::Errno::INVAL) }
}

#[cfg(test)]
mod tests {
    use super::super::memfd::{self, FilePages};
    use super::*;

    #[test]
    fn mapping_with_any_alignment_keeps_it_and_shows_the_files_bytes() {
        let file = memfd::create(c"hugekit-test", FilePages::Shmem).unwrap();
        memfd::size_for_good(&file, 1 << 20).unwrap();
        for align in [4096, 1 << 20, 1 << 25] {
            let whole = SharedMapping::new(&file, 0, 1 << 20, align).unwrap();
            let part = SharedMapping::new(&file, 1 << 16, 1 << 16, align).unwrap();
            for mapping in [&whole, &part] {
                assert_eq!(mapping.start().as_ptr().addr() % align, 0);
            }
            // SAFETY: within the two mappings, which no other thread uses and which end here.
            unsafe {
                part.start().write(align as u8 | 1);
                assert_eq!(whole.start().add(1 << 16).read(), align as u8 | 1);
                whole.unmap().unwrap();
                part.unmap().unwrap();
            }
        }
    }
}
