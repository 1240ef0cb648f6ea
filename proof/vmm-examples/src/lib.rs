//! Examples of the crate `hugekit` for programs that run virtual machines. They are apart from that crate because they
//! use the crates of KVM and of rust-vmm, which its tests would have to build.
//!
//! | example | contents |
//! | --- | --- |
//! | `guest_memory` | a KVM guest verifies all of a region |
//! | `clone_vm` | many guests on forks of one memory |
//! | `pause_vm` | a guest is saved by deltas, and goes on |
//! | `vm_memory` | the memory of a VMM that uses rust-vmm's crates |
