//! Keys: which there are, when they expire, and that they go.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use globset::Glob;

use super::{Call, Outcome, SYNTAX, integer, is};
use crate::store::Store;

pub(super) fn run(call: &mut Call<'_>, name: &str, words: &[Vec<u8>]) -> Outcome {
    let store = &mut call.database.store;
    let number = match (name, words) {
        ("del" | "unlink", [_, ..]) => words.iter().filter(|key| store.remove(key)).count() as i64,
        ("exists", [_, ..]) => words.iter().filter(|key| store.get(key).is_some()).count() as i64,
        ("dbsize", []) => store.len as i64,
        ("expire", [key, time]) => expire(store, key, integer(time)?, 1000)?,
        ("pexpire", [key, time]) => expire(store, key, integer(time)?, 1)?,
        ("persist", [key]) => {
            let expires = store.get(key).is_some_and(|entry| entry.expires.is_some());
            (expires && store.set_expiry(key, None)).into()
        }
        ("ttl", [key]) => time_left(store, key, 1000),
        ("pttl", [key]) => time_left(store, key, 1),
        _ => return show(call, name, words),
    };
    call.reply.line(':', number);
    Ok(true)
}

fn show(call: &mut Call<'_>, name: &str, words: &[Vec<u8>]) -> Outcome {
    let store = &mut call.database.store;
    match (name, words) {
        ("type", [key]) => call.reply.line('+', store.get(key).map_or("none", |_| "string")),
        ("flushall" | "flushdb", []) => {
            store.clear();
            call.reply.ok();
        }
        ("keys", [pattern]) => {
            let (mut keys, matches) = (store.scan(0, usize::MAX).0, glob(pattern)?);
            keys.retain(|key| matches(key));
            call.reply.bulks(&keys)?;
        }
        ("scan", [cursor, options @ ..]) => scan(call, cursor, options)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// In units of this many milliseconds; -1 for a key that stays, -2 for one that is not there.
fn time_left(store: &mut Store, key: &[u8], unit: u64) -> i64 {
    let now = store.now;
    let left = |at| ((at - now + unit / 2) / unit) as i64;
    store.get(key).map_or(-2, |entry| entry.expires.map_or(-1, left))
}

/// Returns 1 if the key was there.
fn expire(store: &mut Store, key: &[u8], time: i64, unit: i64) -> Result<i64, String> {
    let now = store.now;
    let at = time.checked_mul(unit).and_then(|time| time.checked_add(now as i64));
    Ok(match u64::try_from(at.ok_or("ERR invalid expire time")?) {
        Ok(at) if at > now => store.set_expiry(key, Some(at)).into(),
        _ => store.remove(key).into(),
    })
}

/// SCAN cursor [MATCH pattern] [COUNT count] [TYPE type].
fn scan(call: &mut Call<'_>, cursor: &[u8], options: &[Vec<u8>]) -> Result<(), String> {
    let (mut matches, mut count, mut strings) = (glob(b"*")?, 10, true);
    for option in options.chunks(2) {
        match option {
            [word, value] if is(word, "match") => matches = glob(value)?,
            [word, value] if is(word, "count") => count = integer(value)?,
            // All values are strings.
            [word, value] if is(word, "type") => strings = is(value, "string"),
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    let count = usize::try_from(count).ok().filter(|&count| count > 0).ok_or(SYNTAX)?;
    let cursor = std::str::from_utf8(cursor).ok().and_then(|cursor| cursor.parse().ok());
    let cursor = cursor.ok_or("ERR invalid cursor")?;
    let (mut keys, next) = call.database.store.scan(cursor, count.min(100_000));
    keys.retain(|key| strings && matches(key));
    call.reply.line('*', 2);
    call.reply.bulk(next.to_string().as_bytes())?;
    call.reply.bulks(&keys)
}

/// Whether keys or settings match a pattern.
pub(super) fn glob(pattern: &[u8]) -> Result<impl Fn(&[u8]) -> bool + use<>, String> {
    let glob = std::str::from_utf8(pattern).ok().and_then(|pattern| Glob::new(pattern).ok());
    let glob = glob.ok_or("ERR invalid pattern")?.compile_matcher();
    Ok(move |word: &[u8]| glob.is_match(OsStr::from_bytes(word)))
}
