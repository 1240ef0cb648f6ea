//! Processes that tests start, and wait for.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// On a busy machine a program takes seconds to start.
const PATIENCE: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(5);

/// A process that is killed when it is dropped.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Deref for Killed {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Killed {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

/// Sends a process a signal.
///
/// # Panics
/// It has ended, or is another user's.
pub fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Waits until the check succeeds, for a minute at most. Returns false if it does not.
pub fn happens(mut check: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !check() {
        if began.elapsed() >= PATIENCE {
            return false;
        }
        thread::sleep(PAUSE);
    }
    true
}

/// Waits until a process catches or blocks a signal, or has ended. Before that, the signal kills it.
///
/// # Panics
/// It still does not after a minute.
pub fn wait_for_handler(pid: u32, signal: i32) {
    let is_handled = || {
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
        let mask = |name: &str| {
            let mask = status.lines().find_map(|line| line.strip_prefix(name));
            mask.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap())
        };
        let has_ended = status.contains("State:\tZ");
        has_ended || (mask("SigCgt:") | mask("SigBlk:")) >> (signal - 1) & 1 == 1
    };
    assert!(happens(is_handled), "process {pid} does not handle signal {signal}");
}
