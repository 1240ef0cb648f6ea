//! The modules of the key-value example that read what clients and files hold, as they are there.
#![allow(dead_code, reason = "the rest of the example uses it")]

#[path = "../../hugekit/examples/kv_store/arena.rs"]
pub(crate) mod arena;
#[path = "../../hugekit/examples/kv_store/commands.rs"]
pub(crate) mod commands;
#[path = "../../hugekit/examples/kv_store/dump.rs"]
pub(crate) mod dump;
#[path = "../../hugekit/examples/kv_store/index.rs"]
pub(crate) mod index;
#[path = "../../hugekit/examples/kv_store/resp.rs"]
pub(crate) mod resp;
#[path = "../../hugekit/examples/kv_store/save.rs"]
pub(crate) mod save;
#[path = "../../hugekit/examples/kv_store/slabs.rs"]
pub(crate) mod slabs;
#[path = "../../hugekit/examples/kv_store/store.rs"]
pub(crate) mod store;
