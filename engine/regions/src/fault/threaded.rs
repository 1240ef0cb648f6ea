//! Faults that handler threads serve, each blocked in read(2) on the region's descriptor.
//!
//! A thread that blocks in read(2) cannot be told to stop by another descriptor, and waiting for two
//! costs 0.7 µs a fault. So every region has a *bell*: a private page for each thread, served by the same
//! descriptor. Who wants a thread to stop touches a page, and waits as for any other fault; the thread
//! that is told of it leaves that page to the kernel, which lets the toucher go on, and ends.
//!
//! Others touch these pages as well: `mlockall`(2), another process by `process_vm_readv`(2). So a page counts
//! as *rung* only if that was noted before. A page that others have touched is made ready to be touched again. One lock
//! covers both sides: otherwise a thread could leave the page to the kernel after it was made ready, and no thread would
//! hear the touch.
//!
//! A wake-up on the CPU of the thread that faulted costs 8 µs in all, on another one that sleeps 60 to 110.
//! The scheduler wakes a thread where it ran last if that CPU is idle, so one that begins on the wrong one
//! stays there. Therefore a handler *follows*: it looks now and then where the thread is that it has just
//! served, and goes there. `docs/decisions/0010-fault-placement.md` has the figures.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::param::page_size;

use super::{Access, Faults, MOST_THREADS};
use crate::pool::FaultError;
use hugekit_machine::CpuSet;
use hugekit_sys::handler_thread::HandlerThread;
use hugekit_sys::mapping::UntouchedPages;
use hugekit_sys::private_pages::{OwnWords, Private};
use hugekit_sys::sync::Latch;
use hugekit_sys::thread::{
    SignalsBlocked, Watched, affinity, current_cpu, pin_to, without_signals,
};
use hugekit_sys::userfaultfd::{self, Fault};

/// The handler threads of one region. [`stop`](Self::stop) them before its addresses go.
#[derive(Debug)]
pub struct Handlers {
    served: Arc<dyn Faults>,
    bell: Arc<Bell>,
    threads: Vec<HandlerThread>,
}

impl Handlers {
    /// Starts so many threads, or none, and waits until all of them serve. A thread that begins allocates, and the
    /// memory that it is to serve may be the allocator's: from then on it writes to nothing but its stack and
    /// memory of our own.
    pub fn start(served: &Arc<dyn Faults>, count: usize) -> Result<Self, FaultError> {
        if count == 0 {
            return Err(FaultError::NoThreads);
        }
        if count > MOST_THREADS {
            return Err(FaultError::TooManyThreads { asked: count, most: MOST_THREADS });
        }
        // The first question where a thread is finds the kernel's answer and notes it in memory that a snapshot may
        // protect. Handlers ask, too.
        let _ = current_cpu();
        let failed =
            |errno: rustix::io::Errno| FaultError::Kernel { call: "mmap", source: errno.into() };
        let ready = Arc::new(Private::new(Latch::new()).map_err(failed)?);
        let bell = Arc::new(Bell::new(served.descriptor(), count)?);
        let mut handlers =
            Self { served: Arc::clone(served), bell: Arc::clone(&bell), threads: Vec::new() };
        for _ in 0..count {
            let (served, bell, ready) = (Arc::clone(served), Arc::clone(&bell), Arc::clone(&ready));
            let life = move |blocked: &SignalsBlocked| serve_all(&*served, &bell, &ready, blocked);
            match HandlerThread::spawn(c"hugekit-fault", life) {
                Ok(thread) => handlers.threads.push(thread),
                Err(error) => {
                    handlers.stop();
                    return Err(FaultError::NotStarted(error));
                }
            }
        }
        ready.wait_for(count);
        Ok(handlers)
    }

    /// Returns the number of threads.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Ends the threads and waits for them. In the process that started them.
    pub fn stop(self) {
        for (index, _) in self.threads.iter().enumerate() {
            self.bell.ring(self.served.descriptor(), index);
        }
        self.threads.into_iter().for_each(HandlerThread::join);
        // SAFETY: in the process that mapped it; none but the threads knew the addresses.
        let _ = unsafe { self.bell.pages.unmap() };
    }

    /// In a forked child, which has no such threads to wait for: nothing but their stacks stays.
    pub(crate) fn forget(self) {
        drop(self);
    }
}

/// A page for each thread. Touching it, once that was noted, makes one of them end.
#[derive(Debug)]
struct Bell {
    pages: UntouchedPages,
    /// For each page: true if it was rung and no thread has ended for it yet. Changed under the lock below. Both lie
    /// in memory that no snapshot protects, because threads that serve faults write them.
    rung: OwnWords<AtomicU8>,
    /// Threads that have not ended: each hears one ring.
    listeners: Private<Mutex<usize>>,
}

impl Bell {
    fn new(descriptor: BorrowedFd<'_>, count: usize) -> Result<Self, FaultError> {
        let failed = |call| {
            move |errno: rustix::io::Errno| FaultError::Kernel { call, source: errno.into() }
        };
        let pages = UntouchedPages::new(count * page_size()).map_err(failed("mmap"))?;
        let registered = userfaultfd::register_untouched(descriptor, &pages.addresses());
        if let Err(errno) = registered {
            // SAFETY: just mapped, and no other thread knows of it.
            let _ = unsafe { pages.unmap() };
            return Err(failed("UFFDIO_REGISTER")(errno));
        }
        let own = || Ok((OwnWords::new(count)?, Private::new(Mutex::new(count))?));
        match own() {
            Ok((rung, listeners)) => Ok(Self { pages, rung, listeners }),
            Err(errno) => {
                // SAFETY: just mapped, and no other thread knows of it.
                let _ = unsafe { pages.unmap() };
                Err(failed("mmap")(errno))
            }
        }
    }

    /// With signals blocked, because handler threads take it.
    fn listeners<'a>(&'a self, _: &'a SignalsBlocked) -> MutexGuard<'a, usize> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when a thread has heard it, or none is there to hear it. By one thread at a time.
    fn ring(&self, descriptor: BorrowedFd<'_>, index: usize) {
        let is_heard = without_signals(|blocked| {
            let listeners = self.listeners(blocked);
            if *listeners == 0 {
                return false;
            }
            self.rung[index].store(1, Ordering::Relaxed);
            // Others may have touched it.
            let _ = userfaultfd::register_untouched(descriptor, &self.page(index));
            self.forget(index);
            true
        });
        if is_heard {
            self.touch(index);
        }
    }

    fn page(&self, index: usize) -> Range<usize> {
        let start = self.pages.addresses().start + index * page_size();
        start..start + page_size()
    }

    fn forget(&self, index: usize) {
        self.pages.forget(index * page_size()..(index + 1) * page_size());
    }

    /// Faults at a page, if none has before.
    fn touch(&self, index: usize) {
        let page = self.pages.start().as_ptr().wrapping_add(index * page_size());
        // SAFETY: a page of this process's own mapping, which is there until all threads have ended.
        unsafe { page.read_volatile() };
    }

    /// Lets the thread that touched a page go on; whether the one that was told of it is to end.
    fn answer(
        &self,
        descriptor: BorrowedFd<'_>,
        address: usize,
        blocked: &SignalsBlocked,
    ) -> rustix::io::Result<bool> {
        let index = (address - self.pages.addresses().start) / page_size();
        let _listeners = self.listeners(blocked);
        userfaultfd::unregister(descriptor, &self.page(index))?;
        Ok(self.rung[index].swap(0, Ordering::Relaxed) == 1)
    }

    /// A thread ends. After the last one, touches are left to the kernel.
    ///
    /// # Errors
    /// The kernel refuses what it is asked.
    fn leave(
        &self,
        descriptor: BorrowedFd<'_>,
        blocked: &SignalsBlocked,
    ) -> rustix::io::Result<()> {
        let mut listeners = self.listeners(blocked);
        *listeners -= 1;
        if *listeners == 0 {
            userfaultfd::unregister(descriptor, &self.pages.addresses())
        } else {
            // Changes nothing: a thread that waits there and is woken waits again.
            userfaultfd::wake(descriptor, &self.pages.addresses())
        }
    }
}

/// The CPU of a handler thread, which is looked up less often while it stays right. The thread is pinned: unpinned, it
/// is woken on another CPU that is idle, where there is one.
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
                let _ = pin_to(cpu);
                self.interval = 0;
            }
            None => self.interval = (2 * self.interval + 1).min(LONGEST_INTERVAL),
        }
        self.left = self.interval;
    }
}

fn serve_all(served: &dyn Faults, bell: &Bell, ready: &Latch, blocked: &SignalsBlocked) {
    let mut following = Following::new();
    ready.arrive();
    serve_or_give_up(served, bell, blocked, |Fault { address, thread, write }| {
        let access = if write { Access::Write } else { Access::Read };
        if served.serve(address, access, blocked).is_err() {
            served.leave(address, blocked)?;
        }
        following.follow(thread);
        Ok(())
    });
}

fn serve_or_give_up(
    served: &dyn Faults,
    bell: &Bell,
    blocked: &SignalsBlocked,
    serve: impl FnMut(Fault) -> rustix::io::Result<()>,
) {
    let last_resort = LastResort { served, bell, blocked };
    if serve_until_rung(served.descriptor(), bell, blocked, serve).is_ok() {
        std::mem::forget(last_resort);
        let _ = bell.leave(served.descriptor(), blocked);
    }
}

/// Serves faults until the bell rings, which it answers.
///
/// # Errors
/// The kernel refuses that, or what serving takes, or to tell of faults: the descriptor was abandoned, or another
/// library closed it, or a system-call filter was installed.
fn serve_until_rung(
    descriptor: BorrowedFd<'_>,
    bell: &Bell,
    blocked: &SignalsBlocked,
    mut serve: impl FnMut(Fault) -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    let pages = bell.pages.addresses();
    loop {
        let Some(fault) = userfaultfd::next_fault(descriptor)? else { continue };
        if !pages.contains(&fault.address) {
            serve(fault)?;
        } else if bell.answer(descriptor, fault.address, blocked)? {
            return Ok(());
        }
    }
}

/// Dropped by a thread that dies, or whom the kernel refuses to serve: threads that fault from then on must not wait
/// for it. All is left to the kernel, the bell too. If the kernel refuses even that, the descriptor is abandoned;
/// threads that are reading it keep it open, so one of them is told by a fault of our own, and does the same.
struct LastResort<'a> {
    served: &'a dyn Faults,
    bell: &'a Bell,
    blocked: &'a SignalsBlocked,
}

impl Drop for LastResort<'_> {
    fn drop(&mut self) {
        let descriptor = self.served.descriptor();
        let (gave_up, left) =
            (self.served.give_up(self.blocked), self.bell.leave(descriptor, self.blocked));
        if gave_up.and(left).is_err() && userfaultfd::abandon(descriptor).is_ok() {
            self.bell.forget(0);
            self.bell.touch(0);
        }
        // Not before: a thread that is told may fault there.
        hugekit_sys::events::error!(
            "a thread that served faults ends: its memory is left to the kernel"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::cow::{Descriptor, ForkGroup, FoundingRegion, usual_granule};
    use crate::pool::{Backing, Pool};

    #[test]
    fn region_whose_handler_thread_dies_goes_on_with_clean_memory() {
        let len = 1 << 20;
        let pool = Pool::builder(len).backing(Backing::Base).scrub_threads(0).build().unwrap();
        pool.region(len).unwrap().fill(7);
        let Ok(descriptor) = Descriptor::for_clearing(Backing::Base, Some(1)) else {
            return; // Who may not serve faults of system calls has no such threads.
        };
        // SAFETY: the group watches it before any thread accesses it.
        let (mapped, contents) = unsafe { pool.hand_out_unready(len, None, None) }.unwrap();
        let start = mapped.mapping().start();
        let served = ForkGroup::new(&pool, len, usual_granule(&pool), descriptor, None).unwrap();
        let region = FoundingRegion::join(&served, mapped, Some(&contents)).unwrap();
        let bell = Bell::new(served.descriptor(), 1).unwrap();
        thread::scope(|scope| {
            let dies = scope.spawn(|| {
                without_signals(|blocked| {
                    serve_or_give_up(&*served, &bell, blocked, |_| panic!("as this test wants it"));
                });
            });
            // SAFETY: mapped and readable; no other thread accesses it.
            let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr(), len) };
            assert!(bytes.iter().all(|&byte| byte == 0));
            assert!(dies.join().is_err());
        });
        // No thread hears it any more, and no thread waits.
        bell.ring(served.descriptor(), 0);
        assert_eq!(pool.stats().unwrap().scrubbed_at_fault, len as u64);
        region.leave(false).unwrap();
        // SAFETY: no thread uses the addresses any more.
        unsafe { bell.pages.unmap().unwrap() };
    }
}
