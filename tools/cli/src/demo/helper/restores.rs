//! A program whose memory is restored from a file, as a VM's.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Read, Write};

use anyhow::{Context, bail};
use rustix::mm::MapFlags;

use super::memory::{HelperMemory, PAGE};
use super::{HelperLine, Wrong, say};

/// Returns the value of a word of the file. No page is zeroes, which an image would not store.
fn pattern_at(at: usize) -> u64 {
    (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Writes the file at this path.
pub(super) fn write(bytes: usize, arguments: &[OsString]) -> anyhow::Result<()> {
    let path = arguments.first().context("no file is named")?;
    let file = File::options().write(true).open(path).context("cannot open the file")?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    for at in 0..bytes / size_of::<u64>() {
        file.write_all(&pattern_at(at).to_ne_bytes()).context("cannot write the file")?;
    }
    file.flush().context("cannot write the file")
}

/// The arguments are how, and the file's path.
pub(super) fn run(bytes: usize, arguments: &[OsString]) -> anyhow::Result<()> {
    let [how, path] = arguments else { bail!("write `read FILE` or `map FILE`") };
    let mut file = File::open(path).context("cannot open the file")?;
    let memory = if how == "read" {
        let mut memory = HelperMemory::huge(bytes)?;
        file.read_exact(memory.bytes()).context("cannot read the file")?;
        memory
    } else {
        HelperMemory::of_file(&file, bytes, MapFlags::PRIVATE)?
    };
    let first_of_page = (0..memory.len()).step_by(PAGE);
    let wrong = first_of_page.filter(|&at| memory[at] != pattern_at(at)).count();
    say(&HelperLine::Ready)?;
    let wrong =
        wrong + memory.iter().zip(0..).filter(|&(&word, at)| word != pattern_at(at)).count();
    match wrong {
        0 => Ok(()),
        wrong => Err(Wrong(format!("{wrong} words were not restored")).into()),
    }
}
