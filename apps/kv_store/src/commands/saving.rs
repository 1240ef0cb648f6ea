//! Saving, and ending.

use super::{After, Database, Outcome, SYNTAX, done};
use crate::resp::Reply;

const RUNNING: &str = "ERR Background save already in progress";

pub(super) fn save(database: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    if database.saver.is_running() {
        return Err(RUNNING.to_owned());
    }
    database.saver.save(&database.store, database.now).map_err(|error| format!("ERR {error:#}"))?;
    done(reply)
}

/// BGSAVE or BGSAVE SCHEDULE: a save that runs is an error either way.
pub(super) fn bgsave(database: &mut Database, words: &[&[u8]], reply: &mut Reply) -> Outcome {
    if !matches!(words, [] | [_])
        || !words.iter().all(|word| word.eq_ignore_ascii_case(b"SCHEDULE"))
    {
        return Err(SYNTAX.to_owned());
    }
    if database.saver.is_running() {
        return Err(RUNNING.to_owned());
    }
    let started = database.saver.start(&mut database.store, database.now);
    started.map_err(|error| format!("ERR {error:#}"))?;
    reply.simple("Background saving started");
    Ok(After::Next)
}

pub(super) fn lastsave(database: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    reply.integer(database.saver.last.saved_at as i64);
    Ok(After::Next)
}

pub(super) fn shutdown(database: &mut Database, arguments: &[&[u8]], _: &mut Reply) -> Outcome {
    let save = match arguments {
        [] => true,
        [word] if word.eq_ignore_ascii_case(b"SAVE") => true,
        [word] if word.eq_ignore_ascii_case(b"NOSAVE") => false,
        _ => return Err(SYNTAX.to_owned()),
    };
    let failed = |error| format!("ERR Errors trying to SHUTDOWN. Check logs: {error:#}");
    end(database, save).map_err(failed)
}

/// Ends saves in the background, and saves all of it. Without success, the server goes on.
pub fn end(database: &mut Database, save: bool) -> anyhow::Result<After> {
    database.saver.stop(&mut database.store, database.now);
    if save {
        database.saver.save(&database.store, database.now)?;
    }
    Ok(After::Shutdown)
}
