//! A unit: first it is being populated, then it is ready. After it is leased, no value here refers
//! to it.

use std::time::Instant;

use hugekit_image::ImageError;
use hugekit_lease::MemoryFile;
use hugekit_lease::protocol::{Payer, Refusal};

use crate::filler::{Filled, Filler};

/// The number of a client, in the order of connections.
pub(crate) type ClientId = u64;

/// A populated unit that was never given to a client.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) memory: MemoryFile,
    pub(crate) payer: Payer,
    /// Bytes that are on huge pages.
    pub(crate) huge: u64,
    /// The client whose group was charged. Only this client may get the unit.
    pub(crate) client: Option<ClientId>,
}

/// A unit that processes are populating.
#[derive(Debug)]
pub(crate) struct FillingUnit {
    pub(crate) memory: MemoryFile,
    pub(crate) fillers: Vec<Filler>,
    /// The future owner of the unit, and its account; `None` for the stock.
    pub(crate) client: Option<(ClientId, u32)>,
    /// The payer, if all processes join the groups in their orders.
    pub(crate) payer: Payer,
    pub(crate) all_joined: bool,
    /// The time since which other processes than the one of low priority work.
    pub(crate) hurried: Option<Instant>,
}

impl FillingUnit {
    /// Returns the outcome, if there is one: the unit, or the reason of the failure, and the
    /// processes that are not needed any more. While one of several processes works, there is no
    /// outcome.
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

    /// Ends the processes: the unit has no client any more.
    pub(crate) fn abandon(self) -> EndingProcesses {
        EndingProcesses::new(self.fillers, self.client.unzip().1, Some(self.memory))
    }
}

/// Processes that must end, and have not ended yet. They may hold memory, and stay zombies until
/// they are reaped. A frozen control group delays their end without a limit.
#[derive(Debug)]
pub(crate) struct EndingProcesses {
    pub(crate) fillers: Vec<Filler>,
    /// The account of the client for which the processes populated.
    pub(crate) account: Option<u32>,
    /// The unit that no client gets. It returns to the kernel when the processes have ended.
    pub(crate) memory: Option<MemoryFile>,
}

impl EndingProcesses {
    fn new(mut fillers: Vec<Filler>, account: Option<u32>, memory: Option<MemoryFile>) -> Self {
        fillers.iter_mut().for_each(Filler::kill);
        Self { fillers, account, memory }
    }

    /// Drops processes that have ended. Returns true if all have ended.
    pub(crate) fn reap(&mut self) -> bool {
        self.fillers.retain_mut(|filler| matches!(filler.outcome(), Ok(None)));
        self.fillers.is_empty()
    }
}

/// The outcome of a unit.
#[derive(Debug)]
pub(crate) enum Outcome {
    Ready(Ready),
    /// The reason of the failure, and the client that would have got the unit.
    Failed(Refusal, Option<ClientId>),
}

/// Converts a system error to the form for clients.
pub(crate) fn refused(error: &std::io::Error) -> Refusal {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Refusal::NotPopulated { errno: errno.unsigned_abs().into(), signal: 0 }
}

/// Converts an error of an image to the form for clients.
pub(crate) fn not_populated(error: &ImageError) -> Refusal {
    let errno = hugekit::system_error(error).unwrap_or(libc::EIO);
    Refusal::NotPopulated { errno: errno.unsigned_abs().into(), signal: 0 }
}
