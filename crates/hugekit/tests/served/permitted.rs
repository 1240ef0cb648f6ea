//! Whether faults may be served at all.

use hugekit::machine::Root;
use hugekit::machine::userfaultfd::{Userfaultfd, Uses};

/// Why this process may serve none, if so.
pub(crate) fn lacking() -> Option<String> {
    let userfaultfd = Userfaultfd::read(&Root::default()).unwrap();
    let none = userfaultfd.uses == Uses::None;
    none.then(|| "userfaultfd is not permitted".to_owned())
}
