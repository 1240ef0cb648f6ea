//! The C interface of hugekit. `cargo xtask header` generates `include/hugekit.h` from this crate,
//! comments included. So the comments are for readers of C.
//!
//! Every function converts its arguments, calls the library once and converts the result. Handles
//! are boxes. Structures contain their size, so either side may be newer. A panic cannot leave an
//! `extern "C"` function: Rust prints its message and ends the process.
#![allow(non_camel_case_types, reason = "the names are those of the header")]
#![allow(unreachable_pub, reason = "C reaches it by its name")]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod delta;
mod epoch;
mod image;
mod machine;
mod pool;
mod region;
mod snapshot;
mod status;
mod versioned;
mod warm;
mod work;
