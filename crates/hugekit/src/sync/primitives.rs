//! Where locks and atomics come from: std, and loom where loom explores every interleaving.

#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(not(loom))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicUsize, Ordering};
#[cfg(loom)]
pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
