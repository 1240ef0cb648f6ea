//! A client: the protocol that it speaks, and the requests that wait for EXEC. There is no WATCH.

use super::{Call, Outcome, answer, integer, is, is_known};
use crate::request::{Words, number};

#[derive(Debug, Default)]
pub struct Session {
    /// Requests since a MULTI.
    queue: Option<Vec<Words>>,
    /// Bytes of memory that they take.
    pub held: usize,
    /// A request was refused, so EXEC carries out none.
    is_broken: bool,
}

/// Queues a request if it has to wait for EXEC. Returns whether it has.
pub(super) fn queue(call: &mut Call<'_>, words: &Words) -> bool {
    let is_at_once = ["multi", "exec", "discard", "quit"].iter().any(|name| is(&words[0], name));
    let Some(queue) = call.session.queue.as_mut().filter(|_| !is_at_once) else { return false };
    if !is_known(&words[0]) {
        call.session.is_broken = true;
        return false;
    }
    // Each list and each word is an allocation of its own.
    call.session.held += 200 + words.iter().map(|word| word.len() + 64).sum::<usize>();
    queue.push(words.clone());
    call.reply.line('+', "QUEUED");
    true
}

pub(super) fn run(call: &mut Call<'_>, name: &str, words: &[Vec<u8>]) -> Outcome {
    match (name, words) {
        ("multi", []) if call.session.queue.is_some() => {
            return Err("ERR MULTI calls can not be nested".to_owned());
        }
        ("multi", []) => {
            call.session.queue = Some(Vec::new());
            call.reply.ok();
        }
        ("discard", []) => {
            let session = std::mem::take(call.session);
            session.queue.ok_or("ERR DISCARD without MULTI")?;
            call.reply.ok();
        }
        ("exec", []) => exec(call)?,
        ("ping", []) => call.reply.line('+', "PONG"),
        ("ping" | "echo", [message]) => call.reply.bulk(message)?,
        ("quit", []) => {
            call.reply.ok();
            call.reply.closes = true;
        }
        // There is one database.
        ("select", [number]) if integer(number)? == 0 => call.reply.ok(),
        ("select", [_]) => return Err("ERR DB index is out of range".to_owned()),
        // Libraries tell their names and versions. Nothing keeps them.
        ("client", [word, _, _]) if is(word, "setinfo") => call.reply.ok(),
        ("client", [_, ..]) => return Err("ERR unknown subcommand".to_owned()),
        // This server describes no commands.
        ("command", _) => call.reply.line('*', 0),
        ("hello", [] | [_]) => hello(call, words.first())?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// A request that fails is answered with its error, and the others are carried out all the same.
fn exec(call: &mut Call<'_>) -> Result<(), String> {
    let session = std::mem::take(call.session);
    let queue = session.queue.ok_or("ERR EXEC without MULTI")?;
    if session.is_broken {
        return Err("EXECABORT Transaction discarded because of previous errors.".to_owned());
    }
    call.reply.line('*', queue.len());
    queue.iter().for_each(|words| answer(call, words));
    Ok(())
}

/// HELLO [2 | 3]: the protocol from this reply on.
fn hello(call: &mut Call<'_>, version: Option<&Vec<u8>>) -> Result<(), String> {
    match version.map(|version| number(version)) {
        None => {}
        Some(Some(version @ 2..=3)) => call.reply.is_resp3 = version == 3,
        Some(_) => return Err("NOPROTO unsupported protocol version".to_owned()),
    }
    call.reply.map(4);
    for word in
        ["server", "kv_store", "version", env!("CARGO_PKG_VERSION"), "role", "master", "proto"]
    {
        call.reply.bulk(word.as_bytes())?;
    }
    call.reply.line(':', 2 + i64::from(call.reply.is_resp3));
    Ok(())
}
