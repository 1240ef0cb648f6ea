//! Passes events on, until that fails.

use super::event::TendEvent;

pub(super) struct Teller<'a> {
    tell: &'a mut dyn FnMut(&TendEvent<'_>) -> anyhow::Result<()>,
    /// The first failure.
    pub(super) told: anyhow::Result<()>,
}

impl<'a> Teller<'a> {
    pub(super) fn new(tell: &'a mut dyn FnMut(&TendEvent<'_>) -> anyhow::Result<()>) -> Self {
        Self { tell, told: Ok(()) }
    }

    pub(super) fn tell(&mut self, event: TendEvent<'_>) {
        if self.told.is_ok() {
            self.told = (self.tell)(&event);
        }
    }
}
