//! When a guest that has just answered can be saved.
//!
//! A VMM prints the last byte of an answer while KVM waits for the end of that output. KVM ends the
//! output when the virtual CPU runs again. A guest that is saved before that may be restored into a
//! triple fault if KVM has no hardware virtualization beneath it. The guest polls its serial port, so
//! its first virtual CPU uses more CPU time as soon as it runs again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Ticks of the kernel's clock, mostly of 10 ms. To end an output takes microseconds.
const TICKS: u64 = 2;

/// A running guest is given CPU time long before this.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Waits until the output of a running guest has ended: its first virtual CPU has run since.
pub fn await_end_of_output(pid: i32) -> io::Result<()> {
    let thread = find(pid)?;
    let (start, until) = (ticks(&thread)?, Instant::now() + LONGEST_WAIT);
    while ticks(&thread)? < start + TICKS {
        if Instant::now() > until {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the guest does not run"));
        }
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The folder of the thread that runs the first virtual CPU.
fn find(pid: i32) -> io::Result<PathBuf> {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?.path();
        // `fc_vcpu 0` of Firecracker, `vcpu0` of Cloud Hypervisor.
        let name = fs::read_to_string(thread.join("comm"))?;
        if name.contains("vcpu") && name.trim_end().ends_with('0') {
            return Ok(thread);
        }
    }
    Err(io::Error::other("no thread of the VMM is named as its first virtual CPU"))
}

/// CPU time that a thread has used, in ticks.
fn ticks(thread: &Path) -> io::Result<u64> {
    let stat = fs::read_to_string(thread.join("stat"))?;
    // The name, in parentheses, may have blanks.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let number = |index: usize| fields.split(' ').nth(index)?.parse::<u64>().ok();
    let (user, system) = (number(11), number(12));
    user.zip(system).map(|(user, system)| user + system).ok_or(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_thread_that_works_grows() {
        let thread = Path::new("/proc/thread-self");
        let start = ticks(thread).unwrap();
        while ticks(thread).unwrap() < start + TICKS {}
    }

    #[test]
    fn process_without_virtual_cpus_is_an_error() {
        let error = await_end_of_output(std::process::id() as i32).unwrap_err();
        assert!(error.to_string().contains("virtual CPU"), "{error}");
    }
}
