//! Whether faults may be served, and by threads.
use hugekit_machine::Root;
use hugekit_machine::userfaultfd::{Userfaultfd, Uses};

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
