//! Memory of a pool shows no earlier owner's bytes, whatever this process, another one or the kernel by itself does
//! to the addresses or to the file: each attack comes first, and then every byte is read.
#![allow(unsafe_code)]

use hugekit_testing::alias;
use hugekit_testing::aligned;
use hugekit_testing::backings;
use hugekit_testing::child;
use hugekit_testing::permitted;
use hugekit_testing::racing::Stops;
use hugekit_testing::served;
use hugekit_testing::settings;
use hugekit_testing::swap;
use hugekit_testing::uring;

use std::fs::File;
use std::io::{IoSliceMut, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::slice_from_raw_parts_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use alias::alias_of;
use aligned::aligned;
use backings::{Check, is_zero, trials_on, unless_lacking, usual};
use child::in_a_child;
use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::{HUGE_PAGE_BYTES as HUGE, Pool, Region, snapshot};
use libtest_mimic::{Arguments, Trial};
use rustix::param::page_size;
use served::{at_fault, soiled};
use settings::Setting;
use swap::Swap;
use uring::Ring;

const LEN: usize = 4 * HUGE;

/// Calls `attack` with a region over all of a dirty pool, which no thread has touched yet, for every way to serve it.
fn each(backing: Backing, attack: impl Fn(&mut Region)) {
    for fault_mode in permitted::fault_modes() {
        let (_pool, mut region) = untouched(backing, fault_mode);
        attack(&mut region);
        assert!(is_zero(&region), "{fault_mode:?}: bytes of an earlier owner");
    }
}

fn untouched(backing: Backing, fault_mode: FaultMode) -> (Pool, Region) {
    let pool = soiled(backing, LEN / backing.page_size());
    let region = untouched_of(&pool, fault_mode);
    (pool, region)
}

/// A region over all of a dirty pool.
fn untouched_of(pool: &Pool, fault_mode: FaultMode) -> Region {
    aligned(LEN, || at_fault(pool, LEN, fault_mode), |region| region.as_ptr().addr())
}

/// Advises all of a region: whether the kernel took the advice.
fn advise(region: &[u8], advice: i32) -> bool {
    let start = region.as_ptr().cast_mut().cast();
    // SAFETY: none of the advices of these tests changes what the memory holds, which is what they test.
    unsafe { libc::madvise(start, region.len(), advice) == 0 }
}

/// Advises another process's memory: what `process_madvise`(2) returned.
fn advise_other(process: u32, start: usize, len: usize, advice: i32) -> isize {
    let base = std::ptr::without_provenance_mut(start);
    let piece = libc::iovec { iov_base: base, iov_len: len };
    // SAFETY: reads one `iovec`; the memory advised is another process's.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_open, process, 0) {
            pid if pid < 0 => -1,
            pid => {
                let pieces = &raw const piece;
                libc::syscall(libc::SYS_process_madvise, pid, pieces, 1, advice, 0) as isize
            }
        }
    }
}

/// Where this process asks for huge pages, all at once and one by one.
fn collapse_by_this_process_shows_nothing_stale(backing: Backing) {
    each(backing, |region| {
        advise(region, libc::MADV_COLLAPSE);
        for piece in region.chunks(HUGE) {
            advise(piece, libc::MADV_COLLAPSE);
        }
    });
}

/// The same by the library's own function.
fn collapse_by_the_library_shows_nothing_stale(backing: Backing) {
    each(backing, |region| {
        // SAFETY: a region of a pool.
        let collapsed = unsafe { snapshot::collapse(&raw const region[..]) };
        assert_eq!((collapsed.huge, collapsed.fragmented), (0, LEN));
    });
}

/// The same from another process.
fn collapse_by_another_process_shows_nothing_stale(backing: Backing) {
    each(backing, |region| {
        let (me, start, len) = (std::process::id(), region.as_ptr().addr(), region.len());
        in_a_child(|| {
            advise_other(me, start, len, libc::MADV_COLLAPSE);
            0
        });
    });
}

/// What was released is the region's own, and reads as zeroes all the same.
fn collapse_after_a_release_shows_nothing_stale(backing: Backing) {
    each(backing, |region| {
        region.fill(7);
        advise(region, libc::MADV_COLLAPSE);
        region.release(0..LEN).unwrap();
        advise(region, libc::MADV_COLLAPSE);
    });
}

/// What is shared with a fork stays its own, too: neither writes the other's page.
fn collapse_of_forks_shows_nothing_stale(backing: Backing) {
    for fault_mode in permitted::fault_modes() {
        let (_pool, mut region) = half_of_a_pool(backing, fault_mode);
        region.fill(1);
        let mut fork = region.fork_builder().fault_mode(fault_mode).build().unwrap();
        for _ in 0..2 {
            advise(&region, libc::MADV_COLLAPSE);
            advise(&fork, libc::MADV_COLLAPSE);
            region[5] = 2;
            fork[HUGE + 5] = 3;
        }
        let others = |bytes: &[u8], mine: usize, value: u8| {
            assert_eq!(bytes[mine], value);
            assert!(bytes.iter().enumerate().all(|(at, &byte)| at == mine || byte == 1));
        };
        others(&region, 5, 2);
        others(&fork, HUGE + 5, 3);
    }
}

fn half_of_a_pool(backing: Backing, fault_mode: FaultMode) -> (Pool, Region) {
    let pool = soiled(backing, LEN / backing.page_size());
    let region = at_fault(&pool, LEN / 2, fault_mode);
    (pool, region)
}

/// The readable mappings of this process.
fn mappings() -> impl Iterator<Item = (usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let lines: Vec<String> = maps.lines().map(str::to_owned).collect();
    lines.into_iter().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        rest.starts_with('r').then_some((number(start)?, number(end)?))
    })
}

/// The file's pages are put together below the region, by the mapping that only the pool has, and the tables of all
/// other mappings are taken away.
fn collapse_of_the_pools_own_mapping_shows_nothing_stale(backing: Backing) {
    each(backing, |region| {
        region[HUGE] = 1;
        region[HUGE] = 0;
        let alias =
            std::ptr::without_provenance_mut::<libc::c_void>(alias_of(region.as_ptr().addr(), LEN));
        // SAFETY: changes no byte.
        unsafe { libc::madvise(alias, LEN, libc::MADV_COLLAPSE) };
    });
}

/// Whatever advice brings pages in, takes them out or has them be treated differently.
fn advice_of_every_kind_shows_nothing_stale(backing: Backing) {
    const ADVICES: [i32; 13] = [
        libc::MADV_WILLNEED,
        libc::MADV_POPULATE_READ,
        libc::MADV_POPULATE_WRITE,
        libc::MADV_HUGEPAGE,
        libc::MADV_COLLAPSE,
        libc::MADV_NOHUGEPAGE,
        libc::MADV_MERGEABLE,
        libc::MADV_UNMERGEABLE,
        libc::MADV_COLD,
        libc::MADV_PAGEOUT,
        libc::MADV_RANDOM,
        libc::MADV_SEQUENTIAL,
        libc::MADV_DONTNEED,
    ];
    each(backing, |region| {
        for advice in ADVICES {
            advise(region, advice);
            // The first byte of the second huge page is looked at in between, so that some of it is mapped.
            assert_eq!(region[HUGE], 0, "advice {advice}");
        }
    });
}

/// Locked memory is populated by the kernel, page by page through the same faults.
fn mlock_of_a_region_shows_nothing_stale(backing: Backing) {
    each(backing, |region| {
        // SAFETY: locking changes no byte.
        unsafe {
            libc::mlock(region.as_ptr().cast(), LEN);
            libc::mlock2(region.as_ptr().cast(), LEN, libc::MLOCK_ONFAULT);
        }
        assert!(is_zero(&region[..HUGE]));
        region.release(0..HUGE).unwrap();
        // SAFETY: unlocking changes no byte.
        unsafe { libc::munlock(region.as_ptr().cast(), LEN) };
    });
}

/// What another process reads of ours, as a debugger does, is zeroes or nothing.
fn read_by_another_process_shows_nothing_stale(backing: Backing) {
    each(backing, |region| {
        let (me, start) = (std::process::id(), region.as_ptr().addr());
        let code = in_a_child(|| {
            let mut bytes = [0; 256];
            let memory = File::open(format!("/proc/{me}/mem"));
            if let Ok(memory) = memory {
                let _ = memory.read_at(&mut bytes, (start + 100) as u64);
            }
            let by_file = is_zero(&bytes);
            read_other(me, start + HUGE, &mut bytes);
            i32::from(!by_file || !is_zero(&bytes))
        });
        assert_eq!(code, 0, "another process has read an earlier owner's bytes");
    });
}

/// Another thread locks and unlocks all that the process has, which populates it, while regions come and go: none
/// shows what it should not, and each one's handler threads hear that it ends.
fn mlockall_meanwhile_shows_nothing_stale(backing: Backing) {
    for fault_mode in permitted::fault_modes() {
        let code = in_a_child(|| regions_come_and_go_while_locked(backing, fault_mode));
        assert_eq!(code, 0, "{fault_mode:?}");
    }
}

fn regions_come_and_go_while_locked(backing: Backing, fault_mode: FaultMode) -> i32 {
    let pool = soiled(backing, LEN / backing.page_size());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = Stops(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: locking changes no byte.
                unsafe {
                    libc::mlockall(libc::MCL_CURRENT);
                    libc::munlockall();
                }
            }
        });
        let clean = (0..60).all(|_| {
            let mut region = at_fault(&pool, LEN, fault_mode);
            let clean = region.iter().step_by(4096).all(|&byte| byte == 0);
            region.iter_mut().step_by(4096).for_each(|byte| *byte = 0xd1);
            clean
        });
        let clean = clean && (0..30).all(|_| a_fork_parts_at_a_write(&pool, fault_mode));
        i32::from(!clean)
    })
}

fn a_fork_parts_at_a_write(pool: &Pool, fault_mode: FaultMode) -> bool {
    let mut region = pool.region(LEN / 2).unwrap();
    let mut fork = region.fork_builder().fault_mode(fault_mode).build().unwrap();
    fork.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    let is_own = region.iter().step_by(4096).all(|&byte| byte == 0);
    region.iter_mut().step_by(4096).for_each(|byte| *byte = 2);
    is_own && fork.iter().step_by(4096).all(|&byte| byte == 1)
}

/// Another process reads all that this one has, the pages by which handler threads are told to end, too: they go on
/// serving, and still end.
fn read_of_all_memory_meanwhile_shows_nothing_stale(backing: Backing) {
    for fault_mode in permitted::fault_modes() {
        let code = in_a_child(|| {
            let (_pool, region) = untouched(backing, fault_mode);
            let (me, pages) = (std::process::id(), pages_of_small_mappings());
            in_a_child(|| {
                let mut bytes = [0; 8];
                pages.iter().for_each(|&page| read_other(me, page, &mut bytes));
                0
            });
            i32::from(!is_zero(&region))
        });
        assert_eq!(code, 0, "{fault_mode:?}");
    }
}

fn pages_of_small_mappings() -> Vec<usize> {
    let small = mappings().filter(|(start, end)| end - start <= HUGE);
    small.flat_map(|(start, end)| (start..end).step_by(4096)).collect()
}

/// Reads another process's memory, as far as it can be read.
fn read_other(process: u32, address: usize, bytes: &mut [u8]) {
    let base = std::ptr::without_provenance_mut(address);
    let from = libc::iovec { iov_base: base, iov_len: bytes.len() };
    let mut to = IoSliceMut::new(bytes);
    // SAFETY: an `IoSliceMut` is an `iovec`; as many bytes are written as it has.
    unsafe {
        let to = (&raw mut to).cast();
        libc::process_vm_readv(process as libc::pid_t, to, 1, &raw const from, 1, 0);
    }
}

const KHUGEPAGED: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged";

fn khugepaged(counter: &str) -> u64 {
    std::fs::read_to_string(Path::new(KHUGEPAGED).join(counter)).unwrap().trim().parse().unwrap()
}

/// The kernel's own thread, at full speed, with huge pages for all shared memory: it puts the file's pages together,
/// and maps nothing.
fn khugepaged_at_full_speed_shows_nothing_stale(backing: Backing) {
    let _alone = Setting::alone();
    let fault_modes = permitted::fault_modes();
    let pools: Vec<Pool> =
        fault_modes.iter().map(|_| soiled(backing, LEN / backing.page_size())).collect();
    let _settings = [
        ("/sys/kernel/mm/transparent_hugepage/shmem_enabled".to_owned(), "always"),
        // Where it was `never`, the thread starts now.
        ("/sys/kernel/mm/transparent_hugepage/enabled".to_owned(), "madvise"),
        (format!("{KHUGEPAGED}/scan_sleep_millisecs"), "0"),
        (format!("{KHUGEPAGED}/alloc_sleep_millisecs"), "0"),
        (format!("{KHUGEPAGED}/pages_to_scan"), "1000000"),
    ]
    .map(|(path, value)| Setting::change(Path::new(&path), value));
    let regions: Vec<Region> = pools
        .iter()
        .zip(fault_modes)
        .map(|(pool, fault_mode)| untouched_of(pool, fault_mode))
        .collect();
    for region in &regions {
        advise(region, libc::MADV_HUGEPAGE);
    }
    // It runs at nice 19: patience for a machine whose CPUs all have other work.
    let (scans, until) = (khugepaged("full_scans"), Instant::now() + Duration::from_secs(120));
    while khugepaged("full_scans") < scans + 4 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(khugepaged("full_scans") > scans, "khugepaged did not run");
    for region in &regions {
        assert!(is_zero(region), "bytes of an earlier owner");
    }
}

/// Waits until the kernel's thread has looked at all memory twice: equal pages are merged in the second scan.
fn await_scans_by_ksm() {
    let scans = || {
        let read = std::fs::read_to_string("/sys/kernel/mm/ksm/full_scans").unwrap();
        read.trim().parse::<u64>().unwrap()
    };
    let (before, began) = (scans(), Instant::now());
    while scans() < before + 3 {
        assert!(began.elapsed() < Duration::from_secs(120), "KSM does not scan");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The kernel's thread that merges equal pages of processes finds nothing of a pool to merge.
fn ksm_at_full_speed_shows_nothing_stale(backing: Backing) {
    let _alone = Setting::alone();
    let (_pool, mut region) = untouched(backing, FaultMode::InPlace);
    advise(&region, libc::MADV_MERGEABLE);
    // The kernel scans only processes that have private memory to merge.
    let buffer = vec![7_u8; 1 << 20];
    let whole_pages = &buffer[buffer.as_ptr().align_offset(page_size())..];
    assert!(advise(whole_pages, libc::MADV_MERGEABLE));
    let _settings = [("pages_to_scan", "10000"), ("sleep_millisecs", "0"), ("run", "1")]
        .map(|(name, value)| Setting::change(&Path::new("/sys/kernel/mm/ksm").join(name), value));
    await_scans_by_ksm();
    assert!(is_zero(&region));
    region.fill(9);
    await_scans_by_ksm();
    assert!(region.iter().all(|&byte| byte == 9));
}

/// Dirty memory, clean memory and forks, all of it swapped out before it is looked at.
fn swap_of_a_region_shows_nothing_stale(backing: Backing) {
    let _alone = Setting::alone();
    let swap = Swap::new().unwrap();
    each(backing, |region| {
        let alias =
            std::ptr::without_provenance_mut::<libc::c_void>(alias_of(region.as_ptr().addr(), LEN));
        // SAFETY: changes no byte.
        unsafe { libc::madvise(alias, LEN, libc::MADV_PAGEOUT) };
        assert!(swap.used() > 0, "nothing was swapped out");
    });
    let (_pool, mut region) = half_of_a_pool(backing, FaultMode::InPlace);
    region.fill(1);
    let mut fork = region.fork().unwrap();
    for round in 2..4 {
        advise(&region, libc::MADV_PAGEOUT);
        advise(&fork, libc::MADV_PAGEOUT);
        fork[round] = 9;
        region[HUGE + round] = 8;
        assert_eq!((region[round], fork[HUGE + round]), (1, 1));
    }
    assert_eq!(region.iter().filter(|&&byte| byte != 1).count(), 2);
    assert_eq!(fork.iter().filter(|&&byte| byte != 1).count(), 2);
}

const CHECKS: &[Check] = hugekit_testing::checks![
    collapse_by_this_process_shows_nothing_stale,
    collapse_by_the_library_shows_nothing_stale,
    collapse_by_another_process_shows_nothing_stale,
    collapse_after_a_release_shows_nothing_stale,
    collapse_of_forks_shows_nothing_stale,
    collapse_of_the_pools_own_mapping_shows_nothing_stale,
    advice_of_every_kind_shows_nothing_stale,
    mlock_of_a_region_shows_nothing_stale,
    mlockall_meanwhile_shows_nothing_stale,
    read_of_all_memory_meanwhile_shows_nothing_stale,
    read_by_another_process_shows_nothing_stale,
];

/// What `io_uring` holds of a region that was retired stays what it was: the next owner is not heard in it. Of one
/// that is cleared at the fault it holds zeroes, or the kernel refuses to hold it.
fn io_uring_that_holds_pages_shows_nothing_of_the_next_owner(backing: Backing) {
    for fault_mode in permitted::fault_modes() {
        let (pool, mut region) = untouched(backing, fault_mode);
        let start = region.as_mut_ptr();
        let (ring, early) = (Ring::new().unwrap(), Ring::new().unwrap());
        let held = early.register(&[page(start.wrapping_add(HUGE))]);
        assert_eq!(held.is_err(), fault_mode == FaultMode::InPlace, "{held:?}");
        if held.is_ok() {
            assert!(is_zero(&written_by(early, start.wrapping_add(HUGE))));
        }
        region[..4096].fill(7);
        ring.register(&[page(start)]).unwrap();
        region.retire().unwrap();
        pool.region(LEN).unwrap().fill(9);
        assert!(written_by(ring, start).iter().all(|&byte| byte == 7));
    }
}

fn page(start: *mut u8) -> *mut [u8] {
    slice_from_raw_parts_mut(start, 4096)
}

/// What a ring writes of the page at an address that it holds.
fn written_by(mut ring: Ring, start: *const u8) -> Vec<u8> {
    let (mut read, write) = std::io::pipe().unwrap();
    let mut bytes = vec![1; 4096];
    assert_eq!(ring.write_fixed(write.as_fd(), 0, start, 4096), 4096);
    read.read_exact(&mut bytes).unwrap();
    bytes
}

/// What needs `io_uring`, which may be forbidden.
const BY_RING: &[Check] =
    hugekit_testing::checks![io_uring_that_holds_pages_shows_nothing_of_the_next_owner,];

fn by_ring(trial: Trial) -> Trial {
    let lacking = Ring::new().err().map(|error| format!("no io_uring: {error}"));
    unless_lacking(trial, lacking.as_deref())
}

/// What changes settings of the whole machine for a moment, one after the other.
const BY_ROOT: &[Check] = hugekit_testing::checks![
    "[nightly: the kernel's thread has the lowest priority] " khugepaged_at_full_speed_shows_nothing_stale,
    ksm_at_full_speed_shows_nothing_stale,
];

const BY_SWAP: &[Check] = hugekit_testing::checks![swap_of_a_region_shows_nothing_stale];

fn by_root(trial: Trial) -> Trial {
    let settings = [KHUGEPAGED, "/sys/kernel/mm/ksm"].map(Path::new);
    if rustix::process::geteuid().is_root() && settings.iter().all(|settings| settings.exists()) {
        return trial;
    }
    unless_lacking(trial, Some("only root changes the settings of the kernel"))
}

fn main() {
    let mut trials = Vec::new();
    let no_swap = Swap::new().err().map(|error| format!("no swap file in /var/tmp: {error}"));
    for backing in usual() {
        let folios = LEN / backing.page_size();
        trials.extend(trials_on(backing, folios, CHECKS));
        trials.extend(trials_on(backing, folios, BY_RING).into_iter().map(by_ring));
    }
    for backing in usual().filter(|backing| !backing.is_reserved()) {
        let folios = LEN / backing.page_size();
        trials.extend(trials_on(backing, folios, BY_ROOT).into_iter().map(by_root));
        let by_swap = |trial| unless_lacking(by_root(trial), no_swap.as_deref());
        trials.extend(trials_on(backing, folios, BY_SWAP).into_iter().map(by_swap));
    }
    libtest_mimic::run(&Arguments::from_args(), permitted::or_skipped(trials)).exit();
}
