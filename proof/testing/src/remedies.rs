//! Errors as programs print them.

use std::error::Error;

use hugekit::error_chain;

/// Checks that `{:#}` of anyhow prints the error's remedy once, and that the chain for programs that
/// print the remedy themselves leaves it out.
pub fn prints_remedy_once(
    error: impl Error + Send + Sync + 'static,
    remedy: Option<impl Into<String>>,
) {
    let remedy = remedy.unwrap_or_else(|| panic!("{error:?} has no remedy")).into();
    let without = error_chain(&error).to_string();
    assert!(!without.contains(&remedy) && !without.contains("remedy"), "{without}");
    let whole = format!("{:#}", anyhow::Error::from(error).context("the outer error"));
    assert_eq!(whole.matches(&format!(" (remedy: {remedy})")).count(), 1, "{whole}");
    assert_eq!(whole.matches(&remedy).count(), 1, "{whole}");
}
