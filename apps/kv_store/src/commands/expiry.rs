//! When keys go by themselves.

use super::{After, Database, NO_INTEGER, Outcome, count};
use crate::resp::{Reply, number};

pub(super) fn ttl(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let left = time_left(database, arguments[0]);
    reply.integer(if left < 0 { left } else { (left + 500) / 1000 });
    Ok(After::Next)
}

pub(super) fn pttl(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    reply.integer(time_left(database, arguments[0]));
    Ok(After::Next)
}

/// In milliseconds; -1 for ever, -2 if it is not there.
pub(super) fn time_left(database: &mut Database, key: &[u8]) -> i64 {
    let now = database.now;
    match database.store.get(key, now) {
        None => -2,
        Some(entry) => entry.expires.map_or(-1, |at| (at - now) as i64),
    }
}

pub(super) fn expire(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    expire_in(database, arguments, 1000, "expire", reply)
}

pub(super) fn pexpire(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    expire_in(database, arguments, 1, "pexpire", reply)
}

fn expire_in(
    database: &mut Database,
    arguments: &[&[u8]],
    unit: i64,
    name: &str,
    reply: &mut Reply,
) -> Outcome {
    let (key, now) = (arguments[0], database.now);
    let condition = Condition::read(&arguments[2..])?;
    let time = number(arguments[1]).ok_or(NO_INTEGER)?;
    let at = time.checked_mul(unit).and_then(|time| (now as i64).checked_add(time));
    let at = at.ok_or_else(|| format!("ERR invalid expire time in '{name}' command"))?;
    let Some(entry) = database.store.get(key, now) else { return count(reply, 0) };
    if !condition.holds(entry.expires.map(|expires| expires as i64), at) {
        return count(reply, 0);
    }
    match u64::try_from(at) {
        Ok(at) if at > now => database.store.set_expiry(key, Some(at), now),
        _ => database.store.remove(key, now),
    };
    count(reply, 1)
}

pub(super) fn persist(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let (key, now) = (arguments[0], database.now);
    let expires = database.store.get(key, now).is_some_and(|entry| entry.expires.is_some());
    if expires {
        database.store.set_expiry(key, None, now);
    }
    count(reply, usize::from(expires))
}

/// On which a key's expiry is set: if it has none, if it has one, if the new one is later, if it is earlier.
#[derive(Clone, Copy, Debug, Default)]
struct Condition {
    none: bool,
    any: bool,
    later: bool,
    earlier: bool,
}

impl Condition {
    fn read(words: &[&[u8]]) -> Result<Self, String> {
        let mut read = Self::default();
        for word in words {
            match word.to_ascii_uppercase().as_slice() {
                b"NX" => read.none = true,
                b"XX" => read.any = true,
                b"GT" => read.later = true,
                b"LT" => read.earlier = true,
                _ => return Err(format!("ERR Unsupported option {}", word.escape_ascii())),
            }
        }
        match read {
            Self { none: true, any: true, .. }
            | Self { none: true, later: true, .. }
            | Self { none: true, earlier: true, .. } => {
                Err("ERR NX and XX, GT or LT options at the same time are not compatible"
                    .to_owned())
            }
            Self { later: true, earlier: true, .. } => {
                Err("ERR GT and LT options at the same time are not compatible".to_owned())
            }
            read => Ok(read),
        }
    }

    /// A key that does not expire counts as one that expires at the end of time.
    fn holds(self, now: Option<i64>, then: i64) -> bool {
        match now {
            None => !self.any && !self.later,
            Some(now) => !self.none && (!self.later || then > now) && (!self.earlier || then < now),
        }
    }
}
