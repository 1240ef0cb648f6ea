//! A broker of memory: it populates units of huge pages ahead of requests and leases them to
//! unmodified programs.
//!
//! [`Broker::start`] listens, and [`Broker::run`] serves until a signal ends it. The program
//! `hugekit broker` does only this. Clients are [`hugekit_lease`] and any program that implements
//! its protocol. `README.md` beside this crate draws the states, lists the rights, and describes
//! the attacks that were considered.
//!
//! These rules hold for every behaviour of clients:
//!
//! - A unit is a new file of the kernel, which is populated once and leased once. When a lease
//!   ends, its memory returns to the kernel.
//! - The broker keeps neither a descriptor nor a mapping of leased memory. If it dies, clients
//!   continue to work.
//! - One thread serves, and waits neither for a client nor for memory. Separate processes populate.
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod accounts;
mod backing_names;
mod broker;
mod connection;
mod error;
mod fill;
mod filler;
mod group;
mod images;
mod leased;
mod ledger;
mod listen;
mod load;
mod loading;
mod memory_state;
mod options;
mod priority;
mod returns;
mod seats;
mod unit;
mod watch;

#[cfg(feature = "clap")]
pub use backing_names::backing_parser;
pub use broker::Broker;
pub use error::BrokerError;
pub use fill::{Fill, fill};
pub use filler::FillCommand;
pub use load::{LoadOrder, load};
pub use options::{BrokerOptions, Charge, Limits, Quota};
