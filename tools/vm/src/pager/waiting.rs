//! A VMM that waits for memory, until it is served or its wait ends.
//!
//! This value owns everything that a VMM has sent. If a refusal only closed the descriptor, each
//! thread that touches the memory would wait for ever: the VMM has a copy of the descriptor, so the
//! kernel would continue to wait.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use hugekit_sys::error_chain;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::firecracker::handshake::{self, LONGEST_WAIT, Sent};
use crate::pager::error::Refusal;
use crate::pager::event::Event;
use crate::pager::served::Served;
use crate::pager::source::Source;
use crate::pager::state::State;
use crate::pager::vm::{Bell, ServedVm};
use crate::vmm::Layout;
use crate::vmm::kept_layout;
use crate::vmm::process::Process;
use crate::vmm::userfaultfd::{UnfitDescriptor, Userfaultfd};

/// The descriptor number of standard error.
const STDERR: i32 = 2;

/// The end of a refused VM's wait.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ending {
    /// The VM does not wait: no userfaultfd arrived, or no userfaultfd is registered with its
    /// memory.
    NoWait,
    /// Every access to missing memory fails.
    Fails,
    /// The VMM was killed.
    Killed,
    /// The kernel permits neither to this process: the VMM waits until a user ends it.
    Waits(io::Error),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoWait => Ok(()),
            Self::Fails => f.write_str("; its accesses to memory fail"),
            Self::Killed => f.write_str("; its VMM was ended"),
            Self::Waits(error) => {
                write!(f, "; its VMM waits until you end it, which this user may not: {error}")
            }
        }
    }
}

/// Everything that a served VM needs, besides the message of its VMM. It is allocated before the VM
/// is served, so that a shortage is a refusal.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) layout: Layout,
    pub(crate) source: Arc<Source>,
    pub(crate) state: State,
    pub(crate) bell: Arc<Bell>,
}

impl Admitted {
    pub(crate) fn new(layout: Layout, source: Arc<Source>, state: State) -> Result<Self, Refusal> {
        match Bell::new() {
            Ok(bell) => Ok(Self { layout, source, state, bell: Arc::new(bell) }),
            Err(errno) => {
                state.remove();
                Err(Refusal::Process(errno.into()))
            }
        }
    }
}

/// The VMM and its message.
#[derive(Debug)]
pub(crate) struct Waiting {
    process: Result<Process, io::Error>,
    userfaultfds: Vec<Userfaultfd>,
    unfit: Option<UnfitDescriptor>,
    message: Vec<u8>,
    layout: Option<Layout>,
    /// True if a descriptor arrived for which this process had no room.
    is_cut: bool,
}

impl Waiting {
    /// Receives the message of a VMM within a time limit. Also returns the refusal if the message
    /// is not complete or has no descriptor.
    pub(crate) fn receive(connection: &UnixStream, most: Duration) -> (Self, Result<(), Refusal>) {
        let process = Process::peer(connection);
        let mut sent = Sent::default();
        let received = handshake::receive(connection, most, &mut sent);
        let Sent { message, descriptors, is_cut } = sent;
        (
            Self { message, is_cut, ..Self::new(process, descriptors) },
            received.map_err(Refusal::from),
        )
    }

    /// Makes a VMM that an earlier pager has left.
    pub(crate) fn left(process: Process, layout: Option<Layout>) -> Self {
        let descriptors = process.userfaultfds().unwrap_or_default();
        let waiting = Self::new(Ok(process), descriptors);
        // Its userfaultfd may be one that this process may not copy.
        let is_cut = waiting.userfaultfds.is_empty();
        Self { layout, is_cut, ..waiting }
    }

    fn new(process: io::Result<Process>, descriptors: Vec<OwnedFd>) -> Self {
        let (mut userfaultfds, mut unfit) = (Vec::new(), None);
        for descriptor in descriptors {
            match Userfaultfd::new(descriptor) {
                Ok(faults) => userfaultfds.push(faults),
                Err(error) => unfit = Some(error),
            }
        }
        let (message, layout, is_cut) = (Vec::new(), None, false);
        Self { process, userfaultfds, unfit, message, layout, is_cut }
    }

    /// Makes a served VM of a VMM that has connected, if `admit` accepts it. Otherwise ends its
    /// wait, and returns the event.
    pub(crate) fn meet(
        connection: &UnixStream,
        around: u64,
        admit: impl FnOnce(&mut Self) -> Result<Admitted, Refusal>,
    ) -> Result<ServedVm, Event> {
        let (mut waiting, received) = Self::receive(connection, LONGEST_WAIT);
        match received.and_then(|()| admit(&mut waiting)) {
            Ok(admitted) => {
                kept_layout::keep(connection, &admitted.layout);
                waiting.into_vm(admitted, around)
            }
            Err(why) => Err(waiting.refuse(why)),
        }
    }

    pub(crate) fn pid(&self) -> Option<i32> {
        self.process.as_ref().ok().map(Process::pid)
    }

    /// Returns the VMM's process, which must be known.
    pub(crate) fn process(&mut self) -> Result<&mut Process, Refusal> {
        let unknown = |error: &mut io::Error| {
            Refusal::Process(std::mem::replace(error, io::ErrorKind::NotFound.into()))
        };
        self.process.as_mut().map_err(unknown)
    }

    /// Returns the layout in the VMM's message.
    pub(crate) fn layout_within(&self, source: u64) -> Result<Layout, Refusal> {
        Ok(handshake::layout(&self.message, source)?)
    }

    /// Returns the VMM's descriptor, which must be usable.
    pub(crate) fn userfaultfd(&mut self) -> Result<&Userfaultfd, Refusal> {
        match (self.userfaultfds.first(), self.unfit.take()) {
            (_, Some(unfit)) => Err(unfit.into()),
            (Some(faults), None) => Ok(faults),
            (None, None) => Err(Refusal::NoUserfaultfd),
        }
    }

    /// Makes the VM, which is served from now on. Its process and its descriptor exist, because it
    /// was admitted.
    fn into_vm(mut self, admitted: Admitted, around: u64) -> Result<ServedVm, Event> {
        if self.userfaultfds.is_empty() {
            return Err(self.refuse(Refusal::NoUserfaultfd));
        }
        match self.process {
            Ok(process) => {
                Ok(ServedVm::new(process, self.userfaultfds.remove(0), admitted, around))
            }
            Err(error) => {
                let process = Err(io::ErrorKind::NotFound.into());
                Err(Self { process, ..self }.refuse(Refusal::Process(error)))
            }
        }
    }

    /// Ends the VMM's wait, and returns the event.
    pub(crate) fn refuse(self, why: Refusal) -> Event {
        let pid = self.pid();
        let ending = self.end(&why);
        Event::Refused { pid, why, ending }
    }

    /// Ends the VMM's wait, and writes the reason to its standard error.
    fn end(self, why: &Refusal) -> Ending {
        let served = self.pid().and_then(|pid| Served::of_process(pid).ok());
        let waits = !self.userfaultfds.is_empty() || self.is_cut;
        if !waits || served.as_ref().is_some_and(Vec::is_empty) {
            return Ending::NoWait;
        }
        if let Ok(process) = &self.process {
            tell_stderr(process, &format!("{:#}", error_chain(why)));
        }
        if self.poison(served.unwrap_or_default()) {
            return Ending::Fails;
        }
        match self.process.and_then(|process| process.kill()) {
            Ok(()) => Ending::Killed,
            Err(error) => Ending::Waits(error),
        }
    }

    /// Makes accesses to the VMM's memory fail: the memory in its message, or else all memory that
    /// is registered with a userfaultfd. Returns true if they fail.
    fn poison(&self, served: Vec<Served>) -> bool {
        let sent = || handshake::layout(&self.message, u64::MAX).ok();
        let memory: Vec<Served> = match self.layout.clone().or_else(sent) {
            Some(layout) => {
                let page = layout.page();
                let regions = layout.regions().iter();
                regions.map(|region| Served { addresses: region.addresses(), page }).collect()
            }
            None => served,
        };
        let poison = |faults: &Userfaultfd, memory: &Served| {
            faults.poison_missing(&memory.addresses, memory.page).is_ok()
        };
        let is_poisoned =
            |memory: &Served| self.userfaultfds.iter().any(|faults| poison(faults, memory));
        !memory.is_empty() && memory.iter().all(is_poisoned)
    }
}

/// Writes a line to the standard error of a VMM, if it accepts the line at once. Its user sees
/// there why the VMM ends.
pub(crate) fn tell_stderr(process: &Process, why: &str) {
    let Ok(stderr) = process.copy(STDERR) else { return };
    let mut awaited = [PollFd::new(&stderr, PollFlags::OUT)];
    // A pipe that can be written to has room for more than a line; one without a reader has an error, too.
    let is_ready = poll(&mut awaited, Some(&Timespec::default())).is_ok();
    if is_ready && awaited[0].revents() == PollFlags::OUT {
        let _ = File::from(stderr).write_all(format!("hugekit pager: {why}\n").as_bytes());
    }
}
