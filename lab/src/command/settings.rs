//! Settings of the machine that a killed `hugekit lab --setup` has left.

use hugekit::error_chain;
use hugekit_machine::Root;

use hugekit_terminal::text::say;

/// Puts them back before anything is measured by them, and says so.
pub(super) fn put_back() {
    match hugekit_lab::put_back(&Root::default()) {
        Ok(notes) => notes.iter().for_each(|note| say(note)),
        Err(error) => say(&format!("warning: {}", error_chain(&error))),
    }
}
