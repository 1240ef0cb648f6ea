//! MULTI and EXEC: requests that are queued, and carried out together. There is no WATCH.

use super::{Call, Outcome, carry_out, is, is_known};
use crate::request::Words;

/// Requests since a MULTI.
#[derive(Debug, Default)]
pub(super) struct Queue {
    requests: Vec<Words>,
    /// Bytes of memory that they take.
    pub(super) held: usize,
    /// A request was refused, so EXEC carries out none.
    is_broken: bool,
}

/// Queues a request if it has to wait for EXEC.
pub(super) fn queue(call: &mut Call<'_>, words: &Words) -> Option<Result<(), String>> {
    let is_at_once = ["multi", "exec", "discard", "quit"].iter().any(|name| is(&words[0], name));
    let queue = call.session.0.as_mut().filter(|_| !is_at_once)?;
    if !is_known(&words[0]) {
        queue.is_broken = true;
        return None;
    }
    // Each list and each word is an allocation of its own.
    queue.held += 200 + words.iter().map(|word| word.len() + 64).sum::<usize>();
    queue.requests.push(words.clone());
    call.reply.line('+', "QUEUED");
    Some(Ok(()))
}

pub(super) fn run(call: &mut Call<'_>, name: &str, words: &[Vec<u8>]) -> Outcome {
    let queue = &mut call.session.0;
    match (name, words) {
        ("multi", []) if queue.is_some() => return Err("ERR MULTI calls can not be nested".into()),
        ("multi", []) => {
            *queue = Some(Queue::default());
            call.reply.ok();
        }
        ("discard", []) => {
            queue.take().ok_or("ERR DISCARD without MULTI")?;
            call.reply.ok();
        }
        ("exec", []) => exec(call)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// A request that fails is answered with its error, and the others are carried out all the same.
fn exec(call: &mut Call<'_>) -> Result<(), String> {
    let queue = call.session.0.take().ok_or("ERR EXEC without MULTI")?;
    if queue.is_broken {
        return Err("EXECABORT Transaction discarded because of previous errors.".to_owned());
    }
    call.reply.line('*', queue.requests.len());
    for words in &queue.requests {
        carry_out(call, words).unwrap_or_else(|error| call.reply.line('-', error));
    }
    Ok(())
}
