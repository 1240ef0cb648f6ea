//! userfaultfd(2): ways to open a descriptor, the handshake that reports the kernel's features, and
//! the operations on served memory.
#![allow(unsafe_code)]

use std::io::Write;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{MemfdFlags, Mode, OFlags, fstat, major, memfd_create, open};
use rustix::io;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use rustix::param::page_size;

use super::injection::{Call, Novelty, features_of, has, pass};
use super::ioctl::IntegerToInteger;
use super::{last_error, process};

const USERFAULTFD_IOC_NEW: Opcode = opcode::none(0xAA, 0x00);
const UFFDIO_API: Opcode = opcode::read_write::<UffdioApi>(0xAA, 0x3F);
const UFFDIO_REGISTER: Opcode = opcode::read_write::<UffdioRegister>(0xAA, 0x00);
const UFFDIO_UNREGISTER: Opcode = opcode::read::<UffdioRange>(0xAA, 0x01);
const UFFDIO_WAKE: Opcode = opcode::read::<UffdioRange>(0xAA, 0x02);
const UFFDIO_COPY: Opcode = opcode::read_write::<UffdioCopy>(0xAA, 0x03);
const UFFDIO_ZEROPAGE: Opcode = opcode::read_write::<UffdioZeropage>(0xAA, 0x04);
const UFFDIO_WRITEPROTECT: Opcode = opcode::read_write::<UffdioWriteprotect>(0xAA, 0x06);
const UFFDIO_CONTINUE: Opcode = opcode::read_write::<UffdioContinue>(0xAA, 0x07);
const UFFD_API: u64 = 0xAA;

/// Reports faults at which the file has no page.
const REGISTER_MISSING: u64 = 1 << 0;
/// Reports writes to protected pages.
const REGISTER_WP: u64 = 1 << 1;
/// Reports faults at which the file has a page that is not mapped.
const REGISTER_MINOR: u64 = 1 << 2;

/// Maps pages that are protected against writes.
const CONTINUE_WP: u64 = 1 << 1;
/// Protects pages instead of lifting the protection.
const WRITEPROTECT_WP: u64 = 1 << 0;

const EVENT_PAGEFAULT: u8 = 0x12;
/// The access was a write.
const PAGEFAULT_WRITE: u64 = 1 << 0;
/// The access was a write to a page that is mapped, and protected.
const PAGEFAULT_WP: u64 = 1 << 1;

/// Major number of the kernel's miscellaneous devices.
const MISC_MAJOR: u32 = 10;

/// Restricts the descriptor to faults of user code (Linux 5.11), which needs no privilege.
const UFFD_USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);

/// `struct uffdio_api`.
#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`: address and length in bytes.
#[repr(C)]
struct UffdioRange {
    start: u64,
    len: u64,
}

impl UffdioRange {
    fn of(addresses: &Range<usize>) -> Self {
        Self { start: addresses.start as u64, len: addresses.len() as u64 }
    }
}

/// `struct uffdio_register`.
#[repr(C)]
struct UffdioRegister {
    range: UffdioRange,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_continue`.
#[repr(C)]
struct UffdioContinue {
    range: UffdioRange,
    mode: u64,
    /// Bytes mapped, or a negative error number.
    mapped: i64,
}

/// `struct uffdio_copy`.
#[repr(C)]
struct UffdioCopy {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    /// Bytes copied, or a negative error number.
    copied: i64,
}

/// `struct uffdio_zeropage`.
#[repr(C)]
struct UffdioZeropage {
    range: UffdioRange,
    mode: u64,
    /// Bytes mapped, or a negative error number.
    mapped: i64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct UffdioWriteprotect {
    range: UffdioRange,
    mode: u64,
}

/// `struct uffd_msg` with the page fault's part of the union.
#[repr(C)]
struct UffdMsg {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u32,
    padding: u32,
}

/// Opens a descriptor for all faults, including those of system calls and of KVM.
pub fn new_whole() -> io::Result<OwnedFd> {
    new(UserfaultfdFlags::empty())
}

/// Opens a descriptor for faults of user code only.
pub fn new_user_mode_only() -> io::Result<OwnedFd> {
    new(UFFD_USER_MODE_ONLY)
}

/// Returns true if the system call may be tried. A system-call filter can answer it with a signal
/// that ends the process.
pub fn may_be_asked_for() -> bool {
    // SAFETY: opening and closing a descriptor are two system calls, which take no lock of this process.
    let survives = unsafe { process::survives(|| drop(new_user_mode_only())) };
    survives.unwrap_or(false)
}

fn new(flags: UserfaultfdFlags) -> io::Result<OwnedFd> {
    pass(Call::Userfaultfd)?;
    // SAFETY: a fresh descriptor has no memory registered; it affects none before that is done.
    unsafe { userfaultfd(flags | UserfaultfdFlags::CLOEXEC) }
}

/// Opens a descriptor through the device node (Linux 6.1), whose file permissions decide who may
/// open it.
pub fn new_from_device(device: &Path) -> io::Result<OwnedFd> {
    pass(Call::Open)?;
    let device = open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    pass(Call::Fstat)?;
    if major(fstat(&device)?.st_rdev) != MISC_MAJOR {
        return Err(io::Errno::NOTTY);
    }
    let flags = UserfaultfdFlags::CLOEXEC.bits() as usize;
    // SAFETY: USERFAULTFD_IOC_NEW is `_IO`: its argument is the flags, by value.
    let new = unsafe { IntegerToInteger::<USERFAULTFD_IOC_NEW>::new(flags) };
    pass(Call::UffdNew)?;
    // SAFETY: the device is a miscellaneous one, and of these only userfaultfd's answers requests of group 0xAA.
    let descriptor = unsafe { ioctl(&device, new)? };
    // SAFETY: on success the ioctl returns a descriptor that it has just created for us.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Makes the handshake without a request for features. The kernel answers with all of its features,
/// as the bits of `UFFD_FEATURE_*`. A descriptor permits only one handshake.
pub fn features(descriptor: impl AsFd) -> io::Result<u64> {
    let mut api = UffdioApi { api: UFFD_API, features: 0, ioctls: 0 };
    pass(Call::UffdApi)?;
    // SAFETY: UFFDIO_API reads and writes one `struct uffdio_api`, which `UffdioApi` mirrors.
    unsafe { ioctl(descriptor, Updater::<UFFDIO_API, _>::new(&mut api))? };
    Ok(features_of(api.features))
}

/// Makes the handshake with a request for these features.
///
/// # Errors
/// `EINVAL` if the kernel lacks one of them.
pub fn enable(descriptor: impl AsFd, features: u64) -> io::Result<()> {
    let mut api = UffdioApi { api: UFFD_API, features, ioctls: 0 };
    pass(Call::UffdApi)?;
    if features_of(features) != features {
        return Err(io::Errno::INVAL);
    }
    // SAFETY: UFFDIO_API reads and writes one `struct uffdio_api`, which `UffdioApi` mirrors.
    unsafe { ioctl(descriptor, Updater::<UFFDIO_API, _>::new(&mut api)) }
}

/// Registers addresses: every access to them becomes a fault of this descriptor if the file's page
/// is absent or not mapped. The addresses belong to one mapping, in whole pages of it.
///
/// With `uncollapsed`, the kernel also refuses `MADV_COLLAPSE` of these addresses, by any process.
/// A collapse maps a huge page of the file without a fault, but never where writes are watched,
/// because a huge entry could not record which of its pages are protected. This protects no page,
/// so no write faults.
pub fn register(
    descriptor: BorrowedFd<'_>,
    addresses: &Range<usize>,
    uncollapsed: bool,
) -> io::Result<()> {
    let first_accesses = REGISTER_MISSING | REGISTER_MINOR;
    let mode = if uncollapsed { first_accesses | REGISTER_WP } else { first_accesses };
    register_for(descriptor, addresses, mode)
}

/// Like [`register`], for untouched private anonymous memory.
pub fn register_untouched(descriptor: BorrowedFd<'_>, addresses: &Range<usize>) -> io::Result<()> {
    register_for(descriptor, addresses, REGISTER_MISSING)
}

/// Like [`register_untouched`]. The descriptor also reports writes to protected pages.
pub fn register_for_writes(descriptor: BorrowedFd<'_>, addresses: &Range<usize>) -> io::Result<()> {
    register_for(descriptor, addresses, REGISTER_MISSING | REGISTER_WP)
}

/// Registers addresses for writes to protected memory, and with `lazily` also for every access to
/// memory that is not mapped. The addresses are those of adjacent mappings. Addresses that are
/// registered for more stay so.
///
/// # Errors
/// `EBUSY` if some of the addresses are registered with another descriptor.
pub fn register_for_copies(
    descriptor: BorrowedFd<'_>,
    addresses: &Range<usize>,
    lazily: bool,
) -> io::Result<()> {
    let mode = if lazily { REGISTER_WP | REGISTER_MINOR } else { REGISTER_WP };
    register_for(descriptor, addresses, mode)
}

/// Protects the addresses against writes, or lifts the protection and wakes the threads that wait
/// there. If nothing is mapped at an address at this moment, memory of files is protected as well,
/// and private memory if that feature was requested. Async-signal-safe.
///
/// # Errors
/// `ENOENT` if some of the addresses are not registered. The addresses before these are done.
pub fn protect(
    descriptor: BorrowedFd<'_>,
    addresses: &Range<usize>,
    protected: bool,
) -> io::Result<()> {
    let mut part = addresses.clone();
    loop {
        match (protect_in_one(descriptor, &part, protected), middle_of(&part)) {
            // Linux before 6.4 does no more than one mapping, and nothing of several.
            (Err(io::Errno::NOENT), Some(middle)) => part.end = middle,
            (Ok(()), _) if part.end < addresses.end => part = part.end..addresses.end,
            (done, _) => return done,
        }
    }
}

/// Returns the roundest address within a range, at which one mapping of huge pages may end and
/// another one begin.
fn middle_of(range: &Range<usize>) -> Option<usize> {
    let page_bits = page_size().trailing_zeros();
    let rounded = |bits: u32| (range.start + 1).next_multiple_of(1 << bits);
    (page_bits..usize::BITS - 1).rev().map(rounded).find(|&middle| middle < range.end)
}

fn protect_in_one(
    descriptor: BorrowedFd<'_>,
    addresses: &Range<usize>,
    protected: bool,
) -> io::Result<()> {
    let mode = if protected { WRITEPROTECT_WP } else { 0 };
    let mut tries = 0;
    loop {
        let mut request = UffdioWriteprotect { range: UffdioRange::of(addresses), mode };
        // SAFETY: reads one `struct uffdio_writeprotect`; no byte of the memory changes, and writes wait or
        // raise SIGBUS where they would have gone through.
        let request = unsafe { Updater::<UFFDIO_WRITEPROTECT, _>::new(&mut request) };
        // SAFETY: `request` is a valid `struct uffdio_writeprotect`, borrowed until the call returns.
        match pass(Call::UffdWriteprotect).and_then(|()| unsafe { ioctl(descriptor, request) }) {
            // The process's mappings change at this moment; or a system-call filter says so, for ever.
            Err(io::Errno::AGAIN | io::Errno::INTR) if tries < TRIES => {
                tries += 1;
                rustix::thread::sched_yield();
            }
            done => return done,
        }
    }
}

/// The number of attempts if the kernel answers that the call should be repeated.
const TRIES: u32 = 10_000;

/// Closes the userfaultfd of a descriptor, and keeps its number. So no other file gets the number,
/// which a thread may be about to use. As soon as no thread reads the descriptor and no forked
/// child has it, the kernel lets every access pass. A descriptor that is not a userfaultfd any more
/// does not change. Async-signal-safe.
pub fn abandon(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    if !is_userfaultfd(descriptor) {
        return Ok(());
    }
    pass(Call::MemfdCreate)?;
    let nothing = memfd_create(c"hugekit-nothing", MemfdFlags::CLOEXEC)?;
    let (from, to) = (nothing.as_raw_fd(), descriptor.as_raw_fd());
    pass(Call::Dup3)?;
    // SAFETY: the number stays open, and its owner does not mind what it stands for.
    last_error(unsafe { libc::dup3(from, to, libc::O_CLOEXEC) } < 0)
}

/// Returns true if the descriptor still is the userfaultfd, or the file that [`abandon`] put there,
/// as far as `/proc` shows this. Another library may have closed the descriptor, and the number may
/// belong to another file now.
pub fn is_kept(descriptor: BorrowedFd<'_>) -> bool {
    let is = |what| stands_for(descriptor, what).unwrap_or(true);
    is(b"anon_inode:[userfaultfd]") || is(b"/memfd:hugekit-nothing")
}

fn is_userfaultfd(descriptor: BorrowedFd<'_>) -> bool {
    stands_for(descriptor, b"anon_inode:[userfaultfd]").unwrap_or(false)
}

/// Returns true if the description of a descriptor in `/proc` begins with `what`, which a closed
/// descriptor has not; `None` if `/proc` cannot be read. Async-signal-safe.
fn stands_for(descriptor: BorrowedFd<'_>, what: &[u8]) -> Option<bool> {
    let (mut path, mut link) = ([0_u8; 32], [0_u8; 32]);
    let written = write!(&mut path[..], "/proc/self/fd/{}\0", descriptor.as_raw_fd());
    pass(Call::Readlink).ok()?;
    let (path, to) = (path.as_ptr().cast(), link.as_mut_ptr().cast());
    // SAFETY: reads a path that ends with 0, and writes no more than the link's bytes.
    let failed = written.is_err() || unsafe { libc::readlink(path, to, link.len()) } < 0;
    match last_error(failed) {
        Ok(()) => Some(link.starts_with(what)),
        Err(io::Errno::NOENT) => Some(false),
        Err(_) => None,
    }
}

fn register_for(descriptor: BorrowedFd<'_>, addresses: &Range<usize>, mode: u64) -> io::Result<()> {
    let range = UffdioRange::of(addresses);
    let mut register = UffdioRegister { range, mode, ioctls: 0 };
    pass(Call::UffdRegister)?;
    // SAFETY: reads and writes one `struct uffdio_register`; no byte of the memory changes, and
    // accesses wait or raise SIGBUS where they would have gone to the kernel.
    unsafe { ioctl(descriptor, Updater::<UFFDIO_REGISTER, _>::new(&mut register)) }
}

/// Unregisters the addresses, and wakes the threads that wait there.
///
/// The kernel itself wakes threads before it takes the lock that prevents new faults there. A
/// thread that begins to wait in between (seen with Linux 6.18) would wait for ever. After the
/// kernel's call has returned, no thread can begin to wait, so this call wakes them again.
pub fn unregister(descriptor: BorrowedFd<'_>, addresses: &Range<usize>) -> io::Result<()> {
    let range = UffdioRange::of(addresses);
    pass(Call::UffdUnregister)?;
    // SAFETY: reads one `struct uffdio_range`; no byte of the memory changes.
    unsafe { ioctl(descriptor, Setter::<UFFDIO_UNREGISTER, _>::new(range)) }?;
    wake(descriptor, addresses)
}

/// Wakes the threads that wait for one of these addresses. They repeat their accesses.
pub fn wake(descriptor: BorrowedFd<'_>, addresses: &Range<usize>) -> io::Result<()> {
    let range = UffdioRange::of(addresses);
    pass(Call::UffdWake)?;
    // SAFETY: reads one `struct uffdio_range`.
    unsafe { ioctl(descriptor, Setter::<UFFDIO_WAKE, _>::new(range)) }
}

/// Maps the pages of the file at these addresses, with or without write protection, and wakes the
/// threads that wait there. Async-signal-safe.
///
/// # Errors
/// `EEXIST` if the first address is mapped already, `EFAULT` if the file has no page there,
/// `ENOENT` if the addresses are not registered any more, and `EAGAIN` while they are being
/// unmapped. If an error comes later, the pages before it are mapped: the number of their bytes is
/// the first part of the pair.
pub fn map_present(
    descriptor: BorrowedFd<'_>,
    addresses: &Range<usize>,
    protected: bool,
) -> Result<(), (usize, io::Errno)> {
    let range = UffdioRange::of(addresses);
    pass(Call::UffdContinue).map_err(|errno| (0, errno))?;
    let mode = if protected { CONTINUE_WP } else { 0 };
    let mut request = UffdioContinue { range, mode, mapped: 0 };
    // SAFETY: reads and writes one `struct uffdio_continue`; which bytes appear at these addresses is
    // what the mapping of the file says.
    let done = unsafe { ioctl(descriptor, Updater::<UFFDIO_CONTINUE, _>::new(&mut request)) };
    done.map_err(|errno| (usize::try_from(request.mapped).unwrap_or(0), errno))
}

/// Returns true if this kernel maps pages that are protected from the beginning ([`map_present`],
/// Linux 6.4). It checks the request before the addresses, which are not registered here.
pub fn can_map_protected(descriptor: BorrowedFd<'_>) -> bool {
    has(Novelty::ProtectedContinue)
        && match map_present(descriptor, &(page_size()..2 * page_size()), true) {
            Ok(()) => true,
            Err((_, errno)) => errno != io::Errno::INVAL,
        }
}

/// Maps the page of zeroes in registered, untouched private anonymous memory, as the first read of
/// it would, but never a huge page.
///
/// # Errors
/// `EEXIST` if the next page is not untouched any more. With an error, the bytes before it are
/// mapped: their number is the first part of the pair.
pub fn map_zeroes(
    descriptor: BorrowedFd<'_>,
    addresses: &Range<usize>,
) -> Result<(), (usize, io::Errno)> {
    pass(Call::UffdZeropage).map_err(|errno| (0, errno))?;
    let range = UffdioRange::of(addresses);
    let mut request = UffdioZeropage { range, mode: 0, mapped: 0 };
    // SAFETY: reads and writes one `struct uffdio_zeropage`; no byte that a thread could have read changes.
    let done = unsafe { ioctl(descriptor, Updater::<UFFDIO_ZEROPAGE, _>::new(&mut request)) };
    done.map_err(|errno| (usize::try_from(request.mapped).unwrap_or(0), errno))
}

/// Copies bytes to missing pages, and wakes the threads that wait for them. `hugekit-vm` and the
/// lab call this with descriptors of other processes, so tests do not refuse it.
///
/// # Errors
/// `EEXIST` if the next page is present, `EAGAIN` while the process's mappings change, and `ESRCH`
/// if the process has ended. With an error, the bytes before it are copied: their number is the
/// first part of the pair.
pub fn copy(descriptor: BorrowedFd<'_>, to: usize, from: &[u8]) -> Result<(), (usize, io::Errno)> {
    let (to, from, len) = (to as u64, from.as_ptr().addr() as u64, from.len() as u64);
    let mut request = UffdioCopy { to, from, len, mode: 0, copied: 0 };
    // SAFETY: reads and writes one `struct uffdio_copy`, and reads `from`. Only pages that are not there are written,
    // in memory that was registered to be supplied by the holder of the descriptor.
    let done = unsafe { ioctl(descriptor, Updater::<UFFDIO_COPY, _>::new(&mut request)) };
    done.map_err(|errno| (usize::try_from(request.copied).unwrap_or(0), errno))
}

/// A fault for which a thread waits.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The faulting address. Exact to the byte if that feature is enabled, otherwise the start of the page.
    pub address: usize,
    /// The thread that waits; 0 if that feature was not enabled.
    pub thread: u32,
    /// True if the access was a write.
    pub write: bool,
}

/// Waits for the next fault and returns it. `None` if the wait was interrupted, or if the message
/// is of another kind.
///
/// # Errors
/// `EPIPE` if the descriptor was [abandoned](abandon).
pub fn next_fault(descriptor: BorrowedFd<'_>) -> io::Result<Option<Fault>> {
    let mut message = MaybeUninit::<UffdMsg>::uninit();
    // SAFETY: the bytes of the message, which may hold anything before they are read into.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(message.as_mut_ptr().cast::<MaybeUninit<u8>>(), MSG_BYTES)
    };
    let (read, _) = match pass(Call::ReadFault).and_then(|()| rustix::io::read(descriptor, bytes)) {
        Err(io::Errno::INTR) => return Ok(None),
        read => read?,
    };
    if read.is_empty() {
        return Err(io::Errno::PIPE);
    }
    if read.len() < MSG_BYTES {
        return Ok(None);
    }
    // SAFETY: all of the message was read, and any bytes are a valid one.
    let UffdMsg { event, flags, address, thread, .. } = unsafe { message.assume_init() };
    let write = flags & (PAGEFAULT_WRITE | PAGEFAULT_WP) != 0;
    Ok((event == EVENT_PAGEFAULT).then_some(Fault { address: address as usize, thread, write }))
}

const MSG_BYTES: usize = size_of::<UffdMsg>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_of_each_call_are_the_kernels() {
        assert_eq!(USERFAULTFD_IOC_NEW, 0xAA00);
        assert_eq!(UFFDIO_COPY, 0xC028_AA03);
        assert_eq!(UFFDIO_API, 0xC018_AA3F);
        assert_eq!(UFFDIO_REGISTER, 0xC020_AA00);
        assert_eq!(UFFDIO_UNREGISTER, 0x8010_AA01);
        assert_eq!(UFFDIO_WAKE, 0x8010_AA02);
        assert_eq!(UFFDIO_ZEROPAGE, 0xC020_AA04);
        assert_eq!(UFFDIO_WRITEPROTECT, 0xC018_AA06);
        assert_eq!(UFFDIO_CONTINUE, 0xC020_AA07);
        assert_eq!(MSG_BYTES, 32);
    }

    #[test]
    fn middle_of_any_range_is_where_mappings_may_meet() {
        let page = page_size();
        assert_eq!(middle_of(&(page..2 * page)), None);
        assert_eq!(middle_of(&(page..3 * page)), Some(2 * page));
        assert_eq!(middle_of(&(3 * page..9 * page)), Some(8 * page));
        assert_eq!(middle_of(&(0..3 << 30)), Some(2 << 30));
        assert_eq!(middle_of(&(8 * page..16 * page)), Some(12 * page));
    }

    #[test]
    fn open_of_a_device_that_is_none_is_an_error() {
        assert_eq!(new_from_device(Path::new("/dev/null")).unwrap_err(), io::Errno::NOTTY);
    }
}
