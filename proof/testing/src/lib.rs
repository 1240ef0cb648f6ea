//! What tests of several crates share: memory, pools on each backing, forked children, settings of the kernel.
#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::len_without_is_empty,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc
)]

pub mod alias;
pub mod aligned;
pub mod backings;
pub mod child;
pub mod control_group;
pub mod example;
pub mod fuse;
pub mod hostile;
pub mod huge_cache;
pub mod memory;
pub mod pages;
pub mod permitted;
pub mod processes;
pub mod racing;
pub mod remedies;
pub mod rounds;
pub mod seed;
pub mod served;
pub mod settings;
pub mod signal_stack;
pub mod smaps;
pub mod states;
pub mod swap;
pub mod trials;
pub mod uring;
