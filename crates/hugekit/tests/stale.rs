//! Memory of a pool shows no earlier owner's bytes, whatever this process, another one or the kernel itself does to
//! the addresses or to the file: each attack first, then every byte is read.
#![allow(unsafe_code)]

mod backings;
mod child;
mod served;


use backings::{Check, is_zero, trials_on};
use child::in_a_child;
use hugekit::fault::Handling;
use hugekit::pool::Backing;
use hugekit::{Pool, Region};
use libtest_mimic::Arguments;
use served::{at_fault, soiled};

const HUGE: usize = 2 << 20;
const LEN: usize = 4 * HUGE;

const HANDLINGS: [Handling; 2] = [Handling::InPlace, Handling::Threaded { threads: 1 }];

/// Calls `attack` with a region over all of a dirty pool, which nobody has touched yet, for every way to serve it.
fn each(backing: Backing, attack: impl Fn(&mut Region)) {
    for handling in HANDLINGS {
        let (_pool, mut region) = untouched(backing, handling);
        attack(&mut region);
        assert!(is_zero(&region), "{handling:?}: bytes of an earlier owner");
    }
}

/// A region over all of a dirty pool, at an address that is as far from a multiple of 2 MiB as its part of the file
/// is, so that nothing but hugekit stands in the way of huge pages.
fn untouched(backing: Backing, handling: Handling) -> (Pool, Region) {
    let pool = soiled(backing, LEN / backing.page_size());
    let mut fillers = Vec::new();
    for _ in 0..64 {
        let region = at_fault(&pool, LEN, handling);
        let start = region.as_ptr().addr();
        if start.is_multiple_of(HUGE) {
            return (pool, region);
        }
        drop(region);
        fillers.push(Filler::below(start + LEN, start % HUGE));
    }
    panic!("no address at a multiple of 2 MiB was found");
}

/// Addresses that are taken, so that the kernel puts the next mapping that much lower.
struct Filler(*mut libc::c_void, usize);

impl Filler {
    fn below(end: usize, len: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let start = std::ptr::without_provenance_mut(end - len);
        // SAFETY: a new mapping that replaces none; where another thread was faster there is none.
        Self(unsafe { libc::mmap(start, len, libc::PROT_NONE, flags, -1, 0) }, len)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and inaccessible.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

fn advise(region: &Region, advice: i32) -> i32 {
    let start = region.as_ptr().cast_mut().cast();
    // SAFETY: none of the advices of these tests changes what the memory holds, which is what they test.
    unsafe { libc::madvise(start, region.len(), advice) }
}

/// Advises another process's memory: what `process_madvise`(2) returned.
fn advise_other(process: i32, start: usize, len: usize, advice: i32) -> isize {
    let piece = libc::iovec { iov_base: start as *mut _, iov_len: len };
    // SAFETY: reads one `iovec`; the memory advised is another process's.
    unsafe {
        let pid = libc::syscall(libc::SYS_pidfd_open, process, 0);
        if pid < 0 {
            return -1;
        }
        libc::syscall(libc::SYS_process_madvise, pid, &raw const piece, 1, advice, 0) as isize
    }
}

/// Where this process asks for huge pages, folio by folio and all at once.
fn collapse_by_this_process(backing: Backing) {
    each(backing, |region| {
        advise(region, libc::MADV_COLLAPSE);
        for piece in region.chunks(HUGE) {
            // SAFETY: as in `advise`.
            unsafe { libc::madvise(piece.as_ptr().cast_mut().cast(), HUGE, libc::MADV_COLLAPSE) };
        }
    });
}

/// The same from another process.
fn collapse_by_another_process(backing: Backing) {
    each(backing, |region| {
        let (me, start, len) = (std::process::id(), region.as_ptr().addr(), region.len());
        in_a_child(|| {
            advise_other(me as i32, start, len, libc::MADV_COLLAPSE);
            0
        });
    });
}

/// What was released is the region's own, and reads as zeroes all the same.
fn collapse_after_a_release(backing: Backing) {
    each(backing, |region| {
        region.fill(7);
        advise(region, libc::MADV_COLLAPSE);
        region.release(0..LEN).unwrap();
        advise(region, libc::MADV_COLLAPSE);
    });
}

const ON_SHARED_MEMORY: &[Check] = &[
    ("collapse_by_this_process", collapse_by_this_process),
    ("collapse_by_another_process", collapse_by_another_process),
    ("collapse_after_a_release", collapse_after_a_release),
];

fn main() {
    let mut trials = Vec::new();
    for backing in [Backing::Base, Backing::Thp, Backing::Hugetlb2M] {
        trials.extend(trials_on(backing, LEN / backing.page_size(), ON_SHARED_MEMORY));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
