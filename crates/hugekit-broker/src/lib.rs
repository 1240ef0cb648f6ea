//! A broker of memory: units of huge pages, populated before any program asks, leased to programs
//! that need not be changed.
//!
//! [`Broker::start`] listens, and [`Broker::run`] serves until a signal ends it; `hugekit broker` is
//! a program that does no more than that. Clients are [`hugekit_lease`] and whatever speaks its
//! protocol. `README.md` beside this crate draws the states, says who may do what, and names the
//! attacks that were considered.
//!
//! Rules that hold whatever clients do:
//!
//! - A unit is a new file of the kernel's, populated once and leased once. What a lease leaves goes
//!   back to the kernel.
//! - The broker keeps neither descriptor nor mapping of what is leased: it dies, and clients go on.
//! - One thread serves, and waits for no client and for no memory: processes of their own populate.
#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod accounts;
mod broker;
mod config;
mod connection;
mod error;
mod fill;
mod filler;
mod group;
mod images;
mod leased;
mod ledger;
mod listener;
mod load;
mod loading;
mod notices;
mod pages;
mod priority;
mod returns;
mod seats;
mod signals;
mod unit;
mod watch;

pub use broker::Broker;
pub use config::{Charge, Config, FillCommand, Limits, Quotas};
pub use error::BrokerError;
pub use fill::{Fill, fill};
pub use load::{LoadOrder, load};
