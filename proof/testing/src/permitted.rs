//! Whether faults may be served, and by threads.
use hugekit::fault::FaultMode;
use hugekit_machine::Root;
use hugekit_machine::userfaultfd::{Userfaultfd, Uses};
use libtest_mimic::Trial;

use super::trials;

fn uses() -> Uses {
    Userfaultfd::read(&Root::default()).unwrap().uses
}

/// Returns the reason if this process may serve no faults.
pub fn lacking() -> Option<String> {
    (uses() == Uses::None).then(|| "userfaultfd is not permitted".to_owned())
}

/// Returns the reason if no thread may serve another thread's faults: it would also get the faults of system calls,
/// which needs more privilege.
pub fn lacking_for_threads() -> Option<String> {
    let some = matches!(uses(), Uses::None | Uses::UserModeOnly);
    some.then(|| "only faults of user mode may be served, and those in place".to_owned())
}

/// Returns the reason if faults may not be served in this mode.
pub fn lacking_for(fault_mode: FaultMode) -> Option<String> {
    match fault_mode {
        FaultMode::Threaded { .. } => lacking_for_threads(),
        _ => lacking(),
    }
}

/// In place, and by a thread: those that this process may use. One that it may not use is skipped with its reason by
/// the tests that exist once for each.
pub fn fault_modes() -> Vec<FaultMode> {
    those_of([FaultMode::InPlace, FaultMode::Threaded { threads: 1 }])
}

/// Returns the modes that this process may use.
pub fn those_of(fault_modes: impl IntoIterator<Item = FaultMode>) -> Vec<FaultMode> {
    let permitted = |mode: &FaultMode| lacking_for(*mode).is_none();
    fault_modes.into_iter().filter(permitted).collect()
}

/// Returns the modes that this process may use. For each other mode, prints that the calling test, which is one of the
/// standard harness, skips it.
pub fn usable(fault_modes: &[FaultMode]) -> Vec<FaultMode> {
    for mode in fault_modes {
        if let Some(reason) = lacking_for(*mode) {
            trials::skipped(reason);
        }
    }
    those_of(fault_modes.iter().copied())
}

/// The tests, all of them skipped if this process may serve no faults.
pub fn or_skipped(tests: Vec<Trial>) -> Vec<Trial> {
    let lacking = lacking();
    tests.into_iter().map(|test| trials::unless_lacking(test, lacking.as_deref())).collect()
}

/// Skips the test where this process may not serve faults so. Only in the thread that [`trials::completion`] runs the
/// test in.
pub fn need(fault_mode: FaultMode) {
    if let Some(reason) = lacking_for(fault_mode) {
        trials::skip(reason);
    }
}
