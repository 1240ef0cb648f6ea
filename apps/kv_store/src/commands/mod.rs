//! What clients can ask for.

mod clients;
mod connection;
mod expiry;
mod keys;
mod report;
mod saving;
mod settings;
mod transaction;
mod values;

use std::time::Instant;

pub use self::clients::{Clients, Session};
pub use self::saving::end;
use super::resp::Reply;
use super::save::Saver;
use super::store::{Full, Store};

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
    /// Bytes of a value.
    pub most_value: usize,
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

const GONE: &[&str] = &["write", "fast"];
const SLOW: &[&str] = &["readonly"];

const COMMANDS: &[Command] = &[
    command("append", 3, WRITE, ONE, values::append),
    command("bgsave", -1, ADMIN, NONE, saving::bgsave),
    command("client", -2, FAST, NONE, connection::client),
    command("command", -1, FAST, NONE, report::list_commands),
    command("config", -2, ADMIN, NONE, settings::config),
    command("dbsize", 1, READ, NONE, keys::dbsize),
    command("decr", 2, WRITE, ONE, values::decr),
    command("decrby", 3, WRITE, ONE, values::decrby),
    command("del", -2, GONE, ALL, keys::del),
    command("discard", 1, FAST, NONE, transaction::discard),
    command("echo", 2, FAST, NONE, connection::echo),
    command("exec", 1, &[], NONE, transaction::exec),
    command("exists", -2, READ, ALL, keys::exists),
    command("expire", -3, GONE, ONE, expiry::expire),
    command("flushall", -1, GONE, NONE, keys::flushall),
    command("flushdb", -1, GONE, NONE, keys::flushall),
    command("get", 2, READ, ONE, values::get),
    command("hello", -1, FAST, NONE, connection::hello),
    command("incr", 2, WRITE, ONE, values::incr),
    command("incrby", 3, WRITE, ONE, values::incrby),
    command("info", -1, FAST, NONE, report::info),
    command("keys", 2, SLOW, NONE, keys::keys),
    command("lastsave", 1, FAST, NONE, saving::lastsave),
    command("mget", -2, READ, ALL, values::mget),
    command("mset", -3, WRITE, [1, -1, 2], values::mset),
    command("multi", 1, FAST, NONE, transaction::multi),
    command("persist", 2, GONE, ONE, expiry::persist),
    command("pexpire", -3, GONE, ONE, expiry::pexpire),
    command("ping", -1, FAST, NONE, connection::ping),
    command("pttl", 2, READ, ONE, expiry::pttl),
    command("quit", -1, FAST, NONE, connection::quit),
    command("save", 1, ADMIN, NONE, saving::save),
    command("scan", -2, SLOW, NONE, keys::scan),
    command("select", 2, FAST, NONE, connection::select),
    command("set", -3, WRITE, ONE, values::set),
    command("shutdown", -1, ADMIN, NONE, saving::shutdown),
    command("strlen", 2, READ, ONE, values::strlen),
    command("ttl", 2, READ, ONE, expiry::ttl),
    command("type", 2, READ, ONE, keys::type_of),
    command("unlink", -2, GONE, ALL, keys::del),
];

/// What is not kept for EXEC.
const AT_ONCE: [&str; 4] = ["discard", "exec", "multi", "quit"];

const SYNTAX: &str = "ERR syntax error";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";
const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// Answers one request of at least one word.
pub fn run(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> After {
    database.commands += 1;
    let outcome = match (command_of(arguments), &mut database.clients.session().queue) {
        (Err(error), queue) => {
            queue.iter_mut().for_each(|queue| queue.is_broken = true);
            Err(error)
        }
        (Ok(command), Some(queue)) if !AT_ONCE.contains(&command.name) => {
            queue.push(arguments);
            reply.simple("QUEUED");
            Ok(After::Next)
        }
        (Ok(command), _) => (command.run)(database, &arguments[1..], reply),
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

/// What is asked for, if it may be asked so.
fn command_of(arguments: &[&[u8]]) -> Result<&'static Command, String> {
    let name = arguments[0];
    let same = |command: &&Command| name.eq_ignore_ascii_case(command.name.as_bytes());
    match COMMANDS.iter().find(same) {
        None => Err(format!("ERR unknown command '{}'", shown(name))),
        Some(command) if !takes(command.arity, arguments.len()) => {
            Err(format!("ERR wrong number of arguments for '{}' command", command.name))
        }
        Some(command) => Ok(command),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_sorted_and_once() {
        assert!(COMMANDS.windows(2).all(|two| two[0].name < two[1].name));
    }
}
