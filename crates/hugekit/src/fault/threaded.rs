//! Faults that handler threads serve, each blocked in read(2) on the region's descriptor.
//!
//! A thread that blocks in read(2) cannot be told to stop by another descriptor, and waiting for two
//! costs 0.7 µs a fault. So every region has a *bell*: a private page for each thread, served by the same
//! descriptor. Who wants a thread to stop touches a page, and waits as for any other fault; the thread
//! that is told of it leaves that page to the kernel, which lets the toucher go on, and ends.
//!
//! A wake-up on the CPU of the thread that faulted costs 8 µs in all, on another one that sleeps 60 to 110.
//! The scheduler wakes a thread where it ran last if that CPU is idle, so one that begins on the wrong one
//! stays there. Therefore a handler *follows*: it looks now and then where the thread is that it has just
//! served, and goes there. `docs/decisions/0010-fault-placement.md` has the figures.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use rustix::param::page_size;

use super::{Access, Faults, MOST_THREADS};
use crate::machine::CpuSet;
use crate::pool::FaultError;
use crate::sys::mapping::Untouched;
use crate::sys::thread::{Watched, affinity, current_cpu, set_affinity, spawn};
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
        if count > MOST_THREADS {
            return Err(FaultError::TooManyThreads { asked: count, most: MOST_THREADS });
        }
        let descriptor = served.descriptor();
        let mut handlers = Self { bell: Bell::new(descriptor, count)?, threads: Vec::new() };
        let alive = Arc::new(AtomicUsize::new(0));
        for _ in 0..count {
            let (served, own) = (Arc::clone(served), Arc::clone(&alive));
            let ends = Ends { bell: handlers.bell.0.addresses(), alive: own };
            alive.fetch_add(1, Ordering::SeqCst);
            match spawn("hugekit-fault", move || serve_all(&*served, &ends)) {
                Ok(thread) => handlers.threads.push(thread),
                Err(error) => {
                    alive.fetch_sub(1, Ordering::SeqCst);
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
        // Threads that end early find it by its address.
        let _ = bell.start().as_ptr().expose_provenance();
        Ok(Self(bell))
    }

    /// Returns when a thread has heard it, or none is there to hear it.
    fn ring(&self, index: usize) {
        touch(self.0.start().as_ptr().wrapping_add(index * page_size()));
    }
}

/// Faults at a page of a bell.
fn touch(page: *const u8) {
    // SAFETY: a readable page of this process's own mapping, which is there until all threads have ended.
    unsafe { page.read_volatile() };
}

/// Where a handler thread should be, found out as seldom as it is right. It is pinned there: unpinned, it is
/// woken on another CPU that is idle, where there is one.
struct Following {
    /// CPUs that it may run on, if there is a choice.
    allowed: Option<CpuSet>,
    watched: Option<Watched>,
    /// Faults until the next look, and how many there were to be.
    left: u32,
    interval: u32,
}

/// A look costs a few microseconds: one in so many faults at least.
const LONGEST_INTERVAL: u32 = 15;

impl Following {
    fn new() -> Self {
        let allowed = affinity().ok().filter(|cpus| cpus.len() > 1);
        Self { allowed, watched: None, left: 0, interval: 0 }
    }

    /// After a fault of this thread was served.
    fn follow(&mut self, thread: u32) {
        let Some(allowed) = self.allowed.as_ref() else { return };
        if self.left > 0 {
            self.left -= 1;
            return;
        }
        if !self.watched.as_ref().is_some_and(|watched| watched.is(thread)) {
            self.watched = Watched::new(thread);
        }
        let there = self.watched.as_ref().and_then(Watched::cpu);
        let is_elsewhere = |cpu: &u32| *cpu != current_cpu() && allowed.contains(*cpu);
        match there.filter(is_elsewhere) {
            Some(cpu) => {
                let _ = set_affinity(&std::iter::once(cpu).collect());
                self.interval = 0;
            }
            None => self.interval = (2 * self.interval + 1).min(LONGEST_INTERVAL),
        }
        self.left = self.interval;
    }
}

/// What the threads of one region need to end.
#[derive(Clone, Debug)]
struct Ends {
    bell: Range<usize>,
    /// Those that have not ended.
    alive: Arc<AtomicUsize>,
}

fn serve_all(served: &dyn Faults, ends: &Ends) {
    let mut following = Following::new();
    serve_or_give_up(served, ends, |Fault { address, thread, write }| {
        let access = if write { Access::Write } else { Access::Read };
        if served.serve(address, access).is_err() {
            served.leave(address)?;
        }
        following.follow(thread);
        Ok(())
    });
}

fn serve_or_give_up(
    served: &dyn Faults,
    ends: &Ends,
    serve: impl FnMut(Fault) -> rustix::io::Result<()>,
) {
    let last_resort = LastResort { served, ends };
    if serve_until_rung(served.descriptor(), &ends.bell, serve).is_ok() {
        std::mem::forget(last_resort);
        if ends.is_last() {
            ends.silence(served.descriptor());
        }
    }
}

impl Ends {
    /// Whether the calling thread, which has ended, was the last one.
    fn is_last(&self) -> bool {
        self.alive.fetch_sub(1, Ordering::SeqCst) == 1
    }

    /// Leaves the bell to the kernel, because no thread hears it any more.
    fn silence(&self, descriptor: BorrowedFd<'_>) {
        if userfaultfd::unregister(descriptor, &self.bell).is_err() {
            let _ = userfaultfd::abandon(descriptor);
        }
    }
}

/// Serves faults until the bell rings, which it answers.
///
/// # Errors
/// The kernel refuses that, or what serving takes, or to tell of faults: the descriptor was abandoned, or another library closed it, or a
/// system-call filter was installed.
fn serve_until_rung(
    descriptor: BorrowedFd<'_>,
    bell: &Range<usize>,
    mut serve: impl FnMut(Fault) -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    loop {
        match userfaultfd::next_fault(descriptor)? {
            Some(Fault { address, .. }) if bell.contains(&address) => {
                let page = address - address % page_size();
                return userfaultfd::unregister(descriptor, &(page..page + page_size()));
            }
            Some(fault) => serve(fault)?,
            None => {}
        }
    }
}

/// Dropped by a thread that dies, or whom the kernel refuses to serve: threads that fault from then on must not wait
/// for it. All is left to the kernel. The other handlers end, too, one after the other: each is told by a fault of
/// the one before it, and the last one leaves the bell to the kernel, or, where that is refused, abandons the
/// descriptor, which threads that read it would keep open. Then all go on who wait.
struct LastResort<'a> {
    served: &'a dyn Faults,
    ends: &'a Ends,
}

impl Drop for LastResort<'_> {
    fn drop(&mut self) {
        let given_up = self.served.give_up();
        let is_last = self.ends.is_last();
        match given_up {
            // What waits there goes on waiting: writes would reach what others share.
            Err(error) => tracing::error!("a thread that served faults ends: {error}"),
            Ok(()) if is_last => self.ends.silence(self.served.descriptor()),
            Ok(()) => touch(std::ptr::with_exposed_provenance(self.ends.bell.start)),
        }
        // Not before: whoever is told may fault there.
        tracing::error!("a thread that served faults ends: its memory is left to the kernel");
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::fault::Served;
    use crate::fault::open::{self, Of};
    use crate::pool::{Backing, Pool};

    #[test]
    fn when_a_thread_dies_everybody_goes_on_with_clean_memory() {
        let len = 1 << 20;
        let pool = Pool::builder(len).backing(Backing::Base).scrub_threads(0).build().unwrap();
        pool.region(len).unwrap().fill(7);
        let Ok(descriptor) = open::for_handler_threads(Of::FirstAccesses(Backing::Base)) else {
            return; // Who may not serve faults of system calls has no such threads.
        };
        // SAFETY: registered before anybody accesses it.
        let (mapped, contents) = unsafe { pool.hand_out_unready(len, None, None) }.unwrap();
        let served = Served::new(&pool, &mapped, &contents, descriptor).unwrap();
        let bell = Bell::new(served.descriptor(), 1).unwrap();
        let start = mapped.mapping().start();
        thread::scope(|scope| {
            let dies = scope.spawn(|| {
                let alive = Arc::new(AtomicUsize::new(1));
                let ends = Ends { bell: bell.0.addresses(), alive };
                serve_or_give_up(&served, &ends, |_| panic!("as this test wants it"));
            });
            // SAFETY: mapped and readable; nobody else accesses it.
            let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr(), len) };
            assert!(bytes.iter().all(|&byte| byte == 0));
            assert!(dies.join().is_err());
        });
        // Nobody hears it any more, and nobody waits.
        bell.ring(0);
        assert_eq!(pool.stats().unwrap().scrubbed_at_fault, len as u64);
        let contents = served.contents(0, len / page_size());
        // SAFETY: nobody uses the addresses any more.
        unsafe {
            pool.take_back_as(mapped, &contents);
            bell.0.unmap().unwrap();
        }
    }
}
