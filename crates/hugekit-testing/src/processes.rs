//! Processes that tests start, and wait for.

use std::ops::{Deref, DerefMut};
use std::process::Child;
use std::thread;
use std::time::Duration;

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

/// Whether it happens within ten seconds.
pub fn happens(mut check: impl FnMut() -> bool) -> bool {
    (0..2000).any(|_| {
        thread::sleep(Duration::from_millis(5));
        check()
    })
}
