//! Whether faults may be served, and by threads.
use hugekit::fault::FaultMode;
use hugekit_machine::Root;
use hugekit_machine::userfaultfd::{Userfaultfd, Uses};
use libtest_mimic::Trial;

use super::trials;

fn uses() -> Uses {
    Userfaultfd::read(&Root::default()).unwrap().uses
}

/// Why this process may serve none, if so.
pub fn lacking() -> Option<String> {
    (uses() == Uses::None).then(|| "userfaultfd is not permitted".to_owned())
}

/// Why no thread may serve another's, if so: it would be told of system calls' faults, too, which takes more.
pub fn lacking_for_threads() -> Option<String> {
    let some = matches!(uses(), Uses::None | Uses::UserModeOnly);
    some.then(|| "only faults of user mode may be served, and those in place".to_owned())
}

/// Why faults may not be served so, if so.
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

/// Those that this process may use.
pub fn those_of(fault_modes: impl IntoIterator<Item = FaultMode>) -> Vec<FaultMode> {
    let permitted = |mode: &FaultMode| lacking_for(*mode).is_none();
    fault_modes.into_iter().filter(permitted).collect()
}

/// Those that this process may use; says of the others that the calling test, one of the standard harness, skips them.
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
