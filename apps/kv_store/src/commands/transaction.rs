//! MULTI and EXEC: requests that are kept, and carried out together. No other client's comes in between, because one
//! thread answers all of them. There is no WATCH.

use super::{After, Call, Database, NO_MULTI, Outcome, command_of, done};
use crate::resp::Reply;

/// Requests since a MULTI.
#[derive(Debug, Default)]
pub struct Queue {
    requests: Vec<Vec<Vec<u8>>>,
    held: usize,
    /// One of them was refused: none will be carried out.
    is_broken: bool,
}

impl Queue {
    pub fn push(&mut self, arguments: &[&[u8]]) {
        let bytes: usize =
            arguments.iter().map(|argument| argument.len() + size_of::<Vec<u8>>()).sum();
        self.held += bytes + size_of::<Vec<Vec<u8>>>();
        self.requests.push(arguments.iter().map(|argument| argument.to_vec()).collect());
    }

    /// Bytes of memory that it takes.
    pub fn held(&self) -> usize {
        self.held
    }
}

/// Keeps a request, or refuses it and all that are kept. Without a MULTI there are none.
pub(super) fn keep(
    queue: &mut Option<Queue>,
    call: Result<Call<'_>, String>,
    arguments: &[&[u8]],
    reply: &mut Reply,
) -> Outcome {
    let error = match call {
        Ok(call) if call.command.flags.contains(&NO_MULTI) => {
            "ERR Command not allowed inside a transaction".to_owned()
        }
        Ok(_) => {
            queue.iter_mut().for_each(|queue| queue.push(arguments));
            reply.simple("QUEUED");
            return Ok(After::Next);
        }
        Err(error) => error,
    };
    if arguments[0].eq_ignore_ascii_case(b"EXEC") {
        *queue = None;
        let why = error.trim_start_matches("ERR ");
        return Err(format!("EXECABORT Transaction discarded because of: {why}"));
    }
    queue.iter_mut().for_each(|queue| queue.is_broken = true);
    Err(error)
}

pub(super) fn multi(database: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    let queue = &mut database.clients.session().queue;
    if queue.is_some() {
        return Err("ERR MULTI calls can not be nested".to_owned());
    }
    *queue = Some(Queue::default());
    done(reply)
}

pub(super) fn discard(database: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    match database.clients.session().queue.take() {
        Some(_) => done(reply),
        None => Err("ERR DISCARD without MULTI".to_owned()),
    }
}

/// One that fails is answered with its error, and those behind it are carried out all the same.
pub(super) fn exec(database: &mut Database, _: &[&[u8]], reply: &mut Reply) -> Outcome {
    let queue = database.clients.session().queue.take().ok_or("ERR EXEC without MULTI")?;
    if queue.is_broken {
        return Err("EXECABORT Transaction discarded because of previous errors.".to_owned());
    }
    reply.array(queue.requests.len());
    for request in &queue.requests {
        let arguments: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
        // None of them ends the connection: those that do are not kept.
        if let Err(error) = command_of(&arguments).and_then(|call| call.run(database, reply)) {
            reply.error(&error);
        }
    }
    Ok(After::Next)
}
