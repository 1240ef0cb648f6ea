//! A handler of page faults for VMs that are restored from memory that is still copied.
//!
//! No later pager can take such VMs over, because the memory ends with this process. So nothing is
//! recorded, and there is no listener: whoever starts the VMMs accepts their connections.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::pager::daemon::claim;
use crate::pager::error::Refusal;
use crate::pager::event::Event;
use crate::pager::options::PagerOptions;
use crate::pager::source::Source;
use crate::pager::state::State;
use crate::pager::vm::{self, Bell, Vm};
use crate::pager::waiting::{Admitted, Waiting};
use crate::pager::working_set::WorkingSets;
use crate::vmm::Arriving;

/// Serves VMs from one memory.
#[derive(Debug)]
pub(crate) struct Handler {
    source: Arc<Source>,
    options: PagerOptions,
    sets: WorkingSets,
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
        let (options, sets) = (PagerOptions::default(), WorkingSets::none());
        Ok(Self { source, options, sets, stop })
    }

    /// Serves the VM whose VMM has connected, until all of its memory is there, it has ended, or
    /// the handler is stopped. `tell` gets [`Event::Complete`] or the reason.
    pub(crate) fn serve(&self, connection: &UnixStream, tell: &(dyn Fn(Event) + Sync)) {
        match Waiting::meet(connection, self.options.around, |waiting| self.admit(waiting)) {
            Ok(vm) => vm::serve(vm, &self.stop, &self.options, &self.sets, tell),
            Err(refused) => tell(refused),
        }
    }

    /// Ends all calls of [`serve`](Self::serve). VMs that are not complete then wait for ever.
    pub(crate) fn stop(&self) {
        self.stop.ring();
    }

    fn admit(&self, waiting: &mut Waiting) -> Result<Admitted, Refusal> {
        let layout = waiting.layout_within(self.source.len())?;
        Vm::register(waiting.userfaultfd()?, &layout)?;
        claim(waiting.process()?)?;
        let state = State::unrecorded(&layout).map_err(Refusal::State)?;
        Admitted::new(layout, Arc::clone(&self.source), state)
    }
}
