//! Every system call fails once: `cargo xtask faults`.
//!
//! For each public operation and each n, the n-th call is refused, with each answer that it may give; then it and all
//! of its kind from there on. The answer is a typed error of the right kind, nothing is lost or leaked, and the
//! operation works afterwards. `HUGEKIT_FAULTS` decides how many calls are refused: see `harness::Depth`.

#![allow(unsafe_code)]

#[cfg(hugekit_faults)]
use hugekit_testing::backings;
#[cfg(hugekit_faults)]
mod case;
#[cfg(hugekit_faults)]
mod harness;
#[cfg(hugekit_faults)]
mod heap;
#[cfg(hugekit_faults)]
mod mappings;
#[cfg(hugekit_faults)]
use hugekit_testing::memory;
#[cfg(hugekit_faults)]
mod operations;
#[cfg(hugekit_faults)]
mod trials;

#[cfg(hugekit_faults)]
use trials::main;

#[cfg(not(hugekit_faults))]
fn main() {
    println!("the library is compiled without its test hooks: run `cargo xtask faults`");
}
