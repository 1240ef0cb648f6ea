//! The time that a process waits for CPUs while the tender works, and the resulting share of a CPU.

use std::time::{Duration, Instant};

use crate::options::TendOptions;
use crate::share::Share;
use hugekit_machine::processes::ProcessFolder;

/// The length of a window. In this time a process wakes several times, and several ranges are
/// collapsed.
const WINDOW: Duration = Duration::from_millis(50);

/// Reading thousands of threads lasts long: a window is this many times as long.
const READING: u32 = 50;

/// The windows of a pass.
#[derive(Debug)]
pub(crate) struct Waits {
    share: Share,
    /// The start of the window, and the time that the process had waited for CPUs until then.
    began: Option<(Instant, Duration)>,
    window: Duration,
}

impl Waits {
    /// Makes the windows of a pass. If the kernel does not count waits, the share stays at its
    /// least value.
    pub(crate) fn new(options: &TendOptions, process: &ProcessFolder) -> Self {
        let mut waits = Self { share: Share::new(options), began: None, window: Duration::ZERO };
        waits.begin(process);
        waits
    }

    pub(crate) fn share(&mut self, process: &ProcessFolder) -> f64 {
        if let Some((began, before)) = self.began
            && began.elapsed() >= self.window
        {
            let time = began.elapsed();
            self.begin(process);
            if let Some((_, now)) = self.began {
                let waited = now.saturating_sub(before).as_secs_f64() / time.as_secs_f64();
                self.share = self.share.after(waited);
            }
        }
        self.share.now()
    }

    fn begin(&mut self, process: &ProcessFolder) {
        let reading = Instant::now();
        let waited = process.waited_for_cpus();
        self.window = WINDOW.max(reading.elapsed() * READING);
        self.began = waited.map(|waited| (Instant::now(), waited));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use hugekit_testing::trials::skipped;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;

    /// Returns the first CPU that this thread may use.
    fn one_cpu() -> CpuSet {
        let allowed = sched_getaffinity(None).unwrap();
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).unwrap());
        one
    }

    #[test]
    fn waits_of_threads_that_share_a_cpu_are_counted() {
        let own = ProcessFolder::open(std::process::id() as i32).unwrap();
        let Some(before) = own.waited_for_cpus() else {
            skipped("this kernel does not count waits for CPUs (CONFIG_SCHED_INFO)");
            return;
        };
        let (one, stop) = (one_cpu(), AtomicBool::new(false));
        thread::scope(|scope| {
            let spin = || {
                sched_setaffinity(None, &one).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            let threads = [scope.spawn(spin), scope.spawn(spin)];
            let hangs = Instant::now() + Duration::from_secs(20);
            while own.waited_for_cpus() == Some(before) && Instant::now() < hangs {
                thread::sleep(Duration::from_millis(1));
            }
            let waited = own.waited_for_cpus();
            stop.store(true, Ordering::Relaxed);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(waited > Some(before));
        });
    }
}
