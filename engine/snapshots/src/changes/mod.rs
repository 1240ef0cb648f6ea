//! Successive states, each stored as the writes since the state before.

pub(crate) mod epoch;
pub(crate) mod heat;
pub(crate) mod read_ahead;
