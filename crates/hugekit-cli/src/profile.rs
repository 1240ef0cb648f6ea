//! The stored profile, which commands that measure go by.

use hugekit::Profile;
use hugekit::profile::ProfileError;

use crate::text::say;

/// Goes by the profile that is stored for this user. One that is of no use is said and returned,
/// and the command goes on with what is built in.
pub(crate) fn go_by_stored() -> Option<ProfileError> {
    let loaded = Profile::load().inspect_err(|problem| say(&format!("warning: {problem}")));
    // One that was installed before came from here, too.
    loaded.map(|loaded| loaded.install().unwrap_or_default()).err()
}
