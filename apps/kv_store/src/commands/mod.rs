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

/// Carries a command out, given the words behind its name.
type Run = fn(&mut Database, &[&[u8]], &mut Reply) -> Outcome;

struct Command {
    name: &'static str,
    /// Words, the command's name included; negative if at least this many.
    arity: i64,
    flags: &'static [&'static str],
    /// The first and the last argument that is a key, and how far they are apart.
    keys: [i64; 3],
    run: Run,
    /// Commands of two words that begin with this one: only a lone word runs this one.
    subcommands: &'static [Command],
}

const fn command(
    name: &'static str,
    arity: i64,
    flags: &'static [&'static str],
    keys: [i64; 3],
    run: Run,
) -> Command {
    Command { name, arity, flags, keys, run, subcommands: &[] }
}

/// The second word of a command.
const fn second(name: &'static str, arity: i64, run: Run) -> Command {
    command(name, arity, FAST, NONE, run)
}

/// A command that needs a second word.
const fn group(
    name: &'static str,
    flags: &'static [&'static str],
    subcommands: &'static [Command],
) -> Command {
    // The arity refuses a lone word.
    Command { subcommands, ..command(name, -2, flags, NONE, |_, _, _| Ok(After::Next)) }
}

const NONE: [i64; 3] = [0, 0, 0];
const ONE: [i64; 3] = [1, 1, 1];
const ALL: [i64; 3] = [1, -1, 1];
const READ: &[&str] = &["readonly", "fast"];
const WRITE: &[&str] = &["write", "denyoom"];
const ADMIN: &[&str] = &["admin"];
const ALONE: &[&str] = &["admin", NO_MULTI];
const FAST: &[&str] = &["fast"];
const GONE: &[&str] = &["write", "fast"];
const SLOW: &[&str] = &["readonly"];

/// The flag of commands that MULTI refuses.
const NO_MULTI: &str = "no_multi";

const CLIENT: &[Command] = &[
    second("getname", 2, connection::client_getname),
    second("id", 2, connection::client_id),
    second("info", 2, connection::client_info),
    second("list", -2, connection::client_list),
    second("setinfo", 4, connection::client_setinfo),
    second("setname", 3, connection::client_setname),
];
const CONFIG: &[Command] =
    &[second("get", -3, settings::config_get), second("set", -4, settings::config_set)];
const COMMAND: &[Command] = &[
    second("count", 2, |_, _, reply| count(reply, COMMANDS.len())),
    second("docs", -2, report::command_docs),
];

const COMMANDS: &[Command] = &[
    command("append", 3, WRITE, ONE, values::append),
    command("bgsave", -1, ADMIN, NONE, saving::bgsave),
    group("client", FAST, CLIENT),
    Command { subcommands: COMMAND, ..command("command", -1, FAST, NONE, report::list_commands) },
    group("config", ADMIN, CONFIG),
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
    command("save", 1, ALONE, NONE, saving::save),
    command("scan", -2, SLOW, NONE, keys::scan),
    command("select", 2, FAST, NONE, connection::select),
    command("set", -3, WRITE, ONE, values::set),
    command("shutdown", -1, ALONE, NONE, saving::shutdown),
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
    let queue = &mut database.clients.session().queue;
    let outcome = match command_of(arguments) {
        Ok(call) if queue.is_none() || AT_ONCE.contains(&call.command.name) => {
            call.run(database, reply)
        }
        call => transaction::keep(queue, call, arguments, reply),
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

/// A command, and the words behind its name.
struct Call<'a> {
    command: &'static Command,
    words: &'a [&'a [u8]],
}

impl Call<'_> {
    fn run(&self, database: &mut Database, reply: &mut Reply) -> Outcome {
        (self.command.run)(database, self.words, reply)
    }
}

/// The command that these words call, if it takes this many.
fn command_of<'a>(arguments: &'a [&'a [u8]]) -> Result<Call<'a>, String> {
    let unknown = |kind, name| format!("ERR unknown {kind} '{}'", shown(name));
    let command = find(COMMANDS, arguments[0]).ok_or_else(|| unknown("command", arguments[0]))?;
    let (command, words, name) = match arguments {
        [_, second, words @ ..] if !command.subcommands.is_empty() => {
            let found = find(command.subcommands, second);
            let found = found.ok_or_else(|| unknown("subcommand", second))?;
            (found, words, format!("{}|{}", command.name, found.name))
        }
        _ => (command, &arguments[1..], command.name.to_owned()),
    };
    if takes(command.arity, arguments.len()) {
        Ok(Call { command, words })
    } else {
        Err(format!("ERR wrong number of arguments for '{name}' command"))
    }
}

fn find(commands: &'static [Command], name: &[u8]) -> Option<&'static Command> {
    commands.iter().find(|command| name.eq_ignore_ascii_case(command.name.as_bytes()))
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
        for commands in [COMMANDS, CLIENT, COMMAND, CONFIG] {
            assert!(commands.windows(2).all(|two| two[0].name < two[1].name));
        }
    }
}
