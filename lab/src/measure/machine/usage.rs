//! CPU time, faults and switches as `getrusage(2)` and the clocks count them.

use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Whose use is asked for.
#[derive(Clone, Copy, Debug)]
pub enum Who {
    ThisThread,
    ThisProcess,
    /// Children that have ended, and theirs that they waited for.
    EndedChildren,
}

#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub user: Duration,
    pub system: Duration,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
}

impl Usage {
    #[allow(unsafe_code)]
    pub fn of(who: Who) -> Self {
        let who = match who {
            Who::ThisThread => libc::RUSAGE_THREAD,
            Who::ThisProcess => libc::RUSAGE_SELF,
            Who::EndedChildren => libc::RUSAGE_CHILDREN,
        };
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: `usage` is writable and as large as the call expects; it fails for bad arguments only.
        unsafe { libc::getrusage(who, usage.as_mut_ptr()) };
        // SAFETY: the memory was zeroed, and zeroes are a valid `rusage`, as is what the call writes.
        let usage = unsafe { usage.assume_init() };
        let time = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec.unsigned_abs())
                + Duration::from_micros(time.tv_usec.unsigned_abs())
        };
        Self {
            user: time(usage.ru_utime),
            system: time(usage.ru_stime),
            minor_faults: usage.ru_minflt as u64,
            major_faults: usage.ru_majflt as u64,
            voluntary_switches: usage.ru_nvcsw as u64,
            involuntary_switches: usage.ru_nivcsw as u64,
        }
    }

    pub fn cpu(&self) -> Duration {
        self.user + self.system
    }
}

/// CPU time of all threads of this process.
pub fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("time spent is not negative")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_that_have_ended_have_taken_time() {
        let before = Usage::of(Who::EndedChildren).cpu();
        let status = std::process::Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"])
            .status();
        assert!(status.unwrap().success());
        assert!(Usage::of(Who::EndedChildren).cpu() > before);
    }
}
