//! A handler of page faults for VMs that are restored from memory that is still copied.
//!
//! No later pager can take such VMs over, because the memory ends with this process. So nothing is
//! recorded, and there is no listener: whoever starts the VMMs accepts their connections.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::firecracker::handshake;
use crate::firecracker::layout::Layout;
use crate::pager::daemon::claim;
use crate::pager::error::Refusal;
use crate::pager::event::Event;
use crate::pager::options::PagerOptions;
use crate::pager::source::Source;
use crate::pager::state::State;
use crate::pager::vm::{self, Bell, Vm};
use crate::vmm::Arriving;
use crate::vmm::process::Process;
use crate::vmm::userfaultfd::Userfaultfd;

/// Serves VMs from one memory.
#[derive(Debug)]
pub(crate) struct Handler {
    source: Arc<Source>,
    options: PagerOptions,
    stop: Bell,
}

impl Handler {
    /// A handler of VMs with this memory.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new(memory: Arc<dyn Arriving>) -> io::Result<Self> {
        let source = Arc::new(Source::arriving(memory));
        let stop = Bell::new().map_err(io::Error::from)?;
        Ok(Self { source, options: PagerOptions::default(), stop })
    }

    /// Serves the VM whose VMM has connected, until all of its memory is there, it has ended, or
    /// the handler is stopped. `tell` gets [`Event::Complete`] or the reason.
    pub(crate) fn serve(&self, connection: &UnixStream, tell: &(dyn Fn(Event) + Sync)) {
        let process = match Process::peer(connection) {
            Ok(process) => process,
            Err(error) => return tell(Event::Refused { pid: None, why: Refusal::Process(error) }),
        };
        let pid = process.pid();
        let served = self.admit(connection, process);
        let served = served.and_then(|vm| vm::serve(vm, &self.stop, &self.options, tell));
        if let Err(why) = served {
            tell(Event::Refused { pid: Some(pid), why });
        }
    }

    /// Ends all calls of [`serve`](Self::serve). VMs that are not complete then wait for ever.
    pub(crate) fn stop(&self) {
        self.stop.ring();
    }

    fn admit(&self, connection: &UnixStream, mut process: Process) -> Result<Vm, Refusal> {
        let (message, descriptor) = handshake::receive(connection)?;
        let faults = Userfaultfd::new(descriptor)?;
        let layout = Layout::of_message(&message, self.source.len())?;
        Vm::register(&faults, &layout)?;
        claim(&mut process)?;
        let state = State::unrecorded(&layout).map_err(Refusal::State)?;
        let source = Arc::clone(&self.source);
        Ok(Vm::new(process, faults, layout, source, state, self.options.around))
    }
}
