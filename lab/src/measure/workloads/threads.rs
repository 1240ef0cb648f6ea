//! Threads that may be refused: a limit on threads, processes or addresses is an error, not a panic.

use std::thread::{Builder, Scope, ScopedJoinHandle};

use crate::measure::LabError;

/// Does [`Scope::spawn`], and returns an error if there is no thread.
pub fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, LabError> {
    Builder::new().spawn_scoped(scope, work).map_err(LabError::Thread)
}
