//! A key-value server that saves by snapshots and deltas: an example of a program that uses hugekit.
//!
//! All keys, values and the index lie in one piece of memory. A save takes a snapshot of that memory
//! between two commands. While clients go on writing, another thread writes the blocks that changed
//! since the save before to a new file. A start loads the image and its deltas back into the memory
//! and is ready: positions are offsets, so it builds no index.
//!
//! | file | its idea |
//! | --- | --- |
//! | `arena.rs` | the memory, and snapshots of it |
//! | `heap.rs` | free blocks of the memory; a new entry avoids what a save has still to read |
//! | `entry.rs`, `store.rs` | entries and the index, as bytes in the memory |
//! | `folder.rs` | the files, which are one whole state at any moment |
//! | `save.rs`, `load.rs` | from the memory to the files, and back |
//! | `request.rs`, `reply.rs` | the protocol of Redis |
//! | `budget.rs`, `server.rs` | a thread for each client, one lock, a limit of the clients' memory |
//! | `commands/` | the commands |
//!
//! `apps/kv_store/README.md` is the guide, and decision 26 has the reasons.
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
