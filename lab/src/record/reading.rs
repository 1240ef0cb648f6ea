//! Reading a record: of this version, whole, and fit to be computed with.
//!
//! The version is looked at first. What a newer lab wrote may look damaged to this one and is not.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hugekit_machine::plain;
use serde::Deserialize;
use serde_json::Value;

use crate::record::{Experiment, KIND, Record, VERSION};

/// The reason why there is no record to read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file could not be read.
    #[error("cannot read {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// The system's word.
        #[source]
        cause: io::Error,
    },
    /// The file's content is no record.
    #[error("{path} cannot be used")]
    Content {
        /// Which file.
        path: PathBuf,
        /// The reason.
        #[source]
        cause: ContentError,
    },
}

/// The reason why a text is not a record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContentError {
    /// Something else, or so damaged that it does not even say what it is.
    #[error("it is no record of the lab: it does not say `\"schema\": \"{KIND}…\"`")]
    NoRecord,
    /// Written by a newer lab.
    #[error(
        "it is a record of version {found}, and this hugekit reads version {VERSION}: update hugekit"
    )]
    Newer {
        /// Its version.
        found: u32,
    },
    /// A record that is not whole.
    #[error("the record is damaged")]
    Damaged(#[source] serde_json::Error),
    /// A record that contradicts itself.
    #[error("the record is damaged: {0}")]
    Absurd(String),
}

/// The least that every version has.
#[derive(Deserialize)]
struct Header {
    schema: String,
}

impl Record {
    /// Reads a record from a file.
    ///
    /// # Errors
    /// [`ReadError`] with the path, if there is none or none that can be used.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let text = fs::read_to_string(path)
            .map_err(|cause| ReadError::File { path: path.to_owned(), cause })?;
        let content = |cause| ReadError::Content { path: path.to_owned(), cause };
        Self::parse(&text).map_err(content)
    }

    /// Takes a record from its JSON.
    ///
    /// # Errors
    /// [`ContentError`] if it is none, is newer than this lab, or is damaged.
    pub fn parse(text: &str) -> Result<Self, ContentError> {
        match version(text) {
            None => Err(ContentError::NoRecord),
            Some(found) if found > VERSION => Err(ContentError::Newer { found }),
            Some(_) => {
                let value = serde_json::from_str(text).map_err(ContentError::Damaged)?;
                let value = plain_value(value);
                let record: Self = serde_json::from_value(value).map_err(ContentError::Damaged)?;
                record.experiments.iter().try_for_each(check)?;
                Ok(record)
            }
        }
    }
}

/// The version that a text claims to be. What is cut off at its end still says so at its beginning.
fn version(text: &str) -> Option<u32> {
    let claimed = match serde_json::from_str::<Header>(text) {
        Ok(header) => header.schema,
        Err(_) => text.split('"').skip_while(|&word| word != "schema").nth(2)?.to_owned(),
    };
    claimed.strip_prefix(KIND)?.parse().ok()
}

/// The rest of the lab relies on this: samples to take a median of, and numbers that are finite,
/// which JSON guarantees, and above zero where they are divided by.
fn check(experiment: &Experiment) -> Result<(), ContentError> {
    let absurd = |what: String| Err(ContentError::Absurd(what));
    for case in &experiment.cases {
        if case.samples.is_empty() {
            return absurd(format!("{} has no samples", case.id));
        }
        if case.samples.iter().any(|&sample| !sample.is_finite() || sample < 0.0) {
            return absurd(format!("{} has a sample that is none", case.id));
        }
    }
    Ok(())
}

/// [`plain`] strings in a document, names of fields included.
fn plain_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(plain(&text)),
        Value::Array(values) => Value::Array(values.into_iter().map(plain_value).collect()),
        Value::Object(fields) => Value::Object(
            fields.into_iter().map(|(name, value)| (plain(&name), plain_value(value))).collect(),
        ),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Case, Machine, Unit};

    fn record() -> Record {
        let samples = vec![1.5, 2.5, 2.0];
        let case = Case::new("stores/memset/4KiB", Unit::GibPerSecond, samples);
        let experiment = Experiment { cases: vec![case], ..Experiment::new("stores") };
        Record {
            schema: format!("{KIND}{VERSION}"),
            made: "2026-11-21T10:35:12Z".parse().unwrap(),
            command: "hugekit lab".into(),
            machine: Machine::default(),
            uncontrolled: vec!["the host".into()],
            experiments: vec![experiment],
        }
    }

    #[test]
    fn every_string_of_a_document_is_cleaned() {
        let value = serde_json::json!({"a\u{1b}": ["\u{1b}", {"b": "\u{9b}"}, 1.5, null]});
        let text = serde_json::to_string(&plain_value(value)).unwrap();
        assert_eq!(text, "{\"a\u{fffd}\":[\"\u{fffd}\",{\"b\":\"\u{fffd}\"},1.5,null]}");
    }

    #[test]
    fn what_was_written_is_read() {
        let text = serde_json::to_string_pretty(&record()).unwrap();
        assert_eq!(Record::parse(&text).unwrap(), record());
        assert!(text.contains("\"median\": 2.0"), "{text}");
    }

    #[test]
    fn no_string_of_a_record_acts_on_a_terminal() {
        let escape = "\\u001b]0;owned\\u0007\\u009b31m\u{202e}";
        let text = include_str!("../../tests/data/record.json");
        for word in ["\"GiB/s\"", "\"AMD EPYC\"", "\"stores\""] {
            assert!(text.contains(word), "{word}");
            let evil = text.replace(word, &format!("\"{escape}\""));
            let said = match Record::parse(&evil) {
                Ok(record) => format!("{record:?}"),
                Err(error) => hugekit::error_chain(&error).to_string(),
            };
            assert!(
                said.contains("]0;owned") && !said.contains(hugekit_machine::is_unprintable),
                "{said}"
            );
            assert!(!said.contains("\\u{1b}") && !said.contains("\\u{9b}"), "{said}");
        }
    }

    #[test]
    fn a_newer_record_is_called_newer_whatever_it_holds() {
        let error = Record::parse(r#"{"schema": "hugekit-lab/99", "new": {}}"#).unwrap_err();
        assert!(matches!(error, ContentError::Newer { found: 99 }), "{error}");
        assert!(error.to_string().contains("reads version 1"), "{error}");
    }

    #[test]
    fn wherever_a_record_is_cut_off_it_is_damaged() {
        let text = serde_json::to_string(&record()).unwrap();
        let header = text.find("made").unwrap();
        for end in header..text.len() {
            let error = Record::parse(&text[..end]).unwrap_err();
            assert!(matches!(error, ContentError::Damaged(_)), "{end}: {error}");
        }
    }

    #[test]
    fn something_else_is_no_record() {
        for text in ["", "[]", "{}", "null", r#"{"schema": "hugekit-doctor/1"}"#, "\u{0}"] {
            let error = Record::parse(text).unwrap_err();
            assert!(matches!(error, ContentError::NoRecord), "{text}: {error}");
        }
    }

    #[test]
    fn a_case_without_samples_is_damage() {
        let text = serde_json::to_string(&record()).unwrap();
        for samples in ["[]", "[1.0,-2.0]"] {
            let text = text.replace("[1.5,2.5,2.0]", samples);
            let error = Record::parse(&text).unwrap_err();
            assert!(matches!(error, ContentError::Absurd(_)), "{error}");
        }
    }
}
