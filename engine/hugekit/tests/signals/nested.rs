//! Faults in handlers of other signals, and inside the handling of a fault.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use hugekit::fault::FaultMode;

use crate::fixture::{CALLS, Case, in_place, install, page_size, pool, send, width};
use crate::served::at_fault;
use crate::signal_stack;

static TOUCHED_BY_SIGNAL: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static TOUCHES: AtomicUsize = AtomicUsize::new(0);

/// Another signal's handler, whose thread may be anywhere: touches all of a region.
extern "C" fn touches(_: c_int) {
    let at = TOUCHED_BY_SIGNAL.load(Ordering::SeqCst);
    for offset in (0..width()).step_by(page_size()) {
        // SAFETY: the region outlives the signals, and all threads access its words as atomics.
        let word = unsafe { AtomicU64::from_ptr(at.add(offset).cast()) };
        assert!(word.load(Ordering::Relaxed) <= 1);
        word.store(1, Ordering::Relaxed);
    }
    TOUCHES.fetch_add(1, Ordering::SeqCst);
}

/// Threads that touch, release and make ready are interrupted by handlers that touch the same memory:
/// no thread waits for itself, nor two for each other.
fn faults_in_handlers_of_other_signals(fault_mode: FaultMode) {
    let pool = pool();
    let region = at_fault(&pool, width(), fault_mode).share();
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
                        1 => region.release(0..width()).unwrap(),
                        _ => region.prepare_write(0..width()).unwrap(),
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

fn fault_in_a_signal_handler_in_place_is_served() {
    faults_in_handlers_of_other_signals(FaultMode::InPlace);
}

fn fault_in_a_signal_handler_threaded_is_served() {
    faults_in_handlers_of_other_signals(FaultMode::Threaded { threads: 1 });
}

/// A handler that was there before us touches a region while it has one of our signals in hand.
fn fault_inside_the_handling_of_another_is_served() {
    extern "C" fn nested(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
        CALLS.fetch_add(1, Ordering::SeqCst);
        touches(0);
    }
    signal_stack::make_large();
    install(nested as *const () as usize, libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK);
    let pool = pool();
    let mut region = in_place(&pool);
    TOUCHED_BY_SIGNAL.store(region.as_mut_ptr(), Ordering::SeqCst);
    send();
    assert_eq!((CALLS.load(Ordering::SeqCst), TOUCHES.load(Ordering::SeqCst)), (1, 1));
    assert!(region.iter().step_by(page_size()).all(|&byte| byte == 1));
}

pub(crate) const CASES: &[Case] = &[
    (
        "fault_in_a_signal_handler_in_place_is_served",
        fault_in_a_signal_handler_in_place_is_served,
        None,
    ),
    (
        "fault_in_a_signal_handler_threaded_is_served",
        fault_in_a_signal_handler_threaded_is_served,
        None,
    ),
    (
        "fault_inside_the_handling_of_another_is_served",
        fault_inside_the_handling_of_another_is_served,
        None,
    ),
];
