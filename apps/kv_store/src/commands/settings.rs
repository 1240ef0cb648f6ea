//! CONFIG: settings of the server, as clients ask for them and change them.

use super::{After, Database, NO_INTEGER, Outcome, done};
use crate::resp::{Reply, number};

/// A setting, and how it is changed if it can be.
struct Setting {
    name: &'static str,
    get: fn(&Database) -> String,
    set: Option<fn(&mut Database, u64)>,
}

const fn fixed(name: &'static str, get: fn(&Database) -> String) -> Setting {
    Setting { name, get, set: None }
}

const fn number_of(
    name: &'static str,
    get: fn(&Database) -> String,
    set: fn(&mut Database, u64),
) -> Setting {
    Setting { name, get, set: Some(set) }
}

const SETTINGS: &[Setting] = &[
    // What programs look for before they measure.
    fixed("save", |_| String::new()),
    fixed("appendonly", |_| "no".to_owned()),
    fixed("databases", |_| "1".to_owned()),
    fixed("maxmemory", |database| database.store.memory().1.to_string()),
    fixed("port", |database| database.port.to_string()),
    number_of(
        "maxmemory-clients",
        |database| database.clients.most_held.to_string(),
        |database, bytes| database.clients.most_held = bytes as usize,
    ),
    number_of(
        "save-every",
        |database| database.saver.policy.every.to_string(),
        |database, seconds| database.saver.policy.every = seconds,
    ),
    number_of(
        "chain-deltas",
        |database| database.saver.policy.deltas.to_string(),
        |database, deltas| database.saver.policy.deltas = deltas,
    ),
    number_of(
        "chain-percent",
        |database| database.saver.policy.percent.to_string(),
        |database, percent| database.saver.policy.percent = percent,
    ),
];

pub(super) fn config_get(
    database: &mut Database,
    patterns: &[&[u8]],
    reply: &mut Reply,
) -> Outcome {
    let is_asked = |setting: &&Setting| {
        let name = setting.name.as_bytes();
        patterns.iter().any(|pattern| crate::glob::matches(&pattern.to_ascii_lowercase(), name))
    };
    let asked: Vec<&Setting> = SETTINGS.iter().filter(is_asked).collect();
    reply.map(asked.len());
    for setting in asked {
        reply.bulk(setting.name.as_bytes());
        reply.bulk((setting.get)(database).as_bytes());
    }
    Ok(After::Next)
}

/// All of them are changed, or none.
pub(super) fn config_set(
    database: &mut Database,
    arguments: &[&[u8]],
    reply: &mut Reply,
) -> Outcome {
    let (pairs, rest) = arguments.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("ERR wrong number of arguments for 'config|set' command".to_owned());
    }
    let mut changes = Vec::new();
    for &[name, value] in pairs {
        let is_it = |setting: &&Setting| name.eq_ignore_ascii_case(setting.name.as_bytes());
        let unknown = || format!("ERR Unknown option '{}'", name.escape_ascii());
        let setting = SETTINGS.iter().find(is_it).ok_or_else(unknown)?;
        match setting.set {
            Some(change) => {
                let value = number(value).and_then(|value| u64::try_from(value).ok());
                changes.push((change, value.ok_or(NO_INTEGER)?));
            }
            None if (setting.get)(database).as_bytes() == value => {}
            None => return Err(format!("ERR {} cannot be changed here", setting.name)),
        }
    }
    changes.into_iter().for_each(|(change, value)| change(database, value));
    done(reply)
}
