//! A line of the doctor's report, and the words that build one.

use hugekit::error_chain;
use hugekit_machine::Error;
use serde::Serialize;

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The group it belongs to.
    pub topic: Topic,
    /// Its subject.
    pub name: String,
    /// The fact that was found, or why none was.
    pub value: String,
    /// Its meaning.
    pub verdict: Verdict,
    /// A command for root, or what to do where no command can do it.
    pub remedy: Option<String>,
}

/// The meaning of a finding for hugekit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing to do.
    Ok,
    /// Worth knowing; nothing is lost.
    Note,
    /// Works in part, or slower.
    Limited,
    /// Does not work.
    Missing,
    /// Could not be found out; the value says why.
    Unknown,
}

impl Verdict {
    /// Returns the word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Limited => "limited",
            Self::Missing => "missing",
            Self::Unknown => "unknown",
        }
    }
}

/// The subject of a group of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Topic(pub &'static str);

impl Topic {
    pub(crate) fn ok(self, name: impl Into<String>, value: impl Into<String>) -> Line {
        self.line(Verdict::Ok, name, value)
    }

    pub(crate) fn note(self, name: impl Into<String>, value: impl Into<String>) -> Line {
        self.line(Verdict::Note, name, value)
    }

    pub(crate) fn limited(self, name: impl Into<String>, value: impl Into<String>) -> Line {
        self.line(Verdict::Limited, name, value)
    }

    pub(crate) fn missing(self, name: impl Into<String>, value: impl Into<String>) -> Line {
        self.line(Verdict::Missing, name, value)
    }

    pub(crate) fn unknown(self, name: impl Into<String>, why: impl ToString) -> Line {
        self.line(Verdict::Unknown, name, why.to_string())
    }

    /// Returns a line about a fact, or about why it is not known.
    pub(crate) fn about<T>(
        self,
        name: &str,
        fact: &Result<T, Error>,
        judge: impl FnOnce(&T) -> Line,
    ) -> Line {
        fact.as_ref().map_or_else(|error| self.unknown(name, error_chain(error)), judge)
    }

    fn line(self, verdict: Verdict, name: impl Into<String>, value: impl Into<String>) -> Line {
        Line { topic: self, name: name.into(), value: value.into(), verdict, remedy: None }
    }
}

impl Line {
    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}
