//! `hugekit image save`.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use hugekit_image::Image;
use hugekit_lease::protocol::ImageName;
use hugekit_sys::data_runs;

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
        let bytes = image.bytes() as u64;
        let written = || cannot_write(&self.output);
        let mut file = NewFile::beside(&self.output).with_context(written)?;
        copy(&File::from(image.into_file()), bytes, file.file_mut()).with_context(written)?;
        file.put(true).with_context(written)
    }
}

/// Copies what lies in no hole.
fn copy(mut from: &File, bytes: u64, to: &mut File) -> io::Result<()> {
    to.set_len(bytes)?;
    let mut left = 0..bytes;
    while let Some(run) = data_runs::next(from, &left)? {
        from.seek(SeekFrom::Start(run.start))?;
        to.seek(SeekFrom::Start(run.start))?;
        io::copy(&mut from.take(run.end - run.start), to)?;
        left.start = run.end;
    }
    Ok(())
}
