//! Firecracker's interfaces: its API, the message by which it hands over the memory of a restored
//! VM, its regions of guest memory, and its file of a VM's state. Nothing here depends on the pager
//! or on checkpoints.

mod control;
mod devices;
pub(crate) mod handshake;
pub(crate) mod regions;
pub(crate) mod state_file;

pub(crate) use control::Firecracker;
