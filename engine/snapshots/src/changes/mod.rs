//! Successive states, each stored as the writes since the state before.

// An epoch, and the changes since it.
pub(crate) mod epoch;
// Granules that change in each state, and are therefore not watched.
pub(crate) mod heat;
// One thread reads changes while another thread uses them.
pub(crate) mod read_ahead;
