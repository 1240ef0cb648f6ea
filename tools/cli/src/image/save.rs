//! `hugekit image save`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use hugekit_image::Image;
use hugekit_lease::protocol::ImageName;
use hugekit_sys::memory::populate_read;
use hugekit_sys::{HUGE_PAGE_BYTES, data_runs};
use rustix::param::page_size;

use super::{AskedBroker, explained};
use hugekit_sys::new_file::NewFile;
use hugekit_terminal::file::cannot_write;

/// Write an image to a raw memory file.
///
/// Holes of the image are holes of the file. The file replaces what has its name only when it is complete.
#[derive(Debug, Args)]
pub(super) struct Save {
    /// Which image
    #[arg(value_name = "NAME")]
    name: ImageName,
    /// The file that is made
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    broker: AskedBroker,
}

impl Save {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let image =
            Image::of_broker(self.broker.socket(), self.name.as_str()).map_err(explained)?;
        let written = || cannot_write(&self.output);
        let file = NewFile::beside(&self.output).with_context(written)?;
        let mapped = image.map().map_err(explained)?;
        copy(image.as_fd(), &mapped, file.file()).with_context(written)?;
        file.put(true).with_context(written)
    }
}

/// Copies what lies in no hole, by aligned pieces of 2 MiB: the page cache has each of them on one huge page then, if the
/// file system can. (A copy within the kernel goes by base pages, and a write ends its large pages at the first page of
/// the source that is not populated.)
fn copy(from: BorrowedFd<'_>, mapped: &[u8], to: &File) -> io::Result<()> {
    let bytes = mapped.len() as u64;
    to.set_len(bytes)?;
    let mut left = 0..bytes;
    while let Some(run) = data_runs::next(from, &left)? {
        left.start = run.end;
        let mut at = run.start;
        while at < run.end {
            let len =
                (HUGE_PAGE_BYTES - at as usize % HUGE_PAGE_BYTES).min((run.end - at) as usize);
            let piece = &mapped[at as usize..at as usize + len];
            let pages = len.next_multiple_of(page_size());
            populate_read(piece.as_ptr().cast_mut(), pages)?;
            to.write_all_at(piece, at)?;
            at += len as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hugekit_testing::huge_cache::check_is_huge;

    use super::*;

    #[test]
    fn saved_file_has_the_bytes_and_the_holes_and_is_huge_in_the_cache() {
        let source = tempfile::tempfile().unwrap();
        source.set_len(9 << 20).unwrap();
        let bytes: Vec<u8> = (0..5 << 20).map(|at| (at >> 12) as u8 | 1).collect();
        // The last unit is not whole.
        source.write_all_at(&bytes, 4 << 20).unwrap();
        let image = Image::builder("test").source(source).load().unwrap();
        let mapped = image.map().unwrap();
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR").to_owned() + "/../../target");
        let folder = folder.unwrap();
        check_is_huge(folder.path(), 2, |number| {
            let path = folder.path().join(number.to_string());
            let saved = File::options().write(true).create_new(true).open(&path).unwrap();
            copy(image.as_fd(), &mapped, &saved).unwrap();
            let found = std::fs::read(&path).unwrap();
            assert!(found[..4 << 20].iter().all(|&byte| byte == 0) && found[4 << 20..] == bytes);
            path
        });
    }
}
