//! Saves, the end of the server, and its figures and settings.

use super::keys::glob;
use super::{Call, Database, Outcome, SYNTAX, is};

pub(super) fn run(call: &mut Call<'_>, name: &str, words: &[Vec<u8>]) -> Outcome {
    let Database { store, saver, .. } = call.database;
    match (name, words) {
        ("save", []) => {
            let saved = saver.start(store).and_then(|()| saver.wait(store));
            saved.map_err(|error| format!("ERR {error:#}"))?;
            call.reply.ok();
        }
        ("bgsave", words @ ([] | [_])) if words.iter().all(|word| is(word, "schedule")) => {
            saver.start(store).map_err(|error| format!("ERR {error:#}"))?;
            call.reply.line('+', "Background saving started");
        }
        ("lastsave", []) => call.reply.line(':', saver.last.saved_at),
        ("shutdown", []) => call.database.end(true)?,
        ("shutdown", [word]) if is(word, "save") => call.database.end(true)?,
        ("shutdown", [word]) if is(word, "nosave") => call.database.end(false)?,
        ("shutdown", _) => return Err(SYNTAX.to_owned()),
        ("config", [word, pattern]) if is(word, "get") => config_get(call, pattern)?,
        ("config", [_, ..]) => return Err("ERR unknown subcommand or setting".to_owned()),
        ("info", _) => {
            let lines = figures(call.database).map(|(name, value)| format!("{name}:{value}\r\n"));
            call.reply.bulk(lines.concat().as_bytes())?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Programs ask for these settings before they measure. None can be changed.
fn config_get(call: &mut Call<'_>, pattern: &[u8]) -> Result<(), String> {
    let maxmemory = call.database.store.memory().1.to_string();
    let mut settings = vec![("save", ""), ("appendonly", "no"), ("maxmemory", &maxmemory)];
    let matches = glob(pattern)?;
    settings.retain(|(name, _)| matches(name.as_bytes()));
    call.reply.map(settings.len());
    let mut words = settings.iter().flat_map(|&(name, value)| [name, value]);
    words.try_for_each(|word| call.reply.bulk(word.as_bytes()))
}

fn figures(database: &Database) -> [(&'static str, String); 15] {
    let Database { store, saver, budget, .. } = database;
    let (clients, last) = (budget.lock(), &saver.last);
    let kind = last.saved.map_or("none", |saved| if saved.is_full { "full" } else { "delta" });
    let status = if last.has_failed { "err" } else { "ok" };
    [
        ("loading", "0".to_owned()),
        ("connected_clients", clients.connected.len().to_string()),
        ("mem_clients_normal", clients.held.to_string()),
        ("evicted_clients", clients.evicted.to_string()),
        ("used_memory", store.memory().0.to_string()),
        ("maxmemory", store.memory().1.to_string()),
        ("rdb_changes_since_last_save", (store.changes - last.changes).to_string()),
        ("rdb_bgsave_in_progress", u8::from(saver.is_running()).to_string()),
        ("rdb_last_bgsave_status", status.to_owned()),
        ("last_save_kind", kind.to_owned()),
        ("last_save_file_bytes", last.saved.map_or(0, |saved| saved.written).to_string()),
        ("last_save_copied_granules", last.stats.copied_by_writers.to_string()),
        ("last_save_longest_write_microseconds", last.stats.longest_fault.as_micros().to_string()),
        ("last_snapshot_microseconds", last.snapshot.as_micros().to_string()),
        ("db0", format!("keys={}", store.len)),
    ]
}

impl Database {
    /// Ends the process, after a save. Returns only if the save fails.
    pub fn end(&mut self, saves: bool) -> Result<(), String> {
        let Self { store, saver, .. } = self;
        if saves {
            // The log has the error of a save that ran already.
            let _ = saver.wait(store);
            let saved = saver.start(store).and_then(|()| saver.wait(store));
            saved.map_err(|error| format!("ERR the server goes on: {error:#}"))?;
        }
        std::process::exit(0)
    }
}
