//! A program that needs zeroed memory before it can do its work, such as the RAM of a VM.

use std::ffi::OsString;
use std::fs::File;

use anyhow::Context;
use rustix::mm::MapFlags;

use super::memory::{HelperMemory, PAGE};
use super::{HelperLine, Wrong, say};

/// The argument is the path of the memory. Without one, it asks the kernel.
pub(super) fn run(bytes: usize, arguments: &[OsString]) -> anyhow::Result<()> {
    let mut memory = match arguments.first() {
        None => HelperMemory::huge(bytes)?,
        Some(path) => {
            let file = File::options().read(true).write(true).open(path);
            HelperMemory::of_file(
                &file.context("cannot open the memory")?,
                bytes,
                MapFlags::SHARED,
            )?
        }
    };
    for page in memory.chunks_mut(PAGE) {
        page[0] += 1;
    }
    say(&HelperLine::Ready)?;
    let is_right = |page: &[u64]| page[0] == 1 && page[1..].iter().all(|&word| word == 0);
    match memory.chunks(PAGE).filter(|page| !is_right(page)).count() {
        0 => Ok(()),
        wrong => Err(Wrong(format!("{wrong} pages of new memory were not zeroed")).into()),
    }
}
