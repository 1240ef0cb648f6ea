//! Another thread of the process that runs all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::measure::LabError;

/// It ends when dropped.
#[derive(Debug)]
pub struct Busy {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Turns of its loop after which the thread is running beside this one: its wake-up is over.
const TURNS: u64 = 1000;

impl Busy {
    pub fn new() -> Result<Self, LabError> {
        let (stop, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, turned) = (Arc::clone(&stop), Arc::clone(&turns));
        let run = move || {
            while !stopped.load(Ordering::Relaxed) {
                turned.fetch_add(1, Ordering::Relaxed);
                std::hint::spin_loop();
            }
        };
        let thread = std::thread::Builder::new().spawn(run).map_err(LabError::Thread)?;
        while turns.load(Ordering::Relaxed) < TURNS {
            std::hint::spin_loop();
        }
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it only runs");
        }
    }
}
