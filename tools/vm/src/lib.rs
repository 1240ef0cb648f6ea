#![doc = include_str!("../README.md")]
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod api;
#[cfg(feature = "clap")]
mod arguments;
pub mod checkpoint;
pub mod cloud_hypervisor;
mod devices;
mod firecracker;
pub mod oci;
pub mod pager;
mod vmm;
