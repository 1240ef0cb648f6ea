//! SIGUSR1 to every thread of the process, a thousand times a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) const PERIOD: Duration = Duration::from_millis(1);

/// Periods after which new threads are looked for.
const LOOK_AGAIN: u32 = 8;

/// Signals to every thread, until it is dropped.
#[derive(Debug)]
pub struct Storm {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Storm {
    #[must_use]
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        Self { stop, thread: Some(std::thread::spawn(move || blow(&stopped))) }
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().map(JoinHandle::join);
    }
}

fn blow(stop: &AtomicBool) {
    // SAFETY: neither has a precondition.
    let (process, own) = unsafe { (libc::getpid(), libc::gettid()) };
    let mut threads = Vec::new();
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        if round % LOOK_AGAIN == 0 {
            threads = threads_of(process);
        }
        for &thread in threads.iter().filter(|&&thread| thread != own) {
            // SAFETY: a signal to a thread of this process, or to none.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
        }
        std::thread::sleep(PERIOD);
    }
}

/// The threads that a process has at this moment.
#[must_use]
pub fn threads_of(process: i32) -> Vec<i32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect()
}
