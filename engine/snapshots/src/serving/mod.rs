//! One snapshot while writers run. The files are in the order of the way of a write, from the fault to the copied
//! granule.

// The fault: the snapshots that have the address.
pub(crate) mod segment;
// One of these snapshots, and what it does for the write.
pub(crate) mod state;
// May it do anything now?
pub(crate) mod lifecycle;
// The granule of the address.
pub(crate) mod interval;
// Do writes come in order? Then granules behind this one are copied, too.
pub(crate) mod runs;
// The right to copy the granule.
pub(crate) mod granules;
// The place for the copy.
pub(crate) mod arena;
pub(crate) mod delivery;
pub(crate) mod reserve;
// The kernel: was the granule protected until now? From now on, writes pass.
pub(crate) mod write_protector;

// The same, ahead of writers.
pub(crate) mod background;
