//! Every public operation of hugekit as a scenario that checks each byte against a model, and two harnesses
//! that run these scenarios: `tests/interrupted.rs` interrupts one at a time wherever a signal can arrive,
//! the program runs all of them at once for the requested time. `README.md` beside `Cargo.toml` says how.
#![allow(unsafe_code)]

pub mod backtraces;
pub mod exposed;
pub mod footprint;
pub mod mapping;
pub mod model;
pub mod operations;
pub mod soak;
pub mod status;
pub mod step;
pub mod storm;
pub mod supervisor;
pub mod tracer;
pub mod world;
