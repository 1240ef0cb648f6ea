//! What a client says of itself, and of the protocol.

use std::fmt::Write;

use super::clients::Session;
use super::{After, Database, NO_INTEGER, Outcome, SYNTAX, count, done};
use crate::resp::{Reply, number};

pub(super) fn ping(_: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    match arguments {
        [] => reply.simple("PONG"),
        [message] => reply.bulk(message),
        _ => return Err("ERR wrong number of arguments for 'ping' command".to_owned()),
    }
    Ok(After::Next)
}

pub(super) fn echo(_: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    reply.bulk(arguments[0]);
    Ok(After::Next)
}

pub(super) fn quit(_: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    reply.simple("OK");
    Ok(After::Close)
}

/// There is one database.
pub(super) fn select(_: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    match number(arguments[0]).ok_or(NO_INTEGER)? {
        0 => done(reply),
        _ => Err("ERR DB index is out of range".to_owned()),
    }
}

/// HELLO [2 or 3 [SETNAME name]]: which protocol replies are in from this one on.
pub(super) fn hello(database: &mut Database, arguments: &[&[u8]], reply: &mut Reply) -> Outcome {
    let (version, mut words) =
        arguments.split_first().map_or((None, &[][..]), |(first, rest)| (Some(*first), rest));
    let no_version = "ERR Protocol version is not an integer or out of range";
    let version = match version.map(|version| number(version).ok_or(no_version)).transpose()? {
        None => None,
        Some(version @ 2..=3) => Some(version as u8),
        Some(_) => return Err("NOPROTO unsupported protocol version".to_owned()),
    };
    let mut name = None;
    while let Some((word, rest)) = words.split_first() {
        let is = |option: &[u8]| word.eq_ignore_ascii_case(option);
        words = match rest {
            [given, rest @ ..] if is(b"SETNAME") => {
                name = Some(word_of("Client names", given)?);
                rest
            }
            [_, _, ..] if is(b"AUTH") => return Err(NO_PASSWORD.to_owned()),
            _ => return Err(format!("ERR Syntax error in HELLO option '{}'", word.escape_ascii())),
        };
    }
    let id = database.clients.current;
    let session = database.clients.session();
    session.name = name.unwrap_or_else(|| std::mem::take(&mut session.name));
    session.protocol = version.unwrap_or(session.protocol);
    reply.speak(session.protocol);
    reply.map(7);
    for (key, value) in [("server", "kv_store"), ("version", env!("CARGO_PKG_VERSION"))] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    for (key, value) in [("proto", i64::from(session.protocol)), ("id", id as i64)] {
        reply.bulk(key.as_bytes());
        reply.integer(value);
    }
    for (key, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
    Ok(After::Next)
}

const NO_PASSWORD: &str = "ERR AUTH called without any password configured for the default user";

/// Bytes of a name: what clients say of themselves is not counted as memory that they hold.
const LONGEST_NAME: usize = 256;

/// A word that can stand in a list of clients.
fn word_of(what: &str, bytes: &[u8]) -> Result<String, String> {
    if bytes.len() > LONGEST_NAME {
        Err(format!("ERR {what} cannot be longer than {LONGEST_NAME} bytes."))
    } else if bytes.iter().all(u8::is_ascii_graphic) {
        Ok(String::from_utf8_lossy(bytes).into_owned())
    } else {
        Err(format!("ERR {what} cannot contain spaces, newlines or special characters."))
    }
}

pub(super) fn client_id(database: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    count(reply, database.clients.current as usize)
}

pub(super) fn client_getname(database: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    match &database.clients.session().name {
        name if name.is_empty() => reply.nil(),
        name => reply.bulk(name.as_bytes()),
    }
    Ok(After::Next)
}

pub(super) fn client_setname(
    database: &mut Database,
    words: &[&[u8]],
    reply: &mut Reply,
) -> Outcome {
    database.clients.session().name = word_of("Client names", words[0])?;
    done(reply)
}

pub(super) fn client_setinfo(
    database: &mut Database,
    words: &[&[u8]],
    reply: &mut Reply,
) -> Outcome {
    let session = database.clients.session();
    let field = match words[0].to_ascii_uppercase().as_slice() {
        b"LIB-NAME" => &mut session.library,
        b"LIB-VER" => &mut session.library_version,
        _ => return Err(format!("ERR Unrecognized option '{}'", words[0].escape_ascii())),
    };
    *field = word_of("lib-name and lib-ver", words[1])?;
    done(reply)
}

pub(super) fn client_info(database: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    let id = database.clients.current;
    reply.text(&described(id, database.clients.session()));
    Ok(After::Next)
}

/// CLIENT LIST: of all of them.
pub(super) fn client_list(database: &mut Database, words: &[&[u8]], reply: &mut Reply) -> Outcome {
    if !words.is_empty() {
        return Err(SYNTAX.to_owned());
    }
    let sessions = database.clients.sessions.iter();
    reply.text(&sessions.map(|(&id, session)| described(id, session)).collect::<String>());
    Ok(After::Next)
}

fn described(id: u64, session: &Session) -> String {
    let Session { address, began, name, library, library_version, protocol, .. } = session;
    let mut line = format!("id={id}");
    if let Some(address) = address {
        // Writing to a string does not fail.
        let _ = write!(line, " addr={address}");
    }
    let age = began.elapsed().as_secs();
    line + &format!(
        " name={name} age={age} db=0 resp={protocol} lib-name={library} lib-ver={library_version}\n"
    )
}
