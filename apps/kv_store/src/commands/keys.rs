//! Keys: whether they are there, which there are, and that they go.

use super::{After, Database, NO_INTEGER, Outcome, SYNTAX, count, done};
use crate::glob;
use crate::resp::{Reply, number};

/// Keys that a step of SCAN looks at, unless it is told.
const STEP: usize = 10;

/// Keys that a step of SCAN looks at, whatever it is told.
const LONGEST_STEP: usize = 100_000;

pub(super) fn del(database: &mut Database, keys: &[&[u8]], reply: &mut Reply) -> Outcome {
    let now = database.now;
    count(reply, keys.iter().filter(|key| database.store.remove(key, now)).count())
}

pub(super) fn exists(database: &mut Database, keys: &[&[u8]], reply: &mut Reply) -> Outcome {
    let now = database.now;
    count(reply, keys.iter().filter(|key| database.store.get(key, now).is_some()).count())
}

/// All values are strings.
pub(super) fn type_of(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let there = database.store.get(arguments[0], database.now).is_some();
    reply.simple(if there { "string" } else { "none" });
    Ok(After::Next)
}

pub(super) fn keys(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let (pattern, now) = (arguments[0], database.now);
    let found = |key: &[u8]| glob::matches(pattern, key);
    let mut matching = 0;
    database.store.scan(0, usize::MAX, now, |key| matching += usize::from(found(key)));
    reply.array(matching);
    database.store.scan(0, usize::MAX, now, |key| {
        if found(key) {
            reply.bulk(key);
        }
    });
    Ok(After::Next)
}

pub(super) fn scan(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let cursor = cursor(arguments[0]).ok_or("ERR invalid cursor")?;
    let filter = Filter::read(&arguments[1..])?;
    let mut keys = Vec::new();
    let next = database.store.scan(cursor, filter.step, database.now, |key| {
        if filter.takes(key) {
            keys.push(key);
        }
    });
    reply.array(2);
    reply.bulk(next.to_string().as_bytes());
    reply.array(keys.len());
    keys.into_iter().for_each(|key| reply.bulk(key));
    Ok(After::Next)
}

/// A cursor is read as strtoul(3) reads it, as in redis: `-1` is the last number, and no digits at all are 0.
fn cursor(bytes: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(bytes.split(|&byte| byte == 0).next()?).ok()?;
    match text.strip_prefix('-') {
        None if text.is_empty() => Some(0),
        Some(digits) if !digits.starts_with('+') => digits.parse().ok().map(usize::wrapping_neg),
        _ => text.parse().ok(),
    }
}

/// What comes behind the cursor in a SCAN.
struct Filter<'a> {
    pattern: Option<&'a [u8]>,
    /// Whether strings are asked for, which all values are.
    strings: bool,
    step: usize,
}

impl<'a> Filter<'a> {
    fn read(words: &[&'a [u8]]) -> Result<Self, String> {
        let mut filter = Self { pattern: None, strings: true, step: STEP };
        for pair in words.chunks(2) {
            let &[word, value] = pair else { return Err(SYNTAX.to_owned()) };
            match word.to_ascii_uppercase().as_slice() {
                b"MATCH" => filter.pattern = Some(value),
                b"TYPE" => filter.strings = value.eq_ignore_ascii_case(b"string"),
                b"COUNT" => {
                    let step = number(value).ok_or(NO_INTEGER)?;
                    let step = usize::try_from(step).ok().filter(|&step| step > 0).ok_or(SYNTAX)?;
                    filter.step = step.min(LONGEST_STEP);
                }
                _ => return Err(SYNTAX.to_owned()),
            }
        }
        Ok(filter)
    }

    fn takes(&self, key: &[u8]) -> bool {
        self.strings && self.pattern.is_none_or(|pattern| glob::matches(pattern, key))
    }
}

pub(super) fn dbsize(database: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    count(reply, database.store.len())
}

pub(super) fn flushall(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let is_known =
        |word: &&[u8]| word.eq_ignore_ascii_case(b"SYNC") || word.eq_ignore_ascii_case(b"ASYNC");
    if arguments.len() > 1 || !arguments.iter().all(is_known) {
        return Err(SYNTAX.to_owned());
    }
    database.store.clear();
    done(reply)
}
