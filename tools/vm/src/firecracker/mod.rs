//! The words of Firecracker: requests to its API, and the message by which it hands over the memory of a VM that it
//! restores.

pub(crate) mod handshake;
pub(crate) mod layout;
pub(crate) mod requests;
