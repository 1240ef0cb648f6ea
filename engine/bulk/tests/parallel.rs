//! Operations on several threads: every byte, and nothing but these, whatever the range; memory that
//! cannot be populated; and a process that forks.
#![allow(unsafe_code)]

use hugekit_testing::child;
mod common;

use std::convert::Infallible;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;

use child::in_a_child;
use common::{hints, len};
use hugekit::{
    Cancel, ClearError, ClearOptions, CopyError, CopyOptions, PopulateError, PopulateOptions,
    Profile, Threads,
};
use hugekit_bulk::arch::{clear_routines, copy_routines};
use hugekit_bulk::parallel::{Job, JobError};
use proptest::prelude::*;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use rustix::param::page_size;

const MIB: usize = 1 << 20;

/// This machine's profile with chunks so small that a test has many.
fn small_chunks() -> Profile {
    let mut profile = Profile::builtin(
        hugekit_machine::cpu::cpu_model(),
        hugekit_machine::CacheSizes { l1d: 32 << 10, l2: 1 << 20, llc: 32 << 20, llc_shared_by: 2 },
    );
    (profile.parallel_from, profile.min_chunk) = (0, 4096);
    profile
}

fn surrounded(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 255) as u8 + 1).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn clear_by_threads_zeroes_exactly_its_bytes(
        before in 0_usize..9000,
        len in len(),
        threads in prop_oneof![Just(Threads::Auto), (1_usize..4).prop_map(Threads::Exactly)],
        hints in hints(),
        low in any::<bool>(),
    ) {
        let profile = small_chunks();
        let mut bytes = surrounded(before + len + 100);
        let mut expected = bytes.clone();
        expected[before..][..len].fill(0);
        let clear = hints.operation(len, clear_routines()).profile(&profile);
        let clear = clear.threads(threads).low_priority(low);
        let report = clear.run(&mut bytes[before..][..len]).unwrap();
        prop_assert_eq!(report.bytes, len);
        prop_assert!(bytes == expected);
    }

    #[test]
    fn copy_by_threads_writes_exactly_its_bytes(
        before in 0_usize..9000,
        skew in 0_usize..9000,
        len in len(),
        threads in prop_oneof![Just(Threads::Auto), (1_usize..4).prop_map(Threads::Exactly)],
        hints in hints(),
        low in any::<bool>(),
    ) {
        let profile = small_chunks();
        let source: Vec<u8> = (0..skew + len).map(|at| (at % 251) as u8 ^ (at >> 12) as u8).collect();
        let mut bytes = surrounded(before + len + 100);
        let mut expected = bytes.clone();
        expected[before..][..len].copy_from_slice(&source[skew..]);
        let copy = hints.operation(len, copy_routines()).profile(&profile);
        let copy = copy.threads(threads).low_priority(low);
        let report = copy.run(&mut bytes[before..][..len], &source[skew..]).unwrap();
        prop_assert_eq!(report.bytes, len);
        prop_assert!(bytes == expected);
    }
}

#[test]
fn copy_by_every_routine_goes_in_chunks() {
    let (profile, len) = (small_chunks(), 5 * MIB + 77);
    let source = surrounded(len);
    for routine in copy_routines().iter().filter(|routine| routine.is_available()) {
        let mut bytes = vec![0; len];
        let copy =
            CopyOptions::new().routine(routine).profile(&profile).threads(Threads::Exactly(2));
        copy.run(&mut bytes, &source).unwrap();
        assert!(bytes == source, "{}", routine.name());
    }
}

#[test]
fn copy_by_no_thread_writes_nothing_and_cancelled_says_how_far_it_came() {
    let source = surrounded(MIB);
    let mut bytes = vec![0; MIB];
    let none = CopyOptions::new().threads(Threads::Exactly(0)).run(&mut bytes, &source);
    assert_eq!(none, Err(CopyError::Job(JobError::NoThreads)));
    assert!(bytes.iter().all(|&byte| byte == 0));
    let (profile, cancel) = (small_chunks(), Cancel::new());
    let progress = |done, _| {
        if done >= MIB / 2 {
            cancel.cancel();
        }
    };
    let copy = CopyOptions::new().profile(&profile).cancel(&cancel).progress(&progress);
    let Err(CopyError::Job(JobError::Cancelled { done })) = copy.run(&mut bytes, &source) else {
        panic!("it was cancelled");
    };
    let done = done.bytes();
    assert!((MIB / 2..MIB).contains(&done));
    assert!(bytes[..done] == source[..done] && bytes[done..].iter().all(|&byte| byte == 0));
}

#[test]
fn clear_by_every_routine_goes_in_chunks() {
    let profile = small_chunks();
    for routine in clear_routines().iter().filter(|r| r.is_available()) {
        let mut bytes = surrounded(300_001);
        let clear =
            ClearOptions::new().profile(&profile).threads(Threads::Exactly(2)).routine(routine);
        clear.run(&mut bytes[777..]).unwrap();
        assert!(bytes[777..].iter().all(|&byte| byte == 0), "{}", routine.name());
        assert_eq!(bytes[..777], surrounded(777));
    }
}

#[test]
fn clear_by_no_thread_or_with_bad_hints_writes_nothing() {
    let mut bytes = surrounded(10_000);
    let none = ClearOptions::new().threads(Threads::Exactly(0)).run(&mut bytes);
    assert_eq!(none, Err(ClearError::Job(JobError::NoThreads)));
    let outside = ClearOptions::new().threads(Threads::Exactly(2)).target(10_000).run(&mut bytes);
    assert!(matches!(outside, Err(ClearError::Hint(_))));
    assert_eq!(bytes, surrounded(10_000));
}

#[test]
fn clear_that_is_watched_tells_of_its_progress_and_is_cancelled_by_it() {
    let (profile, cancel, told) = (small_chunks(), Cancel::new(), Mutex::new(Vec::new()));
    let progress = |done, total| {
        told.lock().unwrap().push((done, total));
        if done * 2 > total {
            cancel.cancel();
        }
    };
    let mut bytes = surrounded(MIB);
    let clear = ClearOptions::new().profile(&profile).threads(Threads::Exactly(2));
    let cancelled = clear.progress(&progress).cancel(&cancel).run(&mut bytes);
    let Err(ClearError::Job(JobError::Cancelled { done })) = cancelled else {
        panic!("{cancelled:?}");
    };
    assert!(done.bytes() * 2 > MIB && done.bytes() < MIB);
    assert!(done.ranges().iter().all(|range| bytes[range.clone()].iter().all(|&byte| byte == 0)));
    assert!(done.left().all(|range| bytes[range.clone()] == surrounded(MIB)[range]));
    assert_eq!(told.lock().unwrap().last(), Some(&(done.bytes(), MIB)));
}

/// What is kept in the cache is the caller's to clear, and comes last: a job that is cancelled has not done it.
#[test]
fn clear_that_is_cancelled_has_not_cleared_what_is_near_its_target() {
    let (profile, cancel) = (small_chunks(), Cancel::new());
    let progress = |done, _| {
        if done > MIB / 2 {
            cancel.cancel();
        }
    };
    let mut bytes = surrounded(MIB);
    let clear = ClearOptions::new().profile(&profile).target(10_000).progress(&progress);
    let cancelled = clear.threads(Threads::Exactly(2)).cancel(&cancel).run(&mut bytes);
    let Err(ClearError::Job(JobError::Cancelled { done })) = cancelled else {
        panic!("{cancelled:?}");
    };
    assert!(done.left().any(|range| range.contains(&10_000)));
    assert!(done.ranges().iter().all(|range| bytes[range.clone()].iter().all(|&byte| byte == 0)));
    assert!(done.left().all(|range| bytes[range.clone()] == surrounded(MIB)[range]));
}

/// A private anonymous mapping of the test's own.
struct TestMapping {
    start: *mut u8,
    len: usize,
}

impl TestMapping {
    fn new(len: usize, prot: ProtFlags) -> Self {
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, prot, MapFlags::PRIVATE) };
        Self { start: start.unwrap().cast(), len }
    }

    fn writable(len: usize) -> Self {
        Self::new(len, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn on_hugetlb(len: usize) -> Option<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `new`.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, prot, flags) };
        start.ok().map(|start| Self { start: start.cast(), len })
    }

    fn page(&self, index: usize) -> *mut u8 {
        self.start.wrapping_add(index * page_size())
    }

    /// How many of its pages are in memory.
    fn resident(&self) -> usize {
        let mut pages = vec![0_u8; self.len / page_size()];
        // SAFETY: the kernel writes one byte for each page of the mapping.
        let answer = unsafe { libc::mincore(self.start.cast(), self.len, pages.as_mut_ptr()) };
        assert_eq!(answer, 0);
        pages.iter().filter(|&&page| page & 1 == 1).count()
    }
}

impl Drop for TestMapping {
    fn drop(&mut self) {
        // SAFETY: the test's own mapping, of which nothing is borrowed any more. Holes are no error.
        unsafe { munmap(self.start.cast(), self.len) }.unwrap();
    }
}

const THREADS: [Threads; 3] = [Threads::One, Threads::Auto, Threads::Exactly(2)];

#[test]
fn populate_of_pages_brings_them_all_and_keeps_their_bytes() {
    let profile = small_chunks();
    for threads in THREADS {
        let mapping = TestMapping::writable(64 * page_size());
        // SAFETY: within the mapping, which nothing else uses.
        unsafe { mapping.page(3).write(7) };
        let populate = PopulateOptions::new().profile(&profile).threads(threads);
        let report = populate.run_range(addresses(mapping.start, mapping.len)).unwrap();
        assert_eq!((report.bytes, mapping.resident()), (mapping.len, 64));
        // SAFETY: page 3 lies within the mapping, which nothing else uses.
        assert_eq!(unsafe { mapping.page(3).read() }, 7);
    }
}

#[test]
fn populate_of_an_uneven_range_brings_exactly_its_pages() {
    let (profile, page) = (small_chunks(), page_size());
    for threads in THREADS {
        let mapping = TestMapping::writable(64 * page);
        let start = mapping.page(5).wrapping_add(page - 1);
        let populate = PopulateOptions::new().profile(&profile).threads(threads);
        populate.run_range(addresses(start, 40 * page + 2)).unwrap();
        assert_eq!(mapping.resident(), 42);
    }
}

#[test]
fn populate_of_a_slice_or_of_nothing_works() {
    let mut memory = Box::<[u8]>::new_uninit_slice(3 * MIB + 5);
    assert_eq!(PopulateOptions::new().run(&mut memory).unwrap().bytes, 3 * MIB + 5);
    let nothing: &mut [MaybeUninit<u8>] = &mut [];
    assert_eq!(PopulateOptions::new().run(nothing).unwrap().bytes, 0);
}

/// Bytes that were told after each chunk.
fn told(populate: &PopulateOptions<'_>, mapping: &TestMapping) -> Vec<usize> {
    let (profile, told) = (small_chunks(), Mutex::new(Vec::new()));
    let progress = |done, _| told.lock().unwrap().push(done);
    let populate = populate.clone().profile(&profile).threads(Threads::Exactly(2));
    let range = addresses(mapping.start, mapping.len);
    populate.progress(&progress).run_range(range).unwrap();
    told.into_inner().unwrap()
}

/// The kernel clears a page on one thread, and all others that touch it wait.
#[test]
fn populate_by_threads_shares_no_page() {
    let mapping = TestMapping::writable(64 * page_size());
    assert!(told(&PopulateOptions::new(), &mapping).len() > 3);
    let populate = PopulateOptions::new().page_size(mapping.len / 2);
    // The mapping may begin within such a page.
    assert!(told(&populate, &mapping).len() <= 3);
}

/// Here are no huge pages, or a kernel does not say where they are: then there is nothing to test.
#[test]
fn populate_by_threads_finds_the_size_of_huge_pages() {
    let Some(mapping) = TestMapping::on_hugetlb(8 * MIB) else { return };
    let Ok(page) = hugekit_sys::mapped_page::page_size_at(mapping.start) else { return };
    assert!(page > page_size());
    let told = told(&PopulateOptions::new(), &mapping);
    assert_eq!(told.len(), mapping.len / page, "{told:?}");
    assert!(told.iter().all(|done| done % page == 0), "{told:?}");
}

fn populate_error(start: *mut u8, len: usize, threads: Threads) -> (PopulateError, usize) {
    let profile = small_chunks();
    match PopulateOptions::new().profile(&profile).threads(threads).run_range(addresses(start, len))
    {
        Err(JobError::Chunk { error, done, range }) => {
            assert!(done.bytes() + range.len() <= len);
            (error, done.bytes())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn populate_of_memory_not_to_be_written_is_an_error() {
    for threads in THREADS {
        for prot in [ProtFlags::READ, ProtFlags::empty()] {
            let mapping = TestMapping::new(32 * page_size(), prot);
            let (error, bytes) = populate_error(mapping.start, mapping.len, threads);
            assert_eq!((error, bytes), (PopulateError::NotWritable, 0));
        }
    }
}

#[test]
fn populate_around_a_page_not_to_be_written_finds_it() {
    for threads in THREADS {
        let mapping = TestMapping::writable(64 * page_size());
        // SAFETY: a page of the test's own mapping, which nothing borrows.
        unsafe { mprotect(mapping.page(41).cast(), page_size(), MprotectFlags::READ) }.unwrap();
        let (error, bytes) = populate_error(mapping.start, mapping.len, threads);
        assert_eq!(error, PopulateError::NotWritable);
        assert!(bytes < mapping.len);
    }
}

#[test]
fn populate_of_a_hole_is_an_error() {
    for threads in THREADS {
        let mapping = TestMapping::writable(64 * page_size());
        // SAFETY: a page of the test's own mapping, which nothing borrows.
        unsafe { munmap(mapping.page(41).cast(), page_size()) }.unwrap();
        let (error, _) = populate_error(mapping.start, mapping.len, threads);
        assert_eq!(error, PopulateError::NotMapped);
    }
    let (error, _) = populate_error(ptr::without_provenance_mut(page_size()), 100, Threads::One);
    assert_eq!(error, PopulateError::NotMapped);
}

#[test]
fn populate_beyond_the_end_of_a_file_is_an_error() {
    let (file, page) = (tempfile::tempfile().unwrap(), page_size());
    file.set_len(page as u64).unwrap();
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of the test's own file.
    let start = unsafe {
        rustix::mm::mmap(ptr::null_mut(), 8 * page, prot, MapFlags::SHARED, &file, 0).unwrap()
    };
    let mapping = TestMapping { start: start.cast(), len: 8 * page };
    let (error, _) = populate_error(mapping.start, mapping.len, Threads::One);
    assert_eq!(error, PopulateError::NothingBehind);
}

#[test]
fn populate_by_no_thread_is_an_error() {
    let mut memory = Box::<[u8]>::new_uninit_slice(100);
    let none = PopulateOptions::new().threads(Threads::Exactly(0)).run(&mut memory);
    assert_eq!(none, Err(JobError::NoThreads));
}

fn clears_in_parallel() -> bool {
    let profile = small_chunks();
    let mut bytes = surrounded(MIB + 3);
    let report = ClearOptions::new().profile(&profile).threads(Threads::Exactly(2)).run(&mut bytes);
    report.is_ok_and(|report| report.unpinned == 0) && bytes.iter().all(|&byte| byte == 0)
}

#[test]
fn job_in_a_child_and_in_its_child_starts_new_workers() {
    assert!(clears_in_parallel());
    for _ in 0..10 {
        let code = in_a_child(|| {
            if !clears_in_parallel() {
                return 1;
            }
            in_a_child(|| if clears_in_parallel() { 0 } else { 2 })
        });
        assert_eq!(code, 0);
    }
    assert!(clears_in_parallel());
}

/// Cancels when it is dropped.
struct CancelledAtEnd<'a>(&'a Cancel);

impl Drop for CancelledAtEnd<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Forks while other threads of the parent hold the lock of the workers as often as they can.
#[test]
fn job_in_a_child_born_in_the_middle_of_jobs_starts_new_workers() {
    let done = Cancel::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.is_cancelled() {
                assert!(clears_in_parallel());
            }
        });
        // Also behind a panic: the scope waits for the jobs.
        let _done = CancelledAtEnd(&done);
        for _ in 0..20 {
            assert_eq!(in_a_child(|| if clears_in_parallel() { 0 } else { 1 }), 0);
        }
    });
}

/// A child that comes back from the chunk in which it was born has no helpers: it must not wait for
/// them.
#[test]
fn job_in_a_child_forked_within_a_chunk_is_an_error() {
    let (main, parent) = (std::thread::current().id(), std::process::id());
    let job = Job::new(64).threads(Threads::Exactly(2));
    let child = Mutex::new(None);
    let ended = job.run(|_| {
        let mut child = child.lock().unwrap();
        if std::thread::current().id() == main && child.is_none() {
            // SAFETY: the child leaves by `_exit` below.
            *child = Some(unsafe { libc::fork() });
        }
        Ok::<(), Infallible>(())
    });
    if std::process::id() != parent {
        let code = if ended == Err(JobError::Forked) { 0 } else { 1 };
        // SAFETY: it has no precondition.
        unsafe { libc::_exit(code) };
    }
    let Some(pid) = child.into_inner().unwrap() else { return };
    let mut status = 0;
    // SAFETY: one status is written.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) {
        assert_eq!(status, 0, "{ended:?}");
    }
}

fn addresses(start: *mut u8, len: usize) -> std::ops::Range<usize> {
    let start = start.expose_provenance();
    start..start.wrapping_add(len)
}
