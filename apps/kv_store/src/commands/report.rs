//! What the server says of itself.

use std::fmt::Write;

use super::{After, COMMANDS, Database, Outcome};
use crate::resp::Reply;
use crate::save::{Policy, Wrote};

pub(super) fn list_commands(_: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    reply.array(COMMANDS.len());
    for command in COMMANDS {
        reply.array(10);
        reply.bulk(command.name.as_bytes());
        reply.integer(command.arity);
        reply.set(command.flags.len());
        command.flags.iter().for_each(|flag| reply.simple(flag));
        command.keys.iter().for_each(|&key| reply.integer(key));
        // No categories of rights, hints, keys elsewhere or parts.
        reply.set(0);
        (0..3).for_each(|_| reply.array(0));
    }
    Ok(After::Next)
}

/// There is no documentation in this form.
pub(super) fn command_docs(_: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    reply.map(0);
    Ok(After::Next)
}

pub(super) fn info(database: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_info(&mut text, database);
    reply.text(&text.replace('\n', "\r\n"));
    Ok(After::Next)
}

pub(super) fn write_info(text: &mut String, database: &Database) -> std::fmt::Result {
    let Database { store, saver, clients, port, started, commands, .. } = database;
    let (used, memory) = store.memory();
    let last = &saver.last;
    writeln!(text, "# Server\nserver_name:hugekit kv_store\nprocess_id:{}", std::process::id())?;
    writeln!(text, "tcp_port:{port}\nuptime_in_seconds:{}", started.elapsed().as_secs())?;
    writeln!(text, "\n# Clients\nconnected_clients:{}", clients.sessions.len())?;
    writeln!(text, "\n# Memory\nused_memory:{used}\nmaxmemory:{memory}")?;
    writeln!(text, "mem_clients_normal:{}\nmaxmemory_clients:{}", clients.held, clients.most_held)?;
    writeln!(text, "\n# Persistence\nloading:0")?;
    writeln!(text, "rdb_changes_since_last_save:{}", store.changes() - last.changes)?;
    writeln!(text, "rdb_bgsave_in_progress:{}", u8::from(saver.is_running()))?;
    writeln!(text, "rdb_last_save_time:{}", last.saved_at)?;
    writeln!(text, "rdb_last_bgsave_status:{}", if last.succeeded { "ok" } else { "err" })?;
    let seconds = last.took.map_or(-1.0, |took| took.as_secs_f64());
    writeln!(text, "rdb_last_bgsave_time_sec:{}", seconds.ceil())?;
    writeln!(text, "last_save_milliseconds:{:.0}", seconds * 1e3)?;
    writeln!(text, "last_snapshot_microseconds:{}", last.stood_still.as_micros())?;
    let longest = last.stood_still_longest.as_micros();
    writeln!(text, "longest_snapshot_microseconds:{longest}")?;
    let Wrote { is_full, changed, bytes, copied, longest_write } = last.wrote;
    writeln!(text, "last_save_kind:{}", if is_full { "full" } else { "delta" })?;
    writeln!(text, "last_save_changed_bytes:{changed}\nlast_save_file_bytes:{bytes}")?;
    writeln!(text, "last_save_copied_granules:{copied}")?;
    writeln!(text, "last_save_longest_write_microseconds:{}", longest_write.as_micros())?;
    let (deltas, delta_bytes) = saver.deltas();
    writeln!(text, "chain_deltas:{deltas}\nchain_delta_bytes:{delta_bytes}")?;
    let Policy { every, deltas, percent } = saver.policy;
    writeln!(text, "save_every:{every}\nmost_chain_deltas:{deltas}\nmost_chain_percent:{percent}")?;
    writeln!(text, "\n# Stats\ntotal_commands_processed:{commands}")?;
    writeln!(text, "evicted_clients:{}", clients.evicted)?;
    writeln!(text, "\n# Keyspace\ndb0:keys={}", store.len())
}
