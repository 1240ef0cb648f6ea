//! MULTI and EXEC: requests that are kept, and carried out together. No other client's comes in between, because one
//! thread answers all of them. There is no WATCH.

use super::{After, Database, Outcome, command_of, done};
use crate::resp::Reply;

/// Requests since a MULTI.
#[derive(Debug, Default)]
pub struct Queue {
    requests: Vec<Vec<Vec<u8>>>,
    held: usize,
    /// One of them was refused: none will be carried out.
    pub is_broken: bool,
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
    let mut after = After::Next;
    for request in &queue.requests {
        let arguments: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
        let outcome = command_of(&arguments)
            .and_then(|command| (command.run)(database, &arguments[1..], reply));
        match outcome {
            Ok(After::Next) => {}
            Ok(other) => after = other,
            Err(error) => reply.error(&error),
        }
    }
    Ok(after)
}
