//! A handler of page faults for VMs that the same process has started: children of a fork, and
//! clones.
//!
//! No later pager takes such VMs over: incomplete VMs end with this process. So nothing is
//! recorded, and there is no listener: the code that starts the VMMs accepts their connections.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crate::pager::daemon::claim;
use crate::pager::error::Refusal;
use crate::pager::event::Event;
use crate::pager::options::PagerOptions;
use crate::pager::source::Source;
use crate::pager::state::State;
use crate::pager::vm::{self, Bell, ServedVm};
use crate::pager::waiting::{Admitted, Waiting};
use crate::pager::working_set::WorkingSets;
use crate::vmm::Arriving;

/// A handler of VMs with one memory.
#[derive(Debug)]
pub(crate) struct Handler {
    source: Arc<Source>,
    options: PagerOptions,
    sets: WorkingSets,
    stop: Bell,
}

impl Handler {
    /// Makes a handler for VMs whose memory is still being copied.
    ///
    /// # Errors
    /// An error if no descriptor is left.
    pub(crate) fn of_arriving(memory: Arc<dyn Arriving>) -> io::Result<Self> {
        Self::new(Source::arriving(memory), WorkingSets::none())
    }

    /// Makes a handler for VMs with the memory of a file. If an earlier pager has recorded a
    /// working set, that memory comes first.
    ///
    /// # Errors
    /// An error if no descriptor is left.
    pub(crate) fn of_file(source: Source) -> io::Result<Self> {
        let sets = WorkingSets::found_beside(source.path());
        Self::new(source, sets)
    }

    fn new(source: Source, sets: WorkingSets) -> io::Result<Self> {
        let stop = Bell::new().map_err(io::Error::from)?;
        // Somebody waits until the VMs are complete, so no time is spent to record their touches.
        let options = PagerOptions { record: Duration::ZERO, ..PagerOptions::default() };
        Ok(Self { source: Arc::new(source), options, sets, stop })
    }

    /// Serves the VM whose VMM has connected, until all of its memory is supplied, the VM has
    /// ended, or the handler is stopped. `tell` gets [`Event::Complete`] or the reason of the
    /// failure.
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
        self.source.check_current()?;
        ServedVm::register(waiting.userfaultfd()?, &layout)?;
        claim(waiting.process()?)?;
        let state = State::unrecorded(&layout).map_err(Refusal::State)?;
        Admitted::new(layout, Arc::clone(&self.source), state)
    }
}
