//! A key-value server in memory that speaks enough of redis' protocol for `redis-cli` and
//! `redis-benchmark`, and saves by a snapshot instead of a fork.
//!
//! ```sh
//! cargo run --release -p kv_store -- --port 6380 --dir /tmp --memory 1GiB
//! redis-cli -p 6380 set key value
//! ```
//!
//! Keys, values and index lie in one piece of anonymous memory (`arena.rs`, `slabs.rs`,
//! `index.rs`), and one thread serves all clients (`server.rs`, `commands/`). BGSAVE takes a snapshot
//! of it between two commands and goes on; another thread reads what was written since the save
//! before, and writes the blocks that have changed as a delta (`save.rs`, `image.rs`, `folder.rs`).
//! SAVE writes entries (`dump.rs`); a start loads either (`load.rs`). `kv_store bench` measures what
//! clients notice of BGSAVE, beside the real server (`bench/`). `docs/snapshot.md` has the figures,
//! and decision 26 why images and entries are both there.
//!
//! The program (`main.rs`), its tests and its fuzzer are all that use this library, so that what is
//! public is what these three need.
#![allow(
    clippy::len_without_is_empty,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "a program in parts: what links it lies in this repository"
)]

pub mod arena;
pub mod commands;
pub mod dump;
pub mod folder;
pub mod glob;
pub mod image;
pub mod index;
pub mod load;
pub mod redis;
pub mod resp;
pub mod save;
pub mod server;
pub mod slabs;
pub mod store;
