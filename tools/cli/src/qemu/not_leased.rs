//! Why QEMU starts without leases.

use std::fmt;

use hugekit::error_chain;
use hugekit_lease::LeaseError;

/// The reason why an object gets no lease, and what an administrator can do about it.
#[derive(Debug, PartialEq)]
pub(super) struct NotLeased {
    reason: String,
    remedy: Option<String>,
}

impl NotLeased {
    /// Returns a reason without a remedy.
    pub(super) fn because(reason: String) -> Self {
        Self { reason, remedy: None }
    }

    /// Returns the same with a remedy.
    pub(super) fn remedied(self, remedy: &str) -> Self {
        Self { remedy: Some(remedy.to_owned()), ..self }
    }

    /// Returns the reasons of several brokers, with another beginning.
    pub(super) fn of_all(beginning: &str, all: Vec<Self>) -> Self {
        let reasons: Vec<_> = all.iter().map(|one| one.reason.as_str()).collect();
        let reason = format!("{beginning}: {}", reasons.join("; "));
        let remedies: Vec<_> = all.iter().filter_map(|one| one.remedy.as_deref()).collect();
        let remedy = (!remedies.is_empty()).then(|| remedies.join("; "));
        Self { reason, remedy }
    }

    /// Returns the same with a longer reason.
    pub(super) fn and(self, end: &str) -> Self {
        Self { reason: self.reason + end, ..self }
    }
}

impl From<LeaseError> for NotLeased {
    fn from(error: LeaseError) -> Self {
        Self { reason: error_chain(&error).to_string(), remedy: error.remedy() }
    }
}

/// Prints one line. The remedy is its last sentence.
impl fmt::Display for NotLeased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        self.remedy.iter().try_for_each(|remedy| write!(f, ". Remedy: {remedy}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_of_all_brokers_are_the_last_sentence() {
        let one = |reason: &str, remedy: Option<&str>| NotLeased {
            reason: reason.to_owned(),
            remedy: remedy.map(str::to_owned),
        };
        let all = vec![one("a", Some("do x")), one("b", None), one("c", Some("do y"))];
        let line = NotLeased::of_all("no lease", all).and("; QEMU starts").to_string();
        assert_eq!(line, "no lease: a; b; c; QEMU starts. Remedy: do x; do y");
        assert_eq!(NotLeased::because("a".to_owned()).to_string(), "a");
    }
}
