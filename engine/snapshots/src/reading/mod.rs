//! Reading a snapshot: its sources, and the ways to get its bytes.

// The source of the bytes: protected memory, a fork of a region, or a piece of another source.
pub(crate) mod source;
// The three sources. (Forks of regions are in `hugekit-regions`.)
pub(crate) mod anonymous;
pub(crate) mod piece;
// All bytes in order, protection lifted behind the reader.
pub(crate) mod buffer;
pub(crate) mod stream;
// All bytes to memory of its own, from the beginning on.
pub(crate) mod staging;
// For programs: a reader with options, and a snapshot as memory.
pub(crate) mod reader;
pub(crate) mod view;
