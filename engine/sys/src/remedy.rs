//! The remedy at the end of an error's `Display`.
//!
//! The crate anyhow prints errors and their sources by `{}` only, so the remedy must be a part of
//! this text. A program that prints the remedy separately leaves it out of the message: it prints
//! the error by [`error_chain`](crate::error_chain), which drops everything from [`BEGIN`] on.

use std::fmt::{self, Display, Write};

/// The beginning of a remedy in a message. [`Remedy`] writes it in one piece.
const BEGIN: &str = " (remedy: ";

/// The end of an error's `Display`: ` (remedy: ...)`, or nothing if no remedy is known.
///
/// An enum with a method `remedy` ends each such message by `Remedy(self.remedy())`. A message
/// without it, or a transparent one, leaves the remedy to its source.
#[derive(Clone, Copy, Debug)]
pub struct Remedy<T>(pub Option<T>);

impl<T: Display> Display for Remedy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(remedy) = &self.0 else { return Ok(()) };
        f.write_str(BEGIN)?;
        write!(f, "{remedy})")
    }
}

/// Writes an error's `Display` up to its remedy. Allocates nothing: the heap may be exhausted.
pub(crate) struct WithoutRemedy<'a, 'b> {
    to: &'a mut fmt::Formatter<'b>,
    at_remedy: bool,
}

impl<'a, 'b> WithoutRemedy<'a, 'b> {
    pub(crate) fn new(to: &'a mut fmt::Formatter<'b>) -> Self {
        Self { to, at_remedy: false }
    }
}

impl Write for WithoutRemedy<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.at_remedy |= text == BEGIN;
        if self.at_remedy { Ok(()) } else { self.to.write_str(text) }
    }
}
