//! Keys: which there are, when they expire, and that they go.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{Glob, GlobMatcher};

use super::{Call, Database, Outcome, SYNTAX, integer, is};

pub(super) fn run(call: &mut Call<'_>, name: &str, words: &[Vec<u8>]) -> Outcome {
    let (store, now) = (&mut call.database.store, call.database.now);
    let number = match (name, words) {
        ("del" | "unlink", [_, ..]) => words.iter().filter(|key| store.remove(key, now)).count(),
        ("exists", [_, ..]) => words.iter().filter(|key| store.get(key, now).is_some()).count(),
        ("dbsize", []) => store.len,
        ("persist", [key]) => {
            let expires = store.get(key, now).is_some_and(|entry| entry.expires.is_some());
            (expires && store.set_expiry(key, None, now)).into()
        }
        ("expire", [key, time]) => expire(call.database, key, integer(time)?, 1000)?.into(),
        ("pexpire", [key, time]) => expire(call.database, key, integer(time)?, 1)?.into(),
        _ => return show(call, name, words),
    };
    call.reply.integer(number as i64);
    Ok(true)
}

fn show(call: &mut Call<'_>, name: &str, words: &[Vec<u8>]) -> Outcome {
    let (store, now) = (&mut call.database.store, call.database.now);
    match (name, words) {
        ("ttl", [key]) => call.reply.integer(time_left(call.database, key, 1000)),
        ("pttl", [key]) => call.reply.integer(time_left(call.database, key, 1)),
        ("type", [key]) if store.get(key, now).is_some() => call.reply.simple("string"),
        ("type", [_]) => call.reply.simple("none"),
        ("flushall" | "flushdb", []) => {
            store.clear();
            call.reply.ok();
        }
        ("keys", [pattern]) => {
            let (keys, _) = find(call.database, 0, usize::MAX, &Pattern::new(pattern)?);
            call.reply.array(keys.len());
            keys.iter().for_each(|key| call.reply.bulk(key));
        }
        ("scan", [cursor, options @ ..]) => scan(call, cursor, options)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// In units of so many milliseconds; -1 for a key that stays, -2 for one that is not there.
fn time_left(database: &mut Database, key: &[u8], unit: u64) -> i64 {
    let now = database.now;
    match database.store.get(key, now) {
        None => -2,
        Some(entry) => entry.expires.map_or(-1, |at| ((at - now + unit / 2) / unit) as i64),
    }
}

/// Returns whether the key was there.
fn expire(database: &mut Database, key: &[u8], time: i64, unit: i64) -> Result<bool, String> {
    let now = database.now;
    let at = time.checked_mul(unit).and_then(|time| time.checked_add(now as i64));
    Ok(match u64::try_from(at.ok_or("ERR invalid expire time")?) {
        Ok(at) if at > now => database.store.set_expiry(key, Some(at), now),
        _ => database.store.remove(key, now),
    })
}

/// SCAN cursor [MATCH pattern] [COUNT count] [TYPE type].
fn scan(call: &mut Call<'_>, cursor: &[u8], options: &[Vec<u8>]) -> Result<(), String> {
    let cursor = std::str::from_utf8(cursor).ok().and_then(|cursor| cursor.parse().ok());
    let (mut pattern, mut count) = (Pattern::new(b"*")?, 10);
    let mut strings = true;
    for option in options.chunks(2) {
        match option {
            [word, value] if is(word, "match") => pattern = Pattern::new(value)?,
            [word, value] if is(word, "count") => count = integer(value)?,
            // All values are strings.
            [word, value] if is(word, "type") => strings = is(value, "string"),
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    let count = usize::try_from(count).ok().filter(|&count| count > 0).ok_or(SYNTAX)?;
    let cursor = cursor.ok_or("ERR invalid cursor")?;
    let (mut keys, next) = find(call.database, cursor, count.min(100_000), &pattern);
    keys.retain(|_| strings);
    call.reply.array(2);
    call.reply.bulk(next.to_string().as_bytes());
    call.reply.array(keys.len());
    keys.iter().for_each(|key| call.reply.bulk(key));
    Ok(())
}

/// The keys that match, and the next cursor.
fn find<'a>(
    database: &'a Database,
    cursor: usize,
    count: usize,
    pattern: &Pattern,
) -> (Vec<&'a [u8]>, usize) {
    let mut keys = Vec::new();
    let next = database.store.scan(cursor, count, |entry| {
        if !entry.is_gone(database.now) && pattern.matches(entry.key) {
            keys.push(entry.key);
        }
    });
    (keys, next)
}

/// A pattern of keys or settings.
pub(super) struct Pattern(GlobMatcher);

impl Pattern {
    pub(super) fn new(pattern: &[u8]) -> Result<Self, String> {
        let glob = std::str::from_utf8(pattern).ok().and_then(|pattern| Glob::new(pattern).ok());
        Ok(Self(glob.ok_or("ERR invalid pattern")?.compile_matcher()))
    }

    pub(super) fn matches(&self, key: &[u8]) -> bool {
        self.0.is_match(Path::new(OsStr::from_bytes(key)))
    }
}
