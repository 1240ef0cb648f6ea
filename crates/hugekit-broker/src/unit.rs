//! A unit on its way: being populated, then ready. From there it is given away, and no value here knows it any more.

use std::time::Instant;

use hugekit::lease::MemoryFile;
use hugekit::lease::protocol::{Payer, Refusal};

use crate::filler::{Filled, Filler};

/// A client, by the order in which they came.
pub(crate) type ClientId = u64;

/// A unit that is populated, and was never given to any client.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) memory: MemoryFile,
    pub(crate) payer: Payer,
    /// Bytes that are on huge pages.
    pub(crate) huge: u64,
    /// Whose group was charged for it, and who alone may have it.
    pub(crate) client: Option<ClientId>,
}

/// A unit that processes are populating.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(crate) memory: MemoryFile,
    pub(crate) fillers: Vec<Filler>,
    /// Whose it will be; `None` for the stock.
    pub(crate) client: Option<(ClientId, u32)>,
    /// Who pays if all of them join the groups that they are told of.
    pub(crate) payer: Payer,
    pub(crate) all_joined: bool,
    /// Since when more than the one of low priority is at work.
    pub(crate) hurried: Option<Instant>,
}

impl Filling {
    /// What came of it, if something did: the unit, or why it cannot be populated. As long as one of several processes
    /// works, nothing did.
    pub(crate) fn step(mut self) -> Result<Outcome, Self> {
        let mut refusal = None;
        let mut populated = None;
        self.fillers.retain_mut(|filler| match filler.outcome() {
            Ok(None) => true,
            Ok(Some(Ok(Filled { joined, huge }))) => {
                self.all_joined &= joined;
                populated = populated.max(Some(huge));
                false
            }
            Ok(Some(Err(why))) => {
                refusal = Some(why);
                false
            }
            Err(error) => {
                refusal = Some(refused(&error));
                false
            }
        });
        match (populated, refusal) {
            (Some(huge), _) => {
                let payer = if self.all_joined { self.payer } else { Payer::Broker };
                let client = self.client.map(|(id, _)| id);
                Ok(Outcome::Ready(Ready { memory: self.memory, payer, huge, client }))
            }
            (None, Some(refusal)) if self.fillers.is_empty() => {
                Ok(Outcome::Failed(refusal, self.client.map(|(id, _)| id)))
            }
            _ => Err(self),
        }
    }
}

/// What came of a unit.
#[derive(Debug)]
pub(crate) enum Outcome {
    Ready(Ready),
    /// And whose it would have been.
    Failed(Refusal, Option<ClientId>),
}

/// A system error, as clients are told.
pub(crate) fn refused(error: &std::io::Error) -> Refusal {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Refusal::NotPopulated { errno: errno.unsigned_abs().into(), signal: 0 }
}
