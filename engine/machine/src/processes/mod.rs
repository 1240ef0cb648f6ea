//! Other processes, as `/proc` describes them: their folders, mappings and state.
//!
//! Everything is read as bytes, because a process chooses the names of its programs and files, and
//! these need not be UTF-8.

mod folder;
mod locks;
mod mapping;
mod stat;

use std::io;

use super::Root;

pub use folder::ProcessFolder;
pub use locks::holder_of_lock;
pub use mapping::{Mapping, MappingLine, each_mapping};
pub use stat::{Program, Stat};

/// Returns the numbers of all processes, in no order.
///
/// # Errors
/// An error if `/proc` cannot be read.
pub fn numbers(root: &Root) -> io::Result<Vec<i32>> {
    let entries = std::fs::read_dir(root.path("/proc"))?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}
