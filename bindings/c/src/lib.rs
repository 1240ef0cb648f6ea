//! The C interface of hugekit. `include/hugekit.h` is generated from this crate, comments included
//! (`cargo xtask header`): they are written for a reader in C.
//!
//! Every function converts its arguments, calls the library once and converts the answer. Handles are
//! boxes; structures carry their size, so that either side may be newer. A panic cannot leave an
//! `extern "C"` function: the language prints its message and ends the process.
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
