//! A tiny guest that answers questions about its memory, stock VMMs that run it, and a small
//! VMM that speaks the same restore handshake and needs no virtualization.
#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "tests and the lab use it; every error is the system's or the VMM's own words"
)]

mod api;
pub mod cloud_hypervisor;
mod firecracker;
mod first_cpu;
mod guest;
mod huge_pages;
mod nested_state;
mod request;
mod serial;
pub mod small_vmm;
pub mod taps;

pub use cloud_hypervisor::CloudHypervisor;
pub use firecracker::{Firecracker, Pages, Snapshot, lacking, program, version};
pub use first_cpu::await_end_of_output;
pub use huge_pages::HugePages;
pub use request::{CLUSTER, Request, pattern_at, sum_of_pattern};
pub use serial::Serial;
pub use small_vmm::SmallVmm;
