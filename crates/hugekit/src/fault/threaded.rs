//! Faults that handler threads serve, each blocked in read(2) on the region's descriptor.
//!
//! A thread that blocks in read(2) cannot be told to stop by another descriptor, and waiting for two
//! costs 0.7 µs a fault. So every region has a *bell*: a private page for each thread, served by the same
//! descriptor. Who wants a thread to stop touches a page, and waits as for any other fault; the thread
//! that is told of it leaves that page to the kernel, which lets the toucher go on, and ends.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use rustix::param::page_size;

use super::{Access, Faults};
use crate::pool::FaultError;
use crate::sys::mapping::Untouched;
use crate::sys::thread::without_signals;
use crate::sys::userfaultfd::{self, Fault};

/// The handler threads of one region. [`stop`](Self::stop) them before its addresses go.
#[derive(Debug)]
pub(crate) struct Handlers {
    bell: Bell,
    threads: Vec<JoinHandle<()>>,
}

impl Handlers {
    /// Starts so many threads, or none.
    pub(crate) fn start(served: &Arc<dyn Faults>, count: usize) -> Result<Self, FaultError> {
        if count == 0 {
            return Err(FaultError::NoThreads);
        }
        let descriptor = served.descriptor();
        let mut handlers = Self { bell: Bell::new(descriptor, count)?, threads: Vec::new() };
        let bell = handlers.bell.0.addresses();
        for _ in 0..count {
            let (served, bell) = (Arc::clone(served), bell.clone());
            let builder = Builder::new().name("hugekit-fault".to_owned());
            match without_signals(|| builder.spawn(move || serve_all(&*served, &bell))) {
                Ok(thread) => handlers.threads.push(thread),
                Err(error) => {
                    handlers.stop();
                    return Err(FaultError::NotStarted(error));
                }
            }
        }
        Ok(handlers)
    }

    pub(crate) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Ends the threads and waits for them. In the process that started them.
    pub(crate) fn stop(self) {
        for (index, _) in self.threads.iter().enumerate() {
            self.bell.ring(index);
        }
        for thread in self.threads {
            // A panic was printed when it happened.
            let _ = thread.join();
        }
        // SAFETY: in the process that mapped it; nobody but the threads knew the addresses.
        let _ = unsafe { self.bell.0.unmap() };
    }

    /// In a forked child, which has no such threads to wait for, nor may detach them.
    pub(crate) fn forget(self) {
        self.threads.into_iter().for_each(std::mem::forget);
    }
}

/// A page for each thread. Touching it makes one of them end.
#[derive(Debug)]
struct Bell(Untouched);

impl Bell {
    fn new(descriptor: BorrowedFd<'_>, count: usize) -> Result<Self, FaultError> {
        let failed = |call| {
            move |errno: rustix::io::Errno| FaultError::Kernel { call, source: errno.into() }
        };
        let bell = Untouched::new(count * page_size()).map_err(failed("mmap"))?;
        let registered = userfaultfd::register_untouched(descriptor, &bell.addresses());
        if let Err(errno) = registered {
            // SAFETY: just mapped, and nobody knows of it.
            let _ = unsafe { bell.unmap() };
            return Err(failed("UFFDIO_REGISTER")(errno));
        }
        Ok(Self(bell))
    }

    /// Returns when a thread has heard it, or none is there to hear it.
    fn ring(&self, index: usize) {
        let page = self.0.start().as_ptr().wrapping_add(index * page_size());
        // SAFETY: a readable page of this process's own mapping.
        unsafe { page.read_volatile() };
    }
}

fn serve_all(served: &dyn Faults, bell: &Range<usize>) {
    let last_resort = LastResort { served, bell };
    serve_until_rung(served.descriptor(), bell, |Fault { address, write }| {
        let access = if write { Access::Write } else { Access::Read };
        if served.serve(address, access).is_err() {
            served.leave(address);
        }
    });
    std::mem::forget(last_resort);
}

/// Serves faults until the bell rings, which it answers.
///
/// # Panics
/// If the descriptor cannot be read: somebody else has closed it.
fn serve_until_rung(descriptor: BorrowedFd<'_>, bell: &Range<usize>, serve: impl Fn(Fault)) {
    loop {
        match userfaultfd::next_fault(descriptor) {
            Ok(Some(Fault { address, .. })) if bell.contains(&address) => {
                let page = address - address % page_size();
                let _ = userfaultfd::unregister(descriptor, &(page..page + page_size()));
                return;
            }
            Ok(Some(fault)) => serve(fault),
            Ok(None) => {}
            Err(errno) => panic!("faults cannot be read: {}", std::io::Error::from(errno)),
        }
    }
}

/// Dropped by a thread that dies: whoever faults from then on must not wait for it. All that is dirty is
/// cleared at once and the region left to the kernel, and so is the bell.
struct LastResort<'a> {
    served: &'a dyn Faults,
    bell: &'a Range<usize>,
}

impl Drop for LastResort<'_> {
    fn drop(&mut self) {
        tracing::error!("a thread that served faults died: the region is cleared at once");
        self.served.give_up();
        let _ = userfaultfd::unregister(self.served.descriptor(), self.bell);
    }
}
