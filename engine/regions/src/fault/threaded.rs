//! Faults that handler threads handle. Each thread blocks in read(2) on the region's descriptor.
//!
//! A thread that blocks in read(2) cannot be stopped through another descriptor, and waiting for
//! two descriptors costs 0.7 µs per fault. So every region has a *bell*: a private page for each
//! thread, whose faults the same descriptor reports. To stop a thread, the stopper touches a page,
//! and waits as for any other fault. The thread that receives this fault leaves the page to the
//! kernel, which lets the stopper continue, and ends.
//!
//! Others touch these pages as well: `mlockall`(2), another process by `process_vm_readv`(2). So a page counts
//! as *rung* only if that was noted before. A page that others have touched is made ready to be touched again. One lock
//! covers both sides: otherwise a thread could leave the page to the kernel after it was made ready, and no thread would
//! hear the touch.
//!
//! A wake-up on the CPU of the faulting thread costs 8 µs in all, and 60 to 110 µs on another
//! sleeping CPU. The scheduler wakes a thread on its last CPU if that is idle, so a handler that
//! begins on the wrong CPU stays there. Therefore a handler *follows*: from time to time it reads
//! the CPU of the thread that it has just served, and moves there.
//! `docs/decisions/0010-fault-placement.md` contains the figures.
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

/// The handler threads of one region. Call [`stop`](Self::stop) before its addresses are unmapped.
#[derive(Debug)]
pub struct Handlers {
    served: Arc<dyn Faults>,
    bell: Arc<Bell>,
    threads: Vec<HandlerThread>,
}

impl Handlers {
    /// Starts `count` threads, or none, and waits until all of them work. A starting thread
    /// allocates, and its region may be the allocator's memory. After the start, it writes only to
    /// its stack and to private memory of hugekit.
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

    /// Ends the threads and waits for them. Only the process that started them may call this.
    pub fn stop(self) {
        for (index, _) in self.threads.iter().enumerate() {
            self.bell.ring(self.served.descriptor(), index);
        }
        self.threads.into_iter().for_each(HandlerThread::join);
        // SAFETY: in the process that mapped it; none but the threads knew the addresses.
        let _ = unsafe { self.bell.pages.unmap() };
    }

    /// Forgets the threads in a forked child, which does not have them. Only their stacks remain.
    pub(crate) fn forget(self) {
        drop(self);
    }
}

/// A page for each thread. A touch of the page, after it was recorded, makes one of the threads
/// end.
#[derive(Debug)]
struct Bell {
    pages: UntouchedPages,
    /// For each page: true if it was rung and no thread has ended for it yet. Changed under the lock below. Both lie
    /// in memory that no snapshot protects, because threads that serve faults write them.
    rung: OwnWords<AtomicU8>,
    /// The number of threads that have not ended. Each receives one ring.
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

    /// Locks the number of listeners. Signals are blocked, because handler threads lock it, too.
    fn listeners<'a>(&'a self, _: &'a SignalsBlocked) -> MutexGuard<'a, usize> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rings. Returns when a thread has received the ring, or when there is no thread. Only one
    /// thread may call this at a time.
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

    /// Touches a page, which faults if it is untouched.
    fn touch(&self, index: usize) {
        let page = self.pages.start().as_ptr().wrapping_add(index * page_size());
        // SAFETY: a page of this process's own mapping, which is there until all threads have ended.
        unsafe { page.read_volatile() };
    }

    /// Lets the thread that touched a page continue. Returns true if the receiving thread must end.
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

    /// Ends a thread. After the last thread, the kernel handles touches.
    ///
    /// # Errors
    /// The kernel's error if it refuses a call.
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

/// The CPU of a handler thread. It is checked less often while it stays right. The thread is
/// pinned, because otherwise it would be woken on another idle CPU.
struct Following {
    /// The CPUs on which the thread may run, if there is a choice.
    allowed: Option<CpuSet>,
    watched: Option<Watched>,
    /// The number of faults until the next check, and the whole interval.
    left: u32,
    interval: u32,
}

/// The longest interval between checks, in faults. A check costs a few microseconds.
const LONGEST_INTERVAL: u32 = 15;

impl Following {
    fn new() -> Self {
        let allowed = affinity().ok().filter(|cpus| cpus.len() > 1);
        Self { allowed, watched: None, left: 0, interval: 0 }
    }

    /// Follows this thread after its fault was handled.
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

/// Handles faults until the bell rings.
///
/// # Errors
/// The kernel's error. It refuses the answer, a call of the handler, or the read of faults: the
/// descriptor was abandoned, another library closed it, or a system-call filter was installed.
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

/// Dropped by a thread that panics, or to which the kernel refuses a call. Threads that fault
/// afterwards must not wait for this thread, so everything is left to the kernel, the bell too. If
/// the kernel refuses even that, the descriptor is abandoned. Threads that are reading it keep it
/// open, so a fault of hugekit's own notifies one of them, which does the same.
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
