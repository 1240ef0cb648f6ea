//! MULTI and EXEC: requests that are queued, and carried out together. There is no WATCH.

use super::{Call, Outcome, carry_out};
use crate::request::Words;

/// Commands that are not queued.
pub(super) const NAMES: [&str; 4] = ["multi", "exec", "discard", "quit"];

/// Requests since a MULTI.
#[derive(Debug, Default)]
pub(super) struct Queue {
    requests: Vec<Words>,
    /// Bytes of memory that they take.
    pub(super) held: usize,
    /// A request was refused, so EXEC carries out none.
    pub(super) is_broken: bool,
}

impl Queue {
    pub(super) fn push(&mut self, words: Words) {
        // Each list and each word is an allocation of its own.
        self.held += 200 + words.iter().map(|word| word.len() + 64).sum::<usize>();
        self.requests.push(words);
    }
}

pub(super) fn run(call: &mut Call<'_>, name: &str, words: &[Vec<u8>]) -> Outcome {
    match (name, words) {
        ("multi", []) if call.session.queue.is_some() => {
            return Err("ERR MULTI calls can not be nested".to_owned());
        }
        ("multi", []) => {
            call.session.queue = Some(Queue::default());
            call.reply.ok();
        }
        ("discard", []) => {
            call.session.queue.take().ok_or("ERR DISCARD without MULTI")?;
            call.reply.ok();
        }
        ("exec", []) => exec(call)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// A request that fails is answered with its error, and the others are carried out all the same.
fn exec(call: &mut Call<'_>) -> Result<(), String> {
    let queue = call.session.queue.take().ok_or("ERR EXEC without MULTI")?;
    if queue.is_broken {
        return Err("EXECABORT Transaction discarded because of previous errors.".to_owned());
    }
    call.reply.array(queue.requests.len());
    for words in &queue.requests {
        let outcome = carry_out(call, words);
        outcome.unwrap_or_else(|error| call.reply.error(&error));
    }
    Ok(())
}
