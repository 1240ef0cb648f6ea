//! What becomes of SIGBUS and other signals while regions are served in place, and what a process hears
//! that may not serve faults. A handler belongs to a whole process, so every case runs in one of its own:
//! this program, started again with the case's name.
#![allow(unsafe_code)]

mod served;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{c_int, c_void};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::thread;

use hugekit::fault::FaultMode;
use hugekit::machine::userfaultfd::Obstacle;
use hugekit::parallel::JobError;
use hugekit::pool::{Backing, Clearing, FaultError};
use hugekit::{Pool, PoolError, PopulateError, Region, RegionError, Snapshot, SnapshotError};
use libtest_mimic::{Arguments, Failed, Trial};
use served::{at_fault, soiled};

/// Names the case that this process is.
const CASE: &str = "HUGEKIT_SIGNAL_CASE";

/// A case, and the signal that ends its process if one does.
type Case = (&'static str, fn(), Option<c_int>);

/// Aborts when anything is allocated on an alternate signal stack: threads of Rust have one, and the
/// handler runs there.
struct NotInHandlers;

// SAFETY: the system's allocator, as it is.
unsafe impl GlobalAlloc for NotInHandlers {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        abort_on_signal_stack();
        // SAFETY: the caller's to promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        abort_on_signal_stack();
        // SAFETY: the caller's to promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: NotInHandlers = NotInHandlers;

fn abort_on_signal_stack() {
    if signal_stack().ss_flags & libc::SS_ONSTACK != 0 {
        std::process::abort();
    }
}

fn signal_stack() -> libc::stack_t {
    // SAFETY: one structure is written; zeroed, it is a valid one.
    unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(ptr::null(), &raw mut stack);
        stack
    }
}

const PAGE: usize = 4096;
const FOLIOS: usize = 128;
const WIDTH: usize = FOLIOS * PAGE;

fn pool() -> Pool {
    soiled(Backing::Base, FOLIOS)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

fn in_place(pool: &Pool) -> Region {
    at_fault(pool, pool.capacity(), FaultMode::InPlace)
}

/// Touches something that was not touched before.
fn still_serves(region: &mut Region) {
    region.release(0..region.len()).unwrap();
    assert!(is_zero(region));
    region.fill(3);
}

static CALLS: AtomicUsize = AtomicUsize::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
static ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// A handler of the program's own: counts, and puts a page where there was none.
extern "C" fn counts(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    CALLS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: what the kernel gave us.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr()) };
    CODE.store(code, Ordering::SeqCst);
    if code == libc::BUS_ADRERR {
        ADDRESS.store(address, Ordering::SeqCst);
        let (prot, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
        );
        let page = address.map_addr(|address| address & !(PAGE - 1));
        // SAFETY: replaces the test's own page beyond the end of a file.
        unsafe { libc::mmap(page, PAGE, prot, flags, -1, 0) };
    }
}

extern "C" fn counts_plainly(_: c_int) {
    CALLS.fetch_add(1, Ordering::SeqCst);
}

fn install(handler: usize, flags: c_int) {
    // SAFETY: the handlers above are async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()), 0);
    }
}

fn install_counting() {
    install(counts as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK);
}

fn send() {
    // SAFETY: what the signal does is the subject of the test.
    unsafe { libc::raise(libc::SIGBUS) };
}

/// An access beyond the end of a file: a SIGBUS of the kernel's that is not ours.
fn access_nothing() -> *mut c_void {
    // SAFETY: a new mapping of an empty file, accessed to be told that nothing is there.
    unsafe {
        let file = libc::memfd_create(c"empty".as_ptr(), 0);
        let at = libc::mmap(ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, file, 0);
        assert_ne!(at, libc::MAP_FAILED);
        let at = at.byte_add(123);
        at.cast::<u8>().read_volatile();
        at
    }
}

fn a_handler_with_information_is_called_once_for_each() {
    install_counting();
    let pool = pool();
    let mut region = in_place(&pool);
    still_serves(&mut region);
    assert_eq!(CALLS.load(Ordering::SeqCst), 0);
    send();
    assert_eq!((CALLS.load(Ordering::SeqCst), CODE.load(Ordering::SeqCst)), (1, libc::SI_TKILL));
    let at = access_nothing();
    assert_eq!((CALLS.load(Ordering::SeqCst), ADDRESS.load(Ordering::SeqCst)), (2, at));
    still_serves(&mut region);
    // Also when no region is left.
    drop(region);
    send();
    assert_eq!(CALLS.load(Ordering::SeqCst), 3);
}

fn a_plain_handler_is_called_once_for_each() {
    install(counts_plainly as *const () as usize, 0);
    let pool = pool();
    let mut region = in_place(&pool);
    for calls in 1..5 {
        send();
        assert_eq!(CALLS.load(Ordering::SeqCst), calls);
        still_serves(&mut region);
    }
}

fn a_handler_for_once_is_called_once_and_then_the_default_kills() {
    install(counts as *const () as usize, libc::SA_SIGINFO | libc::SA_RESETHAND);
    let _region = in_place(&pool());
    send();
    assert_eq!(CALLS.load(Ordering::SeqCst), 1);
    send();
}

fn what_is_ignored_stays_so() {
    install(libc::SIG_IGN, 0);
    let pool = pool();
    let mut region = in_place(&pool);
    send();
    still_serves(&mut region);
    access_nothing(); // No program can ignore that.
}

fn the_default_kills_who_is_sent_it() {
    install(libc::SIG_DFL, 0);
    let mut region = in_place(&pool());
    still_serves(&mut region);
    send();
}

fn the_default_kills_who_accesses_nothing() {
    install(libc::SIG_DFL, 0);
    let mut region = in_place(&pool());
    still_serves(&mut region);
    access_nothing();
}

fn rusts_own_handler_lets_it_die() {
    let mut region = in_place(&pool());
    still_serves(&mut region);
    access_nothing();
}

/// Memory of the test, and a snapshot of it that is handled in place.
fn snapshot() -> (*mut u8, Snapshot) {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, all of which is written.
    let memory = unsafe {
        let at = libc::mmap(ptr::null_mut(), SNAPSHOTTED, prot, flags, -1, 0).cast::<u8>();
        at.write_bytes(7, SNAPSHOTTED);
        at
    };
    let range = ptr::slice_from_raw_parts(memory, SNAPSHOTTED);
    // SAFETY: no thread blocks SIGBUS, and the memory stays, or what goes is the subject of the test.
    let snapshot =
        unsafe { Snapshot::builder().fault_mode(FaultMode::InPlace).of_anonymous(range) };
    (memory, snapshot.unwrap())
}

const SNAPSHOTTED: usize = 4 << 20;

/// Takes away what the snapshot has not read, and reads it.
fn is_lost(memory: *mut u8, snapshot: &Snapshot) -> bool {
    // SAFETY: the test's own mapping, which only the snapshot reads.
    assert_eq!(unsafe { libc::munmap(memory.cast(), SNAPSHOTTED) }, 0);
    let lost = snapshot.read_at(0, &mut vec![0; SNAPSHOTTED]);
    matches!(lost, Err(SnapshotError::Changed { .. }))
}

/// As [`counts`], of SIGSEGV: lets the access be carried out.
extern "C" fn counts_and_allows(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    CALLS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: what the kernel gave us; the page is the test's own.
    unsafe {
        let page = (*info).si_addr().map_addr(|address| address & !(PAGE - 1));
        libc::mprotect(page, PAGE, libc::PROT_READ);
    }
}

fn read_what_is_forbidden() {
    let (prot, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, accessed to be told that it may not be.
    unsafe {
        let at = libc::mmap(ptr::null_mut(), PAGE, prot, flags, -1, 0);
        assert_eq!(at.cast::<u8>().read_volatile(), 0);
    }
}

fn a_segfault_of_the_programs_own_goes_to_its_handler() {
    // SAFETY: the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = counts_and_allows as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()), 0);
    }
    let (memory, snapshot) = snapshot();
    assert!(is_lost(memory, &snapshot));
    assert_eq!(CALLS.load(Ordering::SeqCst), 0);
    for calls in 1..3 {
        read_what_is_forbidden();
        assert_eq!(CALLS.load(Ordering::SeqCst), calls);
    }
}

fn a_segfault_of_the_programs_own_kills_it() {
    let (memory, snapshot) = snapshot();
    assert!(is_lost(memory, &snapshot));
    read_what_is_forbidden();
}

/// Nothing is loaded then that may not be there.
fn who_does_not_take_a_segfault_is_answered_all_the_same() {
    let (memory, blocked) = snapshot();
    // SAFETY: one set is read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGSEGV);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
        assert!(is_lost(memory, &blocked));
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut());
    }
    let (memory, replaced) = snapshot();
    // SAFETY: no handler is needed.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    assert!(is_lost(memory, &replaced));
}

fn whoever_replaces_ours_is_noticed_and_never_called_by_us() {
    let pool = pool();
    let mut region = in_place(&pool);
    still_serves(&mut region);
    drop(region);
    install_counting();
    let build = || {
        pool.region_builder(PAGE).clearing(Clearing::OnFault).fault_mode(FaultMode::InPlace).build()
    };
    let error = build().unwrap_err();
    assert!(matches!(error, PoolError::Fault(FaultError::HandlerReplaced)), "{error}");
    assert!(error.remedy().is_some());
    let stats = pool.stats().unwrap();
    assert_eq!((stats.in_use, CALLS.load(Ordering::SeqCst)), (0, 0));
    // Threaded, and at allocation, all is as it was.
    drop(at_fault(&pool, PAGE, FaultMode::Threaded { threads: 1 }));
    assert!(is_zero(&pool.region(PAGE).unwrap()));
    // The other handler has gone, and no handler can call us in a circle.
    install(libc::SIG_DFL, 0);
    let mut region = build().unwrap();
    still_serves(&mut region);
}

fn what_is_taken_back_serves_and_passes_on_to_whoever_was_there_first() {
    // Not installed yet: there is nothing to take back.
    hugekit::fault::take_back_sigbus().unwrap();
    let pool = pool();
    let mut region = in_place(&pool);
    still_serves(&mut region);
    install_counting();
    hugekit::fault::take_back_sigbus().unwrap();
    hugekit::fault::take_back_sigbus().unwrap();
    still_serves(&mut region);
    drop(region);
    let mut another = in_place(&pool);
    still_serves(&mut another);
    assert_eq!(CALLS.load(Ordering::SeqCst), 0);
    access_nothing();
}

fn a_thread_that_blocks_it_is_refused() {
    let pool = pool();
    // SAFETY: sets are initialised before they are read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
    }
    let build =
        pool.region_builder(1).clearing(Clearing::OnFault).fault_mode(FaultMode::InPlace).build();
    assert!(matches!(build, Err(PoolError::Fault(FaultError::Blocked))));
    let threaded = at_fault(&pool, 1, FaultMode::Threaded { threads: 1 });
    assert_eq!(threaded[0], 0);
}

/// Blocked where it is needed, the kernel ends the process: documented, and seen to.
fn a_fault_where_it_is_blocked_kills() {
    let region = in_place(&pool());
    // SAFETY: as above.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
    }
    assert_eq!(std::hint::black_box(&region)[0], 0);
}

/// As the kernel tells of memory that has failed.
fn report_broken(address: *const u8, code: c_int) {
    // SAFETY: a process may send itself any information.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        info.si_signo = libc::SIGBUS;
        info.si_code = code;
        (&raw mut info).cast::<u8>().add(16).cast::<*const u8>().write(address);
        let (process, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        let sent = libc::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            process,
            thread,
            libc::SIGBUS,
            &raw const info,
        );
        assert_eq!(sent, 0);
    }
}

fn broken_memory_is_passed_on_and_never_handed_out_again() {
    install_counting();
    let pool = pool();
    let region = in_place(&pool);
    let granule = 64 << 10;
    for (calls, code) in [(1, libc::BUS_MCEERR_AR), (2, libc::BUS_MCEERR_AO)] {
        report_broken(&raw const region.as_slice()[granule + 5], code);
        assert_eq!((CALLS.load(Ordering::SeqCst), CODE.load(Ordering::SeqCst)), (calls, code));
    }
    let error = region.prepare_write(0..2 * granule).unwrap_err();
    let poisoned = |error: &RegionError| {
        matches!(
            error,
            RegionError::Populate(JobError::Chunk { error: PopulateError::Poisoned, .. })
        )
    };
    assert!(poisoned(&error), "{error}");
    assert!(is_zero(&region[..granule]) && is_zero(&region[2 * granule..]));
    drop(region);
    let (stats, broken) = (pool.stats().unwrap(), granule / PAGE);
    assert_eq!(stats.in_use, broken);
    assert_eq!(stats.dirty, FOLIOS - broken);
    let rest = pool.region((FOLIOS - 2 * broken) * PAGE).unwrap();
    assert!(is_zero(&rest));
}

static TOUCHED_BY_SIGNAL: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static TOUCHES: AtomicUsize = AtomicUsize::new(0);

/// Another signal's handler, whose thread may be anywhere: touches all of a region.
extern "C" fn touches(_: c_int) {
    let at = TOUCHED_BY_SIGNAL.load(Ordering::SeqCst);
    for offset in (0..WIDTH).step_by(PAGE) {
        // SAFETY: the region outlives the signals; volatile, because others access it as well.
        unsafe {
            let word = at.add(offset).cast::<u64>();
            assert!(word.read_volatile() <= 1);
            word.write_volatile(1);
        }
    }
    TOUCHES.fetch_add(1, Ordering::SeqCst);
}

/// Threads that touch, release and make ready are interrupted by handlers that touch the same memory:
/// no thread waits for itself, nor two for each other.
fn faults_in_handlers_of_other_signals(fault_mode: FaultMode) {
    let pool = pool();
    let region = at_fault(&pool, WIDTH, fault_mode).share();
    TOUCHED_BY_SIGNAL.store(region.as_ptr(), Ordering::SeqCst);
    // SAFETY: `touches` allocates nothing and locks nothing.
    unsafe { libc::signal(libc::SIGUSR1, touches as *const () as usize) };
    let stop = AtomicBool::new(false);
    let targets = [const { AtomicI32::new(0) }; 3];
    thread::scope(|scope| {
        for (work, target) in targets.iter().enumerate() {
            let (region, stop) = (region.clone(), &stop);
            scope.spawn(move || {
                // SAFETY: no precondition.
                target.store(unsafe { libc::gettid() }, Ordering::SeqCst);
                while !stop.load(Ordering::Relaxed) {
                    let words = region.words();
                    match work {
                        0 => assert!(words.iter().all(|word| word.load(Ordering::Relaxed) <= 1)),
                        1 => region.release(0..WIDTH).unwrap(),
                        _ => region.prepare_write(0..WIDTH).unwrap(),
                    }
                }
            });
        }
        while targets.iter().any(|target| target.load(Ordering::SeqCst) == 0) {
            thread::yield_now();
        }
        for round in 0..300 {
            // SAFETY: a signal to a thread of this process, or to none.
            unsafe {
                let thread = targets[round % 3].load(Ordering::SeqCst);
                libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1);
            }
            thread::yield_now();
        }
        while TOUCHES.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn faults_in_handlers_in_place() {
    faults_in_handlers_of_other_signals(FaultMode::InPlace);
}

fn faults_in_handlers_threaded() {
    faults_in_handlers_of_other_signals(FaultMode::Threaded { threads: 1 });
}

/// A handler that was there before us touches a region while it has one of our signals in hand.
fn a_fault_inside_a_fault() {
    extern "C" fn nested(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
        CALLS.fetch_add(1, Ordering::SeqCst);
        touches(0);
    }
    install(nested as *const () as usize, libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK);
    let pool = pool();
    let mut region = in_place(&pool);
    TOUCHED_BY_SIGNAL.store(region.as_mut_ptr(), Ordering::SeqCst);
    send();
    assert_eq!((CALLS.load(Ordering::SeqCst), TOUCHES.load(Ordering::SeqCst)), (1, 1));
    assert!(region.iter().step_by(PAGE).all(|&byte| byte == 1));
}

fn errno_is_kept() {
    let pool = pool();
    let mut region = in_place(&pool);
    for at in (0..region.len()).step_by(PAGE) {
        // SAFETY: the address of the calling thread's errno.
        unsafe {
            *libc::__errno_location() = 4242;
            region.as_mut_ptr().add(at).write_volatile(1);
            assert_eq!(*libc::__errno_location(), 4242);
        }
    }
}

/// What a fault takes of the signal stack beyond the frame that the kernel puts there for any signal.
fn the_handler_needs_less_than_two_kib_of_stack() {
    let pool = pool();
    let mut region = in_place(&pool);
    let used_by = stack_beyond_a_frame();
    for handled in [0, 1] {
        let ours = used_by(&mut || {
            region.release(0..WIDTH).unwrap();
            region[handled * PAGE] = 1;
        });
        assert!(0 < ours && ours < 2048, "{ours} bytes beyond the frame of an empty handler");
    }
}

/// The same, no allocation and `errno` as it was, for every kind of fault of a fork group: the last of them
/// copies all of a region.
fn faults_of_forks_keep_within_bounds() {
    let pool = Pool::builder(4 * WIDTH).backing(Backing::Base).scrub_threads(0).build().unwrap();
    let mut region = pool.region(WIDTH).unwrap();
    region.fill(1);
    let how = region.fork_builder().granule(PAGE).fault_mode(FaultMode::InPlace).max_vmas(4);
    let (mut first, mut second) = (how.build().unwrap(), how.build().unwrap());
    let used_by = stack_beyond_a_frame();
    let mut touch = |what: &str, touch: &mut dyn FnMut(&mut Region, &mut Region, &mut Region)| {
        let ours = used_by(&mut || {
            // SAFETY: the address of the calling thread's errno.
            unsafe { *libc::__errno_location() = 4242 };
            touch(&mut region, &mut first, &mut second);
            // SAFETY: as above.
            assert_eq!(unsafe { *libc::__errno_location() }, 4242);
        });
        assert!(0 < ours && ours < 2048, "{what}: {ours} bytes beyond an empty handler's frame");
    };
    touch("a read", &mut |_, first, second| assert_eq!(first[0] + second[0], 2));
    touch("a child's write", &mut |_, first, _| first[0] = 2);
    touch("a parent's write", &mut |region, _, _| region[PAGE] = 2);
    touch("a read of what was taken away", &mut |_, first, _| assert_eq!(first[PAGE], 1));
    touch("the same, shared with no other region", &mut |_, _, second| assert_eq!(second[PAGE], 1));
    touch("the last sharer's write", &mut |region, first, second| {
        (first[5 * PAGE], second[5 * PAGE], region[5 * PAGE]) = (5, 5, 5);
    });
    assert!(first.shared_bytes().unwrap() == 0, "mappings were used up");
    let all: [u64; 3] =
        [&region, &first, &second].map(|region| region.iter().map(|&b| u64::from(b)).sum());
    assert_eq!(all, [1 + 4, 1 + 4, 4].map(|more| WIDTH as u64 + more));
}

/// Says how much of the signal stack handlers use that are called meanwhile, beyond the frame of an empty
/// one.
fn stack_beyond_a_frame() -> impl Fn(&mut dyn FnMut()) -> usize {
    let stack = signal_stack();
    assert_eq!(stack.ss_flags & libc::SS_DISABLE, 0, "a thread of Rust has a signal stack");
    let size = stack.ss_size;
    let start = AtomicPtr::new(stack.ss_sp.cast::<u8>());
    let used_by = move |work: &mut dyn FnMut()| {
        let start = start.load(Ordering::SeqCst);
        // SAFETY: no handler is on the signal stack now, and it is readable and writable.
        unsafe { ptr::write_bytes(start, 0xa5, size) };
        work();
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(start, size) };
        size - bytes.iter().position(|&byte| byte != 0xa5).unwrap_or(size)
    };
    install_for_usr1();
    // SAFETY: the handler is there.
    let frame = used_by(&mut || unsafe {
        libc::raise(libc::SIGUSR1);
    });
    assert_eq!(CALLS.load(Ordering::SeqCst), 1);
    move |work| used_by(work).saturating_sub(frame)
}

fn install_for_usr1() {
    // SAFETY: `counts_plainly` is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = counts_plainly as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()), 0);
    }
}

/// An unprivileged user, where faults of the kernel are not every user's: in place still works, and the region
/// says why it is not threaded.
fn without_permission_it_is_in_place_and_says_why() {
    let pool = pool();
    // SAFETY: this process has no other thread that minds.
    let become_nobody = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
    assert_eq!(become_nobody, 0);
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap();
    let build = |fault_mode| {
        pool.region_builder(PAGE).clearing(Clearing::OnFault).fault_mode(fault_mode).build()
    };
    if allowed.trim() == "1" {
        assert!(build(FaultMode::Threaded { threads: 1 }).is_ok());
        return;
    }
    let error = build(FaultMode::Threaded { threads: 1 }).unwrap_err();
    let PoolError::Fault(FaultError::NotPermitted { user_mode: false, obstacles, .. }) = &error
    else {
        panic!("{error}")
    };
    assert_eq!(obstacles, &[Obstacle::Unprivileged]);
    assert!(error.to_string().contains("vm.unprivileged_userfaultfd"), "{error}");
    let region = build(FaultMode::Auto).unwrap();
    let serving = region.serving().unwrap();
    assert_eq!(serving.fault_mode, FaultMode::InPlace);
    assert!(matches!(serving.fallback, Some(FaultError::NotPermitted { .. })));
    assert!(is_zero(&region));
}

/// A filter refuses userfaultfd(2), with an error or with a signal; the device is left, to who may open it.
fn filtered(action: u32) {
    let pool = pool();
    const DATA: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        step(DATA, 0, 0, 0),
        step(IF_EQUAL, 0, 1, libc::SYS_userfaultfd as u32),
        step(RETURN, 0, 0, action),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is valid while it is read; it holds for this test's process alone.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534), 0);
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const filter), 0);
    }
    for fault_mode in [FaultMode::Auto, FaultMode::InPlace, FaultMode::Threaded { threads: 2 }] {
        let build =
            pool.region_builder(PAGE).clearing(Clearing::OnFault).fault_mode(fault_mode).build();
        let error = build.unwrap_err();
        let PoolError::Fault(FaultError::NotPermitted { obstacles, .. }) = &error else {
            panic!("{error}")
        };
        assert!(matches!(obstacles[0], Obstacle::Filter(_)), "{error}");
        assert!(error.to_string().contains("seccomp"), "{error}");
    }
    assert_eq!(pool.stats().unwrap().in_use, 0);
    assert!(is_zero(&pool.region(PAGE).unwrap()));
}

fn a_filter_that_refuses_is_named() {
    filtered(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
}

fn a_filter_that_kills_is_not_asked() {
    filtered(libc::SECCOMP_RET_KILL_PROCESS);
}

const CASES: &[Case] = &[
    (
        "what_is_taken_back_serves_and_passes_on_to_whoever_was_there_first",
        what_is_taken_back_serves_and_passes_on_to_whoever_was_there_first,
        Some(libc::SIGBUS),
    ),
    (
        "a_handler_with_information_is_called_once_for_each",
        a_handler_with_information_is_called_once_for_each,
        None,
    ),
    ("a_plain_handler_is_called_once_for_each", a_plain_handler_is_called_once_for_each, None),
    (
        "a_handler_for_once_is_called_once_and_then_the_default_kills",
        a_handler_for_once_is_called_once_and_then_the_default_kills,
        Some(libc::SIGBUS),
    ),
    ("what_is_ignored_stays_so", what_is_ignored_stays_so, Some(libc::SIGBUS)),
    ("the_default_kills_who_is_sent_it", the_default_kills_who_is_sent_it, Some(libc::SIGBUS)),
    (
        "the_default_kills_who_accesses_nothing",
        the_default_kills_who_accesses_nothing,
        Some(libc::SIGBUS),
    ),
    ("rusts_own_handler_lets_it_die", rusts_own_handler_lets_it_die, Some(libc::SIGBUS)),
    (
        "a_segfault_of_the_programs_own_goes_to_its_handler",
        a_segfault_of_the_programs_own_goes_to_its_handler,
        None,
    ),
    (
        "a_segfault_of_the_programs_own_kills_it",
        a_segfault_of_the_programs_own_kills_it,
        Some(libc::SIGSEGV),
    ),
    (
        "who_does_not_take_a_segfault_is_answered_all_the_same",
        who_does_not_take_a_segfault_is_answered_all_the_same,
        None,
    ),
    (
        "whoever_replaces_ours_is_noticed_and_never_called_by_us",
        whoever_replaces_ours_is_noticed_and_never_called_by_us,
        None,
    ),
    ("a_thread_that_blocks_it_is_refused", a_thread_that_blocks_it_is_refused, None),
    ("a_fault_where_it_is_blocked_kills", a_fault_where_it_is_blocked_kills, Some(libc::SIGBUS)),
    (
        "broken_memory_is_passed_on_and_never_handed_out_again",
        broken_memory_is_passed_on_and_never_handed_out_again,
        None,
    ),
    ("faults_in_handlers_in_place", faults_in_handlers_in_place, None),
    ("faults_in_handlers_threaded", faults_in_handlers_threaded, None),
    ("a_fault_inside_a_fault", a_fault_inside_a_fault, None),
    ("errno_is_kept", errno_is_kept, None),
    (
        "the_handler_needs_less_than_two_kib_of_stack",
        the_handler_needs_less_than_two_kib_of_stack,
        None,
    ),
    ("faults_of_forks_keep_within_bounds", faults_of_forks_keep_within_bounds, None),
    (
        "without_permission_it_is_in_place_and_says_why",
        without_permission_it_is_in_place_and_says_why,
        None,
    ),
    ("a_filter_that_refuses_is_named", a_filter_that_refuses_is_named, None),
    ("a_filter_that_kills_is_not_asked", a_filter_that_kills_is_not_asked, None),
];

/// Only root can become an unprivileged user, and only then is it known what that user is told.
const NEED_ROOT: [&str; 3] = [
    "without_permission_it_is_in_place_and_says_why",
    "a_filter_that_refuses_is_named",
    "a_filter_that_kills_is_not_asked",
];

/// What a test's process says when it got to its end.
const REACHED_THE_END: i32 = 77;

fn run(name: &str) -> ExitStatus {
    let program = std::env::current_exe().unwrap();
    Command::new(program).env(CASE, name).status().unwrap()
}

fn trial(&(name, _, signal): &Case) -> Trial {
    let test = move || -> Result<(), Failed> {
        let status = run(name);
        let ended = (status.code(), status.signal());
        let expected = match signal {
            Some(_) => (None, signal),
            None => (Some(REACHED_THE_END), None),
        };
        if ended == expected { Ok(()) } else { Err(format!("{status}").into()) }
    };
    let trial = Trial::test(name, test);
    // SAFETY: no precondition.
    let is_root = unsafe { libc::geteuid() } == 0;
    if NEED_ROOT.contains(&name) && !is_root {
        return trial
            .with_kind("skipped: only root can become an unprivileged user")
            .with_ignored_flag(true);
    }
    trial
}

fn main() {
    if let Ok(name) = std::env::var(CASE) {
        let case = CASES.iter().find(|case| case.0 == name).expect("a case of the table");
        no_core_dump_and_no_waiting();
        (case.1)();
        std::process::exit(REACHED_THE_END);
    }
    libtest_mimic::run(&Arguments::from_args(), CASES.iter().map(trial).collect()).exit();
}

/// Some of the processes are meant to die, and none may wait for ever.
fn no_core_dump_and_no_waiting() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one structure is read.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::alarm(120);
    }
}
