//! Reading a snapshot: its sources, and the ways to get its bytes.

pub(crate) mod anonymous;
pub(crate) mod buffer;
pub(crate) mod piece;
pub(crate) mod reader;
pub(crate) mod region;
pub(crate) mod source;
pub(crate) mod stream;
pub(crate) mod view;
