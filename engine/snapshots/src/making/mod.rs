//! Making a snapshot and ending it. The files are in the order of the way of a call.

// The options of the call.
pub(crate) mod builder;
// Several ranges: which of them are snapshotted together.
pub(crate) mod neighbours;
// The most bytes of copies, by default.
pub(crate) mod limit;
// From here on, hugekit maps nothing at the addresses.
pub(crate) mod excluded;
// The memory is checked before any change.
pub(crate) mod survey;
// How writes are served, and how often an attempt is repeated.
pub(crate) mod plan;
// All snapshots of the process: the phases of one that joins them or leaves them.
pub(crate) mod tracker;
// The memory is protected.
pub(crate) mod huge_zeroes;
pub(crate) mod protect_helper;
// The unaligned ends are copied.
pub(crate) mod edges;
