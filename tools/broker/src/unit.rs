//! A unit on its way: being populated, then ready. From there it is given away, and no value here knows it any more.

use std::time::Instant;

use hugekit_image::ImageError;
use hugekit_lease::MemoryFile;
use hugekit_lease::protocol::{Payer, Refusal};

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
pub(crate) struct FillingUnit {
    pub(crate) memory: MemoryFile,
    pub(crate) fillers: Vec<Filler>,
    /// Whose it will be, and that one's account; `None` for the stock.
    pub(crate) client: Option<(ClientId, u32)>,
    /// Who pays if all of them join the groups that they are told of.
    pub(crate) payer: Payer,
    pub(crate) all_joined: bool,
    /// Since when more than the one of low priority is at work.
    pub(crate) hurried: Option<Instant>,
}

impl FillingUnit {
    /// Returns the outcome, if there is one: the unit, or why it cannot be populated; and the processes that are
    /// superfluous then. As long as one of several processes works, there is none.
    pub(crate) fn step(mut self) -> Result<(Outcome, EndingProcesses), Self> {
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
                let (id, account) = self.client.unzip();
                let ready = Ready { memory: self.memory, payer, huge, client: id };
                Ok((Outcome::Ready(ready), EndingProcesses::new(self.fillers, account, None)))
            }
            (None, Some(refusal)) if self.fillers.is_empty() => {
                let (id, account) = self.client.unzip();
                Ok((
                    Outcome::Failed(refusal, id),
                    EndingProcesses::new(self.fillers, account, None),
                ))
            }
            _ => Err(self),
        }
    }

    /// Ends its processes: it is no client's any more.
    pub(crate) fn abandon(self) -> EndingProcesses {
        EndingProcesses::new(self.fillers, self.client.unzip().1, Some(self.memory))
    }
}

/// Processes that have to end, and have not yet: they may hold memory, and stay zombies until they are asked after. A
/// control group that is frozen keeps them for as long as it likes.
#[derive(Debug)]
pub(crate) struct EndingProcesses {
    pub(crate) fillers: Vec<Filler>,
    /// Whose client they populated for.
    pub(crate) account: Option<u32>,
    /// The unit that no client gets, which is the kernel's again when they have ended.
    pub(crate) memory: Option<MemoryFile>,
}

impl EndingProcesses {
    fn new(mut fillers: Vec<Filler>, account: Option<u32>, memory: Option<MemoryFile>) -> Self {
        fillers.iter_mut().for_each(Filler::kill);
        Self { fillers, account, memory }
    }

    /// Drops fillers that have ended; returns whether all have.
    pub(crate) fn reap(&mut self) -> bool {
        self.fillers.retain_mut(|filler| matches!(filler.outcome(), Ok(None)));
        self.fillers.is_empty()
    }
}

/// The outcome of a unit.
#[derive(Debug)]
pub(crate) enum Outcome {
    Ready(Ready),
    /// And whose it would have been.
    Failed(Refusal, Option<ClientId>),
}

/// Returns a system error, as clients are told.
pub(crate) fn refused(error: &std::io::Error) -> Refusal {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Refusal::NotPopulated { errno: errno.unsigned_abs().into(), signal: 0 }
}

/// Returns an error of an image, as clients are told.
pub(crate) fn not_populated(error: &ImageError) -> Refusal {
    let errno = hugekit::system_error(error).unwrap_or(libc::EIO);
    Refusal::NotPopulated { errno: errno.unsigned_abs().into(), signal: 0 }
}
