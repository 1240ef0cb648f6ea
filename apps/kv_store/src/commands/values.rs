//! Values: what is set and read.

use super::{After, Database, NO_INTEGER, Outcome, SYNTAX, count, done, oom};
use crate::resp::{Reply, number};
use crate::store::Entry;

pub(super) fn get(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    match database.store.get(arguments[0], database.now) {
        Some(entry) => reply.bulk(entry.value),
        None => reply.nil(),
    }
    Ok(After::Next)
}

pub(super) fn mget(database: &mut Database, keys: &[&[u8]], reply: &mut Reply) -> Outcome {
    reply.array(keys.len());
    for key in keys {
        get(database, &[*key], reply)?;
    }
    Ok(After::Next)
}

/// What comes behind the value in a SET.
#[derive(Debug, Default)]
struct Wishes {
    expires: Option<u64>,
    /// Only if it is there, or only if not.
    if_there: Option<bool>,
}

impl Wishes {
    fn read(mut words: &[&[u8]], now: u64) -> Result<Self, String> {
        let mut wishes = Self::default();
        // Not read before all words are known to be options.
        let mut lasts = None;
        while let Some((word, rest)) = words.split_first() {
            words = rest;
            let word = word.to_ascii_uppercase();
            match word.as_slice() {
                b"NX" if wishes.if_there != Some(true) => wishes.if_there = Some(false),
                b"XX" if wishes.if_there != Some(false) => wishes.if_there = Some(true),
                b"EX" | b"PX" => {
                    let unit = if word == b"EX" { 1000 } else { 1 };
                    let is_same = lasts.is_none_or(|(_, before)| before == unit);
                    let (time, rest) = words.split_first().filter(|_| is_same).ok_or(SYNTAX)?;
                    words = rest;
                    lasts = Some((*time, unit));
                }
                _ => return Err(SYNTAX.to_owned()),
            }
        }
        wishes.expires = lasts.map(|(time, unit)| expires(time, unit, now)).transpose()?;
        Ok(wishes)
    }
}

pub(super) fn expires(time: &[u8], unit: i64, now: u64) -> Result<u64, String> {
    let invalid = "ERR invalid expire time in 'set' command";
    let time = number(time).ok_or(NO_INTEGER)?;
    let time = time.checked_mul(unit).filter(|&time| time > 0).ok_or(invalid)?;
    (now as i64).checked_add(time).map(|at| at as u64).ok_or_else(|| invalid.to_owned())
}

pub(super) fn set(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let (key, value, now) = (arguments[0], arguments[1], database.now);
    let wishes = Wishes::read(&arguments[2..], now)?;
    let store = &mut database.store;
    if wishes.if_there.is_some_and(|there| there != store.get(key, now).is_some()) {
        reply.nil();
        return Ok(After::Next);
    }
    store.set(&Entry { key, value, expires: wishes.expires }, now).map_err(oom)?;
    done(reply)
}

pub(super) fn mset(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let (pairs, rest) = arguments.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("ERR wrong number of arguments for 'mset' command".to_owned());
    }
    let entries: Vec<Entry<'_>> =
        pairs.iter().map(|&[key, value]| Entry { key, value, expires: None }).collect();
    database.store.set_all(&entries, database.now).map_err(oom)?;
    done(reply)
}

pub(super) fn incr(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    add(database, arguments[0], 1, reply)
}

pub(super) fn incrby(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    add(database, arguments[0], number(arguments[1]).ok_or(NO_INTEGER)?, reply)
}

pub(super) fn decr(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    add(database, arguments[0], -1, reply)
}

pub(super) fn decrby(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let less = number(arguments[1]).ok_or(NO_INTEGER)?;
    let more = less.checked_neg().ok_or("ERR decrement would overflow")?;
    add(database, arguments[0], more, reply)
}

fn add(database: &mut Database, key: &[u8], more: i64, reply: &mut Reply) -> Outcome {
    let now = database.now;
    let (before, expires) = match database.store.get(key, now) {
        Some(entry) => (number(entry.value).ok_or(NO_INTEGER)?, entry.expires),
        None => (0, None),
    };
    let overflow = "ERR increment or decrement would overflow";
    let number = before.checked_add(more).ok_or(overflow)?;
    let value = number.to_string();
    let entry = Entry { key, value: value.as_bytes(), expires };
    database.store.set(&entry, now).map_err(oom)?;
    reply.integer(number);
    Ok(After::Next)
}

/// It goes on expiring when it did.
pub(super) fn append(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let (key, more, now) = (arguments[0], arguments[1], database.now);
    let (before, expires) = match database.store.get(key, now) {
        Some(entry) => (entry.value, entry.expires),
        None => (&[][..], None),
    };
    if before.len() + more.len() > database.most_value {
        return Err("ERR string exceeds maximum allowed size (--max-value)".to_owned());
    }
    let value = [before, more].concat();
    database.store.set(&Entry { key, value: &value, expires }, now).map_err(oom)?;
    count(reply, value.len())
}

pub(super) fn strlen(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let entry = database.store.get(arguments[0], database.now);
    count(reply, entry.map_or(0, |entry| entry.value.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_read_or_refused() {
        let read = |words: &[&str]| {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            Wishes::read(&words, 5).map(|wishes| (wishes.expires, wishes.if_there))
        };
        assert_eq!(read(&[]), Ok((None, None)));
        assert_eq!(read(&["ex", "2", "NX"]), Ok((Some(2005), Some(false))));
        assert_eq!(read(&["XX", "px", "2"]), Ok((Some(7), Some(true))));
        assert_eq!(read(&["EX", "1", "NX", "EX", "2", "NX"]), Ok((Some(2005), Some(false))));
        assert_eq!(read(&["EX", "x", "no"]), Err(SYNTAX.to_owned()));
        let wrong: [&[&str]; 10] = [
            &["EX"],
            &["EX", "0"],
            &["EX", "-1"],
            &["PX", "x"],
            &["NX", "XX"],
            &["EX", "1", "PX", "1"],
            &["EX", "05"],
            &["EX", "9223372036854775807"],
            &["PX", "9223372036854775807"],
            &["KEEPTTL"],
        ];
        wrong.iter().for_each(|words| assert!(read(words).is_err(), "{words:?}"));
    }
}
