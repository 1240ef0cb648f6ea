//! The connection, and the protocol that it speaks.

use super::{Call, Outcome, integer, is};
use crate::request::number;

pub(super) fn run(call: &mut Call<'_>, name: &str, words: &[Vec<u8>]) -> Outcome {
    match (name, words) {
        ("ping", []) => call.reply.line('+', "PONG"),
        ("ping" | "echo", [message]) => call.reply.bulk(message),
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

/// HELLO [2 | 3]: the protocol from this reply on.
fn hello(call: &mut Call<'_>, version: Option<&Vec<u8>>) -> Result<(), String> {
    match version.map(|version| number(version)) {
        None => {}
        Some(Some(version @ 2..=3)) => call.reply.is_resp3 = version == 3,
        Some(_) => return Err("NOPROTO unsupported protocol version".to_owned()),
    }
    call.reply.map(4);
    for word in ["server", "kv_store", "version", env!("CARGO_PKG_VERSION"), "role", "master"] {
        call.reply.bulk(word.as_bytes());
    }
    call.reply.bulk(b"proto");
    call.reply.line(':', 2 + i64::from(call.reply.is_resp3));
    Ok(())
}
