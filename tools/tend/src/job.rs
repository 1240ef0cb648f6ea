//! Work in a thread of its own, which its starter may abandon.
//!
//! A system call about another process may block for as long as that process wants. It needs the
//! process's memory map, or it waits until the process is not within `exec`. A process can delay
//! both while it waits for a file system that it serves itself. No handled signal ends such a call.
//! So these calls run in another thread than the tender's, and are abandoned if they last too long.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::thread::JoinHandleExt;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// A thread that has not run on a CPU for this long waits for the process. The rests of a pass are
/// much shorter. A collapse waits until a thread of the kernel has run on each CPU, on busy CPUs
/// for up to 2.4 s.
const STUCK_AFTER: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(crate) struct Job<T> {
    result: Receiver<T>,
    thread: Option<JoinHandle<()>>,
    /// The thread's CPU time when it last grew, and the time of that observation.
    progress: (Duration, Instant),
}

impl<T: Send + 'static> Job<T> {
    /// Starts `work` on `matter` in a new thread. If no thread can be started, returns `matter` in
    /// the error.
    pub(crate) fn start<M: Send + 'static>(
        matter: M,
        work: impl FnOnce(M) -> T + Send + 'static,
    ) -> Result<Self, Box<(M, io::Error)>> {
        let (hand_over, receive) = channel::<M>();
        let (finish, result) = channel();
        let run = move || {
            if let Ok(matter) = receive.recv() {
                // Who started it may not wait for it any more.
                let _ = finish.send(work(matter));
            }
        };
        match Builder::new().name("hugekit-tend".into()).spawn(run) {
            Err(error) => Err(Box::new((matter, error))),
            Ok(thread) => {
                hand_over.send(matter).unwrap_or_else(|_| unreachable!("the thread receives"));
                let progress = (Duration::ZERO, Instant::now());
                Ok(Self { result, thread: Some(thread), progress })
            }
        }
    }

    /// Returns the result of the work, if it comes within this time.
    pub(crate) fn wait(&mut self, at_most: Duration) -> Option<T> {
        match self.result.recv_timeout(at_most) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                let panicked = self.thread.take().and_then(|thread| thread.join().err());
                resume_unwind(panicked.expect("a thread without a result has panicked"))
            }
        }
    }

    /// Returns true if the thread seems to wait in the kernel.
    pub(crate) fn check_stuck(&mut self) -> bool {
        let now = self.thread.as_ref().and_then(cpu_time);
        if now.is_none_or(|now| now > self.progress.0) {
            self.progress = (now.unwrap_or_default(), Instant::now());
        }
        self.progress.1.elapsed() >= STUCK_AFTER
    }
}

/// Returns the thread's CPU time; `None` if the thread has ended.
#[allow(unsafe_code)]
fn cpu_time(thread: &JoinHandle<()>) -> Option<Duration> {
    let mut clock = MaybeUninit::<libc::clockid_t>::uninit();
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the handle was not joined, so its thread is one that the C library knows. Each call writes its result
    // before it returns 0, and the second one is made with a clock that the first has written.
    let time = unsafe {
        if libc::pthread_getcpuclockid(thread.as_pthread_t(), clock.as_mut_ptr()) != 0
            || libc::clock_gettime(clock.assume_init(), time.as_mut_ptr()) != 0
        {
            return None;
        }
        time.assume_init()
    };
    Some(Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;

    #[test]
    fn job_whose_thread_waits_is_stuck_and_ends_all_the_same() {
        let (end, wait) = channel::<()>();
        let mut waiting = Job::start(wait, |wait| wait.recv().is_err()).unwrap();
        while !waiting.check_stuck() {
            assert_eq!(waiting.wait(STUCK_AFTER / 50), None);
        }
        drop(end);
        assert_eq!(waiting.wait(Duration::MAX), Some(true));
    }

    #[test]
    fn job_whose_thread_rests_in_pieces_is_not_stuck() {
        let mut working = Job::start((), |()| {
            (0..STUCK_AFTER.as_millis() / 10).for_each(|_| sleep(Duration::from_millis(15)));
        })
        .unwrap();
        let was_stuck = |job: &mut Job<()>| job.check_stuck() && job.wait(Duration::ZERO).is_none();
        while working.wait(STUCK_AFTER / 50).is_none() {
            assert!(!was_stuck(&mut working));
        }
    }

    #[test]
    fn panic_of_the_work_is_a_panic_of_who_waits() {
        let mut job = Job::start((), |()| panic!("here")).unwrap();
        let waited = std::panic::AssertUnwindSafe(|| job.wait(Duration::MAX));
        assert!(std::panic::catch_unwind(waited).is_err());
    }
}
