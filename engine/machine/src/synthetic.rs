//! A synthetic machine of a test, for readers of a [`Root`].

use std::ops::Deref;

use hugekit_invented_machines::Files;

use super::Root;

pub(crate) struct Synthetic(Files);

impl Synthetic {
    pub(crate) fn new() -> Self {
        Self(Files::new().unwrap())
    }

    pub(crate) fn root(&self) -> Root {
        Root::at(self.path())
    }
}

impl Deref for Synthetic {
    type Target = Files;

    fn deref(&self) -> &Files {
        &self.0
    }
}
