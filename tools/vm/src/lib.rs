#![doc = include_str!("../README.md")]
#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod api;
#[cfg(feature = "clap")]
mod arguments;
pub mod checkpoint;
pub mod cloud_hypervisor;
mod firecracker;
pub mod pager;
mod vmm;
