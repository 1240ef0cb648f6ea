//! CPU time of the calling thread.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
}
