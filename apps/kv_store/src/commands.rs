//! What clients can ask for.

use std::fmt::Write;
use std::time::Instant;

use super::resp::{Reply, number};
use super::save::{Policy, Saver, Wrote};
use super::store::{Entry, Full, Store};

/// What commands are about.
#[derive(Debug)]
pub struct Database {
    pub store: Store,
    pub saver: Saver,
    /// Milliseconds since 1970, as of this turn of the server.
    pub now: u64,
    pub clients: Clients,
    pub port: u16,
    pub started: Instant,
    pub commands: u64,
}

/// Who is connected, and what requests that are not whole and replies that are not sent take of memory.
#[derive(Debug)]
pub struct Clients {
    pub connected: usize,
    /// Bytes that all of them hold.
    pub held: usize,
    /// Bytes that they may hold.
    pub most_held: usize,
    /// How many were turned away because they held too many.
    pub evicted: u64,
}

impl Clients {
    /// Of at most so many bytes.
    pub fn new(most_held: usize) -> Self {
        Self { connected: 0, held: 0, most_held, evicted: 0 }
    }

    /// Bytes that they may still take.
    pub fn left(&self) -> usize {
        self.most_held.saturating_sub(self.held)
    }
}

/// What comes after the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Next,
    /// The client leaves.
    Close,
    /// The server ends.
    Shutdown,
}

/// A reply, or the text of an error.
type Outcome = Result<After, String>;

struct Command {
    name: &'static str,
    /// Words, the command's name included; negative if so many at least.
    arity: i64,
    flags: &'static [&'static str],
    /// The first and the last argument that is a key, and how far they are apart.
    keys: [i64; 3],
    run: fn(&mut Database, &[&[u8]], &mut Reply) -> Outcome,
}

const fn command(
    name: &'static str,
    arity: i64,
    flags: &'static [&'static str],
    keys: [i64; 3],
    run: fn(&mut Database, &[&[u8]], &mut Reply) -> Outcome,
) -> Command {
    Command { name, arity, flags, keys, run }
}

const NONE: [i64; 3] = [0, 0, 0];
const ONE: [i64; 3] = [1, 1, 1];
const ALL: [i64; 3] = [1, -1, 1];
const READ: &[&str] = &["readonly", "fast"];
const WRITE: &[&str] = &["write", "denyoom"];
const ADMIN: &[&str] = &["admin"];
const FAST: &[&str] = &["fast"];

const COMMANDS: &[Command] = &[
    command("bgsave", -1, ADMIN, NONE, bgsave),
    command("command", -1, FAST, NONE, list_commands),
    command("config", -2, ADMIN, NONE, config),
    command("dbsize", 1, READ, NONE, dbsize),
    command("del", -2, &["write"], ALL, del),
    command("echo", 2, FAST, NONE, echo),
    command("exists", -2, READ, ALL, exists),
    command("flushall", -1, &["write"], NONE, flushall),
    command("get", 2, READ, ONE, get),
    command("incr", 2, WRITE, ONE, incr),
    command("info", -1, FAST, NONE, info),
    command("lastsave", 1, FAST, NONE, lastsave),
    command("mget", -2, READ, ALL, mget),
    command("mset", -3, WRITE, [1, -1, 2], mset),
    command("ping", -1, FAST, NONE, ping),
    command("pttl", 2, READ, ONE, pttl),
    command("quit", -1, FAST, NONE, quit),
    command("save", 1, ADMIN, NONE, save),
    command("set", -3, WRITE, ONE, set),
    command("shutdown", -1, ADMIN, NONE, shutdown),
    command("ttl", 2, READ, ONE, ttl),
];

const SYNTAX: &str = "ERR syntax error";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";
const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const RUNNING: &str = "ERR Background save already in progress";

/// Answers one request of at least one word.
pub fn run(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> After {
    database.commands += 1;
    let name = arguments[0];
    let same = |command: &&Command| name.eq_ignore_ascii_case(command.name.as_bytes());
    let outcome = match COMMANDS.iter().find(same) {
        None => Err(format!("ERR unknown command '{}'", shown(name))),
        Some(command) if !takes(command.arity, arguments.len()) => {
            Err(format!("ERR wrong number of arguments for '{}' command", command.name))
        }
        Some(command) => (command.run)(database, &arguments[1..], reply),
    };
    let outcome = match reply.reclaim() {
        Some(bytes) => Err(no_room(bytes, &database.clients)),
        None => outcome,
    };
    outcome.unwrap_or_else(|error| {
        reply.error(&error);
        After::Next
    })
}

fn no_room(bytes: usize, clients: &Clients) -> String {
    let Clients { held, most_held, .. } = clients;
    format!(
        "ERR no room for {bytes} bytes of the reply: clients hold {held} of {most_held} bytes (--client-memory)"
    )
}

fn takes(arity: i64, words: usize) -> bool {
    if arity < 0 { words as i64 >= -arity } else { words as i64 == arity }
}

/// The first bytes of what a client sent.
fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(100)].escape_ascii().to_string()
}

fn oom(_: Full) -> String {
    OOM.to_owned()
}

fn done(reply: &mut Reply) -> Outcome {
    reply.simple("OK");
    Ok(After::Next)
}

fn count(reply: &mut Reply, number: usize) -> Outcome {
    reply.integer(number as i64);
    Ok(After::Next)
}

fn ping(_: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    match arguments {
        [] => reply.simple("PONG"),
        [message] => reply.bulk(message),
        _ => return Err("ERR wrong number of arguments for 'ping' command".to_owned()),
    }
    Ok(After::Next)
}

fn echo(_: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    reply.bulk(arguments[0]);
    Ok(After::Next)
}

fn quit(_: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    reply.simple("OK");
    Ok(After::Close)
}

fn get(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    match database.store.get(arguments[0], database.now) {
        Some(entry) => reply.bulk(entry.value),
        None => reply.nil(),
    }
    Ok(After::Next)
}

fn mget(database: &mut Database, keys: &[&[u8]], reply: &mut Reply) -> Outcome {
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
        while let Some((word, rest)) = words.split_first() {
            words = rest;
            let word = word.to_ascii_uppercase();
            match word.as_slice() {
                b"NX" | b"XX" if wishes.if_there.is_none() => {
                    wishes.if_there = Some(word == b"XX");
                }
                b"EX" | b"PX" if wishes.expires.is_none() => {
                    let (time, rest) = words.split_first().ok_or(SYNTAX)?;
                    words = rest;
                    let unit = if word == b"EX" { 1000 } else { 1 };
                    wishes.expires = Some(expires(time, unit, now)?);
                }
                _ => return Err(SYNTAX.to_owned()),
            }
        }
        Ok(wishes)
    }
}

fn expires(time: &[u8], unit: i64, now: u64) -> Result<u64, String> {
    let invalid = "ERR invalid expire time in 'set' command";
    let time = number(time).ok_or(NO_INTEGER)?;
    let time = time.checked_mul(unit).filter(|&time| time > 0).ok_or(invalid)?;
    (now as i64).checked_add(time).map(|at| at as u64).ok_or_else(|| invalid.to_owned())
}

fn set(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
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

fn mset(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let (pairs, rest) = arguments.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("ERR wrong number of arguments for 'mset' command".to_owned());
    }
    let entries: Vec<Entry<'_>> =
        pairs.iter().map(|&[key, value]| Entry { key, value, expires: None }).collect();
    database.store.set_all(&entries, database.now).map_err(oom)?;
    done(reply)
}

fn incr(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let (key, now) = (arguments[0], database.now);
    let (before, expires) = match database.store.get(key, now) {
        Some(entry) => (number(entry.value).ok_or(NO_INTEGER)?, entry.expires),
        None => (0, None),
    };
    let overflow = "ERR increment or decrement would overflow";
    let number = before.checked_add(1).ok_or(overflow)?;
    let value = number.to_string();
    let entry = Entry { key, value: value.as_bytes(), expires };
    database.store.set(&entry, now).map_err(oom)?;
    reply.integer(number);
    Ok(After::Next)
}

fn del(database: &mut Database, keys: &[&[u8]], reply: &mut Reply) -> Outcome {
    let now = database.now;
    count(reply, keys.iter().filter(|key| database.store.remove(key, now)).count())
}

fn exists(database: &mut Database, keys: &[&[u8]], reply: &mut Reply) -> Outcome {
    let now = database.now;
    count(reply, keys.iter().filter(|key| database.store.get(key, now).is_some()).count())
}

fn ttl(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let left = time_left(database, arguments[0]);
    reply.integer(if left < 0 { left } else { (left + 500) / 1000 });
    Ok(After::Next)
}

fn pttl(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    reply.integer(time_left(database, arguments[0]));
    Ok(After::Next)
}

/// In milliseconds; -1 for ever, -2 if it is not there.
fn time_left(database: &mut Database, key: &[u8]) -> i64 {
    let now = database.now;
    match database.store.get(key, now) {
        None => -2,
        Some(entry) => entry.expires.map_or(-1, |at| (at - now) as i64),
    }
}

fn dbsize(database: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    count(reply, database.store.len())
}

fn flushall(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let is_known =
        |word: &&[u8]| word.eq_ignore_ascii_case(b"SYNC") || word.eq_ignore_ascii_case(b"ASYNC");
    if arguments.len() > 1 || !arguments.iter().all(is_known) {
        return Err(SYNTAX.to_owned());
    }
    database.store.clear();
    done(reply)
}

fn save(database: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    if database.saver.is_running() {
        return Err(RUNNING.to_owned());
    }
    database.saver.save(&database.store, database.now).map_err(|error| format!("ERR {error:#}"))?;
    done(reply)
}

fn bgsave(database: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    if database.saver.is_running() {
        return Err(RUNNING.to_owned());
    }
    let started = database.saver.start(&mut database.store, database.now);
    started.map_err(|error| format!("ERR {error:#}"))?;
    reply.simple("Background saving started");
    Ok(After::Next)
}

fn lastsave(database: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    reply.integer(database.saver.last.saved_at as i64);
    Ok(After::Next)
}

fn shutdown(database: &mut Database, arguments: &[&[u8]], _: &mut Reply) -> Outcome {
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

/// Settings that clients ask for before they measure.
fn config(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let (word, names) = arguments.split_first().expect("at least one");
    if !word.eq_ignore_ascii_case(b"GET") || names.is_empty() {
        return Err("ERR only CONFIG GET name is known".to_owned());
    }
    let memory = database.store.memory().1.to_string();
    let known = [("save", ""), ("appendonly", "no"), ("maxmemory", &memory)];
    let asked = |name: &str| {
        names.iter().any(|asked| *asked == b"*" || asked.eq_ignore_ascii_case(name.as_bytes()))
    };
    let settings: Vec<_> = known.into_iter().filter(|(name, _)| asked(name)).collect();
    reply.array(2 * settings.len());
    for (name, value) in settings {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    Ok(After::Next)
}

fn list_commands(_: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    match arguments {
        [] => {
            reply.array(COMMANDS.len());
            for command in COMMANDS {
                reply.array(6);
                reply.bulk(command.name.as_bytes());
                reply.integer(command.arity);
                reply.array(command.flags.len());
                command.flags.iter().for_each(|flag| reply.simple(flag));
                command.keys.iter().for_each(|&key| reply.integer(key));
            }
        }
        [word] if word.eq_ignore_ascii_case(b"COUNT") => reply.integer(COMMANDS.len() as i64),
        // Documentation: there is none in this form.
        [word, ..] if word.eq_ignore_ascii_case(b"DOCS") => reply.array(0),
        _ => return Err("ERR only COMMAND, COMMAND COUNT and COMMAND DOCS are known".to_owned()),
    }
    Ok(After::Next)
}

fn info(database: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_info(&mut text, database);
    reply.bulk(text.replace('\n', "\r\n").as_bytes());
    Ok(After::Next)
}

fn write_info(text: &mut String, database: &Database) -> std::fmt::Result {
    let Database { store, saver, clients, port, started, commands, .. } = database;
    let (used, memory) = store.memory();
    let last = &saver.last;
    writeln!(text, "# Server\nserver_name:hugekit kv_store\nprocess_id:{}", std::process::id())?;
    writeln!(text, "tcp_port:{port}\nuptime_in_seconds:{}", started.elapsed().as_secs())?;
    writeln!(text, "\n# Clients\nconnected_clients:{}", clients.connected)?;
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
    let Wrote { is_full, changed, bytes } = last.wrote;
    writeln!(text, "last_save_kind:{}", if is_full { "full" } else { "delta" })?;
    writeln!(text, "last_save_changed_bytes:{changed}\nlast_save_file_bytes:{bytes}")?;
    let (deltas, delta_bytes) = saver.deltas();
    writeln!(text, "chain_deltas:{deltas}\nchain_delta_bytes:{delta_bytes}")?;
    let Policy { every, deltas, percent } = saver.policy;
    writeln!(text, "save_every:{every}\nmost_chain_deltas:{deltas}\nmost_chain_percent:{percent}")?;
    writeln!(text, "\n# Stats\ntotal_commands_processed:{commands}")?;
    writeln!(text, "evicted_clients:{}", clients.evicted)?;
    writeln!(text, "\n# Keyspace\ndb0:keys={}", store.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_sorted_and_once() {
        assert!(COMMANDS.windows(2).all(|two| two[0].name < two[1].name));
    }

    #[test]
    fn wishes_are_read_or_refused() {
        let read = |words: &[&str]| {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            Wishes::read(&words, 5).map(|wishes| (wishes.expires, wishes.if_there))
        };
        assert_eq!(read(&[]), Ok((None, None)));
        assert_eq!(read(&["ex", "2", "NX"]), Ok((Some(2005), Some(false))));
        assert_eq!(read(&["XX", "px", "2"]), Ok((Some(7), Some(true))));
        let wrong: [&[&str]; 9] = [
            &["EX"],
            &["EX", "0"],
            &["EX", "-1"],
            &["PX", "x"],
            &["NX", "XX"],
            &["EX", "1", "PX", "1"],
            &["EX", "9223372036854775807"],
            &["PX", "9223372036854775807"],
            &["KEEPTTL"],
        ];
        wrong.iter().for_each(|words| assert!(read(words).is_err(), "{words:?}"));
    }
}
