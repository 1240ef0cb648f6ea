//! A key-value server that saves by snapshots and deltas: an example of a program that uses hugekit.
//!
//! `apps/kv_store/README.md` is the guide, which has a line for each file here. Decision 26 has the
//! reasons.
#![allow(clippy::missing_errors_doc, clippy::missing_panics_doc, reason = "not published")]

pub mod arena;
pub mod budget;
pub mod commands;
pub mod entry;
pub mod folder;
pub mod heap;
pub mod load;
pub mod reply;
pub mod request;
pub mod save;
pub mod server;
pub mod store;
