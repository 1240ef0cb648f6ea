//! Sleeping on a word of memory. Async-signal-safe, which std's locks do not promise.

use std::sync::atomic::AtomicU32;

use rustix::thread::futex::{self, Flags};

use super::injection::{Call, pass};

/// Sleeps while the word is `expected`, until somebody wakes it; or not at all, or shorter: look again.
pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    if pass(Call::FutexWait).is_err() {
        return;
    }
    let _ = futex::wait(word, Flags::PRIVATE, expected, None);
}

/// Wakes all who sleep on the word.
pub(crate) fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::PRIVATE, i32::MAX as u32);
}
