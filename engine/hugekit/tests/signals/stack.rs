//! What the handler leaves as it was, and how much of the signal stack it needs.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::{Pool, Region};

use crate::fixture::{CALLS, Case, counts_plainly, in_place, page_size, pool, signal_stack, width};

fn fault_served_in_place_keeps_errno() {
    let pool = pool();
    let mut region = in_place(&pool);
    for at in (0..region.len()).step_by(page_size()) {
        // SAFETY: the address of the calling thread's errno.
        unsafe {
            *libc::__errno_location() = 4242;
            region.as_mut_ptr().add(at).write_volatile(1);
            assert_eq!(*libc::__errno_location(), 4242);
        }
    }
}

/// Bytes of a signal stack that a fault may take beyond the kernel's frame, where x86-64's signal stacks have 8 KiB and
/// aarch64's 16 KiB. Up to 2,072 are used in whole builds, and 2,280 in incremental ones, which inline less.
const MOST: usize = 2560;

/// So many faults in which every routine of this machine is tried, and one is in charge.
const LEARNED: usize = 1000;

/// What faults take of the signal stack beyond the frame that the kernel puts there for any signal.
fn fault_served_in_place_keeps_the_bound_of_stack() {
    let pool = pool();
    let mut region = in_place(&pool);
    let used_by = stack_beyond_a_frame();
    for faults in [1, LEARNED] {
        let ours = used_by(&mut || {
            for _ in 0..faults {
                region.release(0..width()).unwrap();
                region[page_size()] = 1;
            }
        });
        assert!(0 < ours && ours < MOST, "{faults}: {ours} bytes beyond an empty handler's frame");
    }
}

/// Copies of granules that are long enough to learn from.
fn copy_for_a_fork_keeps_the_bound_of_stack() {
    let pool = Pool::builder(3 * width()).backing(Backing::Base).scrub_threads(0).build().unwrap();
    let mut region = pool.region(width()).unwrap();
    region.fill(1);
    let used_by = stack_beyond_a_frame();
    let ours = used_by(&mut || {
        for _ in 0..LEARNED {
            let mut fork = region.fork_builder().fault_mode(FaultMode::InPlace).build().unwrap();
            (fork[0], region[width() / 2]) = (2, 3);
        }
    });
    assert!(0 < ours && ours < MOST, "{ours} bytes beyond an empty handler's frame");
}

/// The same, no allocation and `errno` as it was, for every kind of fault of a fork group: the last of them
/// copies all of a region.
fn fault_of_any_kind_in_a_fork_keeps_errno_and_the_bound_of_stack() {
    let pool = Pool::builder(4 * width()).backing(Backing::Base).scrub_threads(0).build().unwrap();
    let mut region = pool.region(width()).unwrap();
    region.fill(1);
    let how = region.fork_builder().granule(page_size()).fault_mode(FaultMode::InPlace).max_vmas(4);
    let (mut first, mut second) = (how.build().unwrap(), how.build().unwrap());
    let used_by = stack_beyond_a_frame();
    let mut touch = |what: &str, touch: &mut dyn FnMut(&mut Region, &mut Region, &mut Region)| {
        let ours = used_by(&mut || {
            // SAFETY: the address of the calling thread's errno.
            unsafe { *libc::__errno_location() = 4242 };
            touch(&mut region, &mut first, &mut second);
            // SAFETY: the address of the calling thread's errno.
            assert_eq!(unsafe { *libc::__errno_location() }, 4242);
        });
        assert!(0 < ours && ours < MOST, "{what}: {ours} bytes beyond an empty handler's frame");
    };
    touch("a read", &mut |_, first, second| assert_eq!(first[0] + second[0], 2));
    touch("a child's write", &mut |_, first, _| first[0] = 2);
    touch("a parent's write", &mut |region, _, _| region[page_size()] = 2);
    touch("a read of what was taken away", &mut |_, first, _| assert_eq!(first[page_size()], 1));
    touch("the same, shared with no other region", &mut |_, _, second| {
        assert_eq!(second[page_size()], 1);
    });
    touch("the last sharer's write", &mut |region, first, second| {
        (first[5 * page_size()], second[5 * page_size()], region[5 * page_size()]) = (5, 5, 5);
    });
    assert!(first.shared_bytes().unwrap() == 0, "mappings were used up");
    let all: [u64; 3] =
        [&region, &first, &second].map(|region| region.iter().map(|&b| u64::from(b)).sum());
    assert_eq!(all, [1 + 4, 1 + 4, 4].map(|more| width() as u64 + more));
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
        // SAFETY: no handler is on the signal stack now, and it is readable and writable.
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

pub(crate) const CASES: &[Case] = &[
    ("fault_served_in_place_keeps_errno", fault_served_in_place_keeps_errno, None),
    (
        "fault_served_in_place_keeps_the_bound_of_stack",
        fault_served_in_place_keeps_the_bound_of_stack,
        None,
    ),
    ("copy_for_a_fork_keeps_the_bound_of_stack", copy_for_a_fork_keeps_the_bound_of_stack, None),
    (
        "fault_of_any_kind_in_a_fork_keeps_errno_and_the_bound_of_stack",
        fault_of_any_kind_in_a_fork_keeps_errno_and_the_bound_of_stack,
        None,
    ),
];
