//! All that hugekit knows of Firecracker: its API, the message by which it hands over the memory of a VM that it restores,
//! its regions of guest memory, and its file of a VM's state. Nothing here knows the pager or checkpoints.

mod control;
mod devices;
pub(crate) mod handshake;
pub(crate) mod regions;
pub(crate) mod state_file;

pub(crate) use control::Firecracker;
