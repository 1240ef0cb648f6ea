//! Passes events on, until that fails.

use super::event::Event;

pub(super) struct Teller<'a> {
    tell: &'a mut dyn FnMut(&Event<'_>) -> anyhow::Result<()>,
    /// The first failure.
    pub(super) told: anyhow::Result<()>,
}

impl<'a> Teller<'a> {
    pub(super) fn new(tell: &'a mut dyn FnMut(&Event<'_>) -> anyhow::Result<()>) -> Self {
        Self { tell, told: Ok(()) }
    }

    pub(super) fn tell(&mut self, event: Event<'_>) {
        if self.told.is_ok() {
            self.told = (self.tell)(&event);
        }
    }
}
