//! `hugekit image load`.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use hugekit_delta::StateId;
use hugekit_image::{Image, ImageBuilder};
use hugekit_lab::size::Size;
use hugekit_lease::protocol::{self, ImageFacts, ImageName, ImageRange, NotLoaded, Refusal};
use hugekit_lease::{LeaseError, images};

use super::{AskedBroker, explained};
use crate::text::write_out;

/// How long a load may take.
const LONGEST: Duration = Duration::from_secs(3600);

/// Have the broker load an image of a virtual machine's memory.
///
/// FILE is a raw memory file, such as Firecracker, Cloud Hypervisor and QEMU write, and the deltas follow it; or FILE is
/// a full delta. The broker reads them with your rights. Holes and zeroes take no memory.
#[derive(Debug, Args)]
pub(super) struct LoadImage {
    /// What the image is called
    #[arg(long, value_name = "NAME")]
    name: ImageName,
    /// A raw memory file, or a full delta
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Deltas that follow, the oldest first
    #[arg(value_name = "DELTA")]
    deltas: Vec<PathBuf>,
    /// The state of a raw memory file, which the first delta begins with
    #[arg(long, value_name = "STATE")]
    state: Option<StateId>,
    /// Load this part of a raw memory file only, to this byte of the image; may be repeated
    #[arg(long, value_name = "FROM:SIZE:TO", value_parser = range)]
    range: Vec<ImageRange>,
    /// Let all users have it: as root
    #[arg(long)]
    for_all: bool,
    #[command(flatten)]
    broker: AskedBroker,
}

fn range(text: &str) -> Result<ImageRange, String> {
    let number = |text: &str| {
        let size: Result<Size, _> = text.parse();
        size.map(|Size(bytes)| bytes as u64).map_err(|error| format!("{text}: {error}"))
    };
    match text.split(':').collect::<Vec<_>>()[..] {
        [from, len, to] => {
            Ok(ImageRange { from: number(from)?, len: number(len)?, to: number(to)? })
        }
        _ => Err("write FROM:SIZE:TO, such as 0:1GiB:0".to_owned()),
    }
}

impl LoadImage {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let files: Vec<File> = self.paths().map(opened).collect::<anyhow::Result<_>>()?;
        let load = protocol::Load {
            name: self.name,
            most: self.needed(&files)?,
            is_for_all: self.for_all,
            state: self.state.map(StateId::to_bytes),
            ranges: self.range.clone(),
        };
        let sources: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let since = Instant::now();
        let facts = images::load(&self.broker.socket(), &load, &sources, LONGEST);
        let facts = facts.map_err(|error| self.explained(error))?;
        write_out(&self.line(facts, since.elapsed())).context("cannot write to standard output")
    }

    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.file].into_iter().chain(&self.deltas)
    }

    fn needed(&self, files: &[File]) -> anyhow::Result<u64> {
        let sources = files.iter().map(File::try_clone).collect::<Result<Vec<_>, _>>()?;
        let builder = sources.into_iter().fold(Image::builder(""), ImageBuilder::source);
        self.range.iter().copied().fold(builder, ImageBuilder::range).needed().map_err(explained)
    }

    fn line(&self, facts: ImageFacts, took: Duration) -> String {
        let size = |bytes: u64| Size(usize::try_from(bytes).unwrap_or(usize::MAX));
        let (bytes, present, huge) = (size(facts.bytes), size(facts.present), size(facts.huge));
        format!("{}: {bytes}, {present} in memory, {huge} on huge pages; {took:.2?}\n", self.name)
    }

    /// With the path of the file that the error is about.
    fn explained(&self, error: LeaseError) -> anyhow::Error {
        let nth = match &error {
            LeaseError::Refused(Refusal::NotLoaded(why)) => NotLoaded::source(why),
            _ => None,
        };
        let path = nth.and_then(|nth| self.paths().nth(usize::try_from(nth).ok()?));
        let path = path.map(|path| path.display().to_string());
        let error = crate::lease::explained(error);
        match path {
            Some(path) => crate::usage::with_remedy(error, |message| format!("{path}: {message}")),
            None => error,
        }
    }
}

fn opened(path: &PathBuf) -> anyhow::Result<File> {
    File::open(path).with_context(|| path.display().to_string())
}
