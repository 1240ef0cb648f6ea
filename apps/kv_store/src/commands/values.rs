//! Values: set and read.

use super::{Call, OOM, Outcome, SYNTAX, integer, is};
use crate::entry::Entry;

pub(super) fn run(call: &mut Call<'_>, name: &str, words: &[Vec<u8>]) -> Outcome {
    match (name, words) {
        ("get", [key]) => get(call, key)?,
        ("mget", [_, ..]) => {
            call.reply.line('*', words.len());
            words.iter().try_for_each(|key| get(call, key))?;
        }
        ("set", [key, value, options @ ..]) => set(call, key, value, options)?,
        ("mset", [_, _, ..]) if words.len().is_multiple_of(2) => {
            let pairs = words.as_chunks::<2>().0.iter();
            let entries = pairs.map(|[key, value]| Entry { key, value, expires: None });
            call.database.store.set_all(entries).ok_or(OOM)?;
            call.reply.ok();
        }
        ("incr", [key]) => add(call, key, 1)?,
        ("decr", [key]) => add(call, key, -1)?,
        ("incrby", [key, more]) => add(call, key, integer(more)?)?,
        ("decrby", [key, less]) => {
            let more = integer(less)?.checked_neg().ok_or("ERR decrement would overflow")?;
            add(call, key, more)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn get(call: &mut Call<'_>, key: &[u8]) -> Result<(), String> {
    match call.database.store.get(key) {
        Some(entry) => call.reply.bulk(entry.value)?,
        None => call.reply.nil(),
    }
    Ok(())
}

/// SET key value [EX seconds | PX milliseconds] [NX | XX].
fn set(call: &mut Call<'_>, key: &[u8], value: &[u8], words: &[Vec<u8>]) -> Result<(), String> {
    let (store, mut words) = (&mut call.database.store, words.iter());
    let (mut expires, mut if_there) = (None, None);
    while let Some(word) = words.next() {
        if expires.is_none() && (is(word, "ex") || is(word, "px")) {
            let time = integer(words.next().ok_or(SYNTAX)?)?;
            let time = time.checked_mul(if is(word, "ex") { 1000 } else { 1 });
            let end =
                time.filter(|&time| time > 0).and_then(|time| time.checked_add(store.now as i64));
            expires = Some(end.ok_or("ERR invalid expire time in 'set' command")? as u64);
        } else if if_there.is_none() && (is(word, "nx") || is(word, "xx")) {
            if_there = Some(is(word, "xx"));
        } else {
            return Err(SYNTAX.to_owned());
        }
    }
    if if_there.is_some_and(|there| there != store.get(key).is_some()) {
        call.reply.nil();
        return Ok(());
    }
    store.set(&Entry { key, value, expires }).ok_or(OOM)?;
    call.reply.ok();
    Ok(())
}

/// Adds to a number. The key goes on expiring when it did.
fn add(call: &mut Call<'_>, key: &[u8], more: i64) -> Result<(), String> {
    let store = &mut call.database.store;
    let (before, expires) = match store.get(key) {
        Some(entry) => (integer(entry.value)?, entry.expires),
        None => (0, None),
    };
    let sum = before.checked_add(more).ok_or("ERR increment or decrement would overflow")?;
    let value = sum.to_string();
    store.set(&Entry { key, value: value.as_bytes(), expires }).ok_or(OOM)?;
    call.reply.line(':', sum);
    Ok(())
}
