#![doc = include_str!("README.md")]

mod config;
mod devices;
mod error;
mod layout;
mod memory;
mod migration;
mod place;
mod protocol;
mod snapshot;
mod start;

pub use crate::devices::{DeviceError, OwnDevices};
pub use error::{RestoreError, UnfitMemory};
pub use memory::ReadyMemory;
pub use migration::{Restore, Restored};
pub use snapshot::Snapshot;
