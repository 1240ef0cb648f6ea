//! Threads that handle faults. The faults may be in any memory of the process, also in the stacks
//! of ended threads that C libraries keep. So each such thread has its stack, and its thread-local
//! variables on it, in memory that no snapshot can protect: a thread that waited on its own stack
//! for a fault that it must handle would wait for ever.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::mpsc::{Sender, channel};

use super::injection::{Call, pass};
use super::mapping;
use super::private_pages::PrivateBytes;
use super::thread::{MAPPINGS, SignalsBlocked, without_signals};

/// The size of the stacks of Rust's own threads. Untouched pages cost only addresses.
const STACK_BYTES: usize = 2 << 20;

/// A running thread. If it is dropped without [`join`](Self::join), its stack stays allocated
/// permanently.
#[derive(Debug)]
pub struct HandlerThread {
    id: ThreadId,
    stack: ManuallyDrop<PrivateBytes>,
}

/// A number on glibc, a pointer on musl.
#[derive(Debug)]
struct ThreadId(libc::pthread_t);

// SAFETY: a name of a thread, which any thread may join.
unsafe impl Send for ThreadId {}
// SAFETY: a shared reference reads only the number; the number names a thread and points to no memory that is
// accessed.
unsafe impl Sync for ThreadId {}

/// The argument of a new thread.
struct Start {
    name: &'static CStr,
    life: Box<dyn FnOnce(&SignalsBlocked) + Send>,
    runs: Sender<()>,
}

impl HandlerThread {
    /// Starts a thread that never runs the program's own signal handlers, and waits until it runs.
    ///
    /// # Errors
    /// The system's error. `ENOMEM` if the process has too few mappings left for a thread.
    pub fn spawn(
        name: &'static CStr,
        life: impl FnOnce(&SignalsBlocked) + Send + 'static,
    ) -> io::Result<Self> {
        mapping::check_room(MAPPINGS)?;
        let stack = PrivateBytes::as_a_stack(STACK_BYTES)?;
        pass(Call::Clone)?;
        let (runs, is_running) = channel();
        let start = Box::new(Start { name, life: Box::new(life), runs });
        let id = without_signals(|_| create(&stack, start))?;
        // Nothing is sent: the other end has gone when the thread runs.
        let _ = is_running.recv();
        Ok(Self { id, stack: ManuallyDrop::new(stack) })
    }

    /// Waits for the end of the thread. Only the process that started it may call this.
    pub fn join(self) {
        // SAFETY: not joined before, because that takes the only value there is, and never detached.
        let refused = unsafe { libc::pthread_join(self.id.0, ptr::null_mut()) };
        if refused == 0 {
            drop(ManuallyDrop::into_inner(self.stack));
        }
    }
}

fn create(stack: &PrivateBytes, start: Box<Start>) -> io::Result<ThreadId> {
    let given = Box::into_raw(start);
    let mut id = MaybeUninit::uninit();
    let mut attributes = MaybeUninit::uninit();
    let made =
        |code: c_int| if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) };
    // SAFETY: the attributes are initialised by the first call and not used after the last. The stack is mapped for as
    // long as the thread runs: only `join` unmaps it. `live` takes what is given as it was boxed, once.
    let started = unsafe {
        made(libc::pthread_attr_init(attributes.as_mut_ptr())).and_then(|()| {
            let attributes = attributes.as_mut_ptr();
            let started =
                made(libc::pthread_attr_setstack(attributes, stack.start().cast(), STACK_BYTES))
                    .and_then(|()| {
                        made(libc::pthread_create(id.as_mut_ptr(), attributes, live, given.cast()))
                    });
            libc::pthread_attr_destroy(attributes);
            started
        })
    };
    match started {
        // SAFETY: written by the call that succeeded.
        Ok(()) => Ok(ThreadId(unsafe { id.assume_init() })),
        Err(error) => {
            // SAFETY: boxed above, and no thread took it.
            drop(unsafe { Box::from_raw(given) });
            Err(error)
        }
    }
}

extern "C" fn live(given: *mut c_void) -> *mut c_void {
    // SAFETY: from `Box::into_raw` in `create`, for this thread alone.
    let Start { name, life, runs } = *unsafe { Box::from_raw(given.cast::<Start>()) };
    // Debuggers show it, and nothing else asks for it.
    let _ = rustix::thread::set_name(name);
    drop(runs);
    // A panic was printed when it happened.
    let _ = catch_unwind(AssertUnwindSafe(|| life(&SignalsBlocked::inherited())));
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, OnceLock};

    use super::*;
    use hugekit_machine::{Root, mappings};

    /// Returns true if a snapshot of the address would be refused.
    fn is_apart(address: usize) -> bool {
        let all = mappings::read(&Root::default()).unwrap();
        all.iter().any(|mapping| mapping.addresses.contains(&address) && !mapping.is_readable)
    }

    #[test]
    #[cfg_attr(
        target_arch = "aarch64",
        ignore = "qemu, which tests this CPU, runs no thread on a stack that is not said to be readable"
    )]
    fn stack_and_variables_of_a_handler_thread_are_in_no_snapshot() {
        thread_local! {
            static OWN: u32 = const { 7 };
        }
        let seen = Arc::new(OnceLock::new());
        let told = Arc::clone(&seen);
        let thread = HandlerThread::spawn(c"hugekit-test", move |_| {
            let frame = ptr::from_ref(&told).addr();
            let own = OWN.with(|own| ptr::from_ref(own).addr());
            let _ = told.set((is_apart(frame), is_apart(own)));
        });
        thread.unwrap().join();
        assert_eq!(seen.get(), Some(&(true, true)));
    }

    #[test]
    #[cfg_attr(
        target_arch = "aarch64",
        ignore = "qemu, which tests this CPU, runs no thread on a stack that is not said to be readable"
    )]
    fn join_of_a_thread_that_panics_returns() {
        let thread = HandlerThread::spawn(c"hugekit-test", |_| panic!("as this test wants it"));
        thread.unwrap().join();
    }
}
