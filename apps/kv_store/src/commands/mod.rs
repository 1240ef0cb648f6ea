//! The commands. One runs at a time, under the lock of the database.

mod keys;
mod saving;
mod session;
mod values;

use std::sync::Arc;

use super::budget::Budget;
use super::reply::Reply;
use super::request::{Words, number};
use super::save::Saver;
use super::store::Store;

pub use session::Session;

/// What commands read and change.
#[derive(Debug)]
pub struct Database {
    pub store: Store,
    pub saver: Saver,
    pub budget: Arc<Budget>,
}

struct Call<'a> {
    database: &'a mut Database,
    session: &'a mut Session,
    reply: &'a mut Reply,
}

/// Whether the command is one of the group and has been answered, or the text of an error.
type Outcome = Result<bool, String>;
type Run = fn(&mut Call<'_>, &str, &[Vec<u8>]) -> Outcome;

const GROUPS: [Run; 4] = [values::run, keys::run, session::run, saving::run];
const NAMES: &str = "bgsave client command config dbsize decr decrby del discard echo exec exists \
    expire flushall flushdb get hello incr incrby info keys lastsave mget mset multi persist pexpire \
    ping pttl quit save scan select set shutdown ttl type unlink";
const SYNTAX: &str = "ERR syntax error";
const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

impl Database {
    /// Answers one request, which has at least one word.
    pub fn run(&mut self, session: &mut Session, words: Words, reply: &mut Reply) {
        let clients = self.budget.lock();
        reply.most = reply.bytes.len() + clients.most.saturating_sub(clients.held).max(64 << 10);
        drop(clients);
        let mut call = Call { database: self, session, reply };
        if !session::queue(&mut call, &words) {
            answer(&mut call, &words);
        }
    }
}

/// Carries out a request. If it fails, the reply is only the error.
fn answer(call: &mut Call<'_>, words: &Words) {
    let start = call.reply.bytes.len();
    if let Err(error) = carry_out(call, words) {
        call.reply.bytes.truncate(start);
        call.reply.line('-', error);
    }
}

fn is_known(word: &[u8]) -> bool {
    NAMES.split(' ').any(|name| is(word, name))
}

fn carry_out(call: &mut Call<'_>, words: &Words) -> Result<(), String> {
    // The longest name has eight bytes.
    let name = words[0][..words[0].len().min(32)].to_ascii_lowercase().escape_ascii().to_string();
    for run in GROUPS {
        if run(call, &name, &words[1..])? {
            return Ok(());
        }
    }
    Err(match is_known(name.as_bytes()) {
        true => format!("ERR wrong number of arguments for '{name}' command"),
        false => format!("ERR unknown command '{name}'"),
    })
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

fn integer(word: &[u8]) -> Result<i64, String> {
    number(word).ok_or_else(|| "ERR value is not an integer or out of range".to_owned())
}
