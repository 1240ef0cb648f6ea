//! Commands, sockets and requests of children, with patterns for their numbers.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use hugekit_terminal::outcome::UsageError;
use hugekit_vm::checkpoint::ChildOptions;
use serde_json::{Map, Value};

/// Stands for the number of a child, and for the socket of its API.
const NUMBER: &str = "{}";
const API: &str = "{api}";

/// The options of all children, from 1 on.
pub(crate) struct ChildPattern<'a> {
    pub(crate) api: ChildApis<'a>,
    /// Fields to add to the request that restores a child.
    pub(crate) load: Option<&'a str>,
    pub(crate) command: &'a [OsString],
}

/// The sockets of the children's APIs.
pub(crate) enum ChildApis<'a> {
    /// `SOCKET.N`
    Beside(&'a Path),
    /// With a pattern for the number.
    Named(&'a OsStr),
}

impl<'a> ChildApis<'a> {
    /// # Errors
    /// Several children would have one socket. `option` names the pattern.
    pub(crate) fn named(option: &str, pattern: &'a OsStr, count: u16) -> Result<Self, UsageError> {
        if count > 1 && !has(pattern, NUMBER) {
            return Err(UsageError(format!("{option} must have {NUMBER} for the number")));
        }
        Ok(Self::Named(pattern))
    }

    fn of(&self, number: &str) -> PathBuf {
        match self {
            Self::Beside(socket) => {
                let mut path = socket.as_os_str().to_owned();
                path.push(format!(".{number}"));
                path.into()
            }
            Self::Named(pattern) => replaced(pattern, NUMBER, OsStr::new(number)).into(),
        }
    }
}

impl ChildPattern<'_> {
    /// # Errors
    /// A pattern is wrong.
    pub(crate) fn children(&self, count: u16) -> Result<Vec<ChildOptions>, UsageError> {
        (1..=count).map(|number| self.child(&number.to_string())).collect()
    }

    fn child(&self, number: &str) -> Result<ChildOptions, UsageError> {
        let api = self.api.of(number);
        let in_command = |argument: &OsString| {
            let numbered = replaced(argument, NUMBER, OsStr::new(number));
            replaced(&numbered, API, api.as_os_str())
        };
        let command: Vec<OsString> = self.command.iter().map(in_command).collect();
        if !self.command.iter().any(|argument| has(argument, API)) {
            return Err(UsageError(format!("the command must have {API} in its arguments")));
        }
        Ok(ChildOptions { command, load: self.load(number)?, api })
    }

    fn load(&self, number: &str) -> Result<Map<String, Value>, UsageError> {
        let Some(load) = self.load else { return Ok(Map::new()) };
        serde_json::from_str(&load.replace(NUMBER, number))
            .map_err(|error| UsageError(format!("--load is not a JSON object: {error}")))
    }
}

fn has(text: &OsStr, pattern: &str) -> bool {
    find(text.as_bytes(), pattern).is_some()
}

fn find(text: &[u8], pattern: &str) -> Option<usize> {
    text.windows(pattern.len()).position(|part| part == pattern.as_bytes())
}

/// The text with another one in each place of a pattern.
fn replaced(text: &OsStr, pattern: &str, by: &OsStr) -> OsString {
    let (mut rest, mut all) = (text.as_bytes(), Vec::new());
    while let Some(at) = find(rest, pattern) {
        all.extend_from_slice(&rest[..at]);
        all.extend_from_slice(by.as_bytes());
        rest = &rest[at + pattern.len()..];
    }
    all.extend_from_slice(rest);
    OsString::from_vec(all)
}
