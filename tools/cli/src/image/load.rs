//! `hugekit image load`.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use hugekit::HUGE_PAGE_BYTES;
use hugekit_delta::{Reader, StateId};
use hugekit_image::{Image, ImageBuilder};
use hugekit_lease::protocol::{self, ImageFacts, ImageName, ImageRange, NotLoaded, Refusal};
use hugekit_lease::{LeaseError, images};
use hugekit_machine::size::Size;
use hugekit_sys::input;

use super::{AskedBroker, explained};
use crate::base_pages;
use crate::progress;
use hugekit_terminal::text::{say, write_out};

/// The longest time of a load.
const LONGEST: Duration = Duration::from_secs(3600);

/// Have the broker load an image of a virtual machine's memory.
///
/// FILE is a raw memory file, such as Firecracker, Cloud Hypervisor and QEMU write, and the deltas follow it; or FILE is
/// a full delta. The broker reads them with your rights. Holes and zeroes take no memory.
#[derive(Debug, Args)]
pub(super) struct LoadImage {
    /// The name of the image
    #[arg(long, value_name = "NAME")]
    name: ImageName,
    /// A raw memory file, or a full delta
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Deltas that follow, the oldest first
    #[arg(value_name = "DELTA")]
    deltas: Vec<PathBuf>,
    /// The state of a raw memory file: refuse a first delta that begins with another state. By default the first delta
    /// may begin with any state of the same length, but of FILE `memory` with a `vmstate` beside it, such as `hugekit
    /// checkpoint` writes, the state is known
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
        let files: Vec<File> =
            self.paths().map(|path| opened(path)).collect::<anyhow::Result<_>>()?;
        let most = self.needed(&files)?;
        let since = Instant::now();
        let facts = self.load(&files, most).map_err(|error| self.explained(error))?;
        write_out(&self.line(facts, since.elapsed())).context("cannot write to standard output")?;
        let notes =
            [self.note_of_state(&files), self.note_of_pages(facts), self.note_of_cache(&files)];
        let notes = self.notes_of_writers(&files).chain(notes.into_iter().flatten());
        notes.for_each(|note| say(&format!("note: {note}")));
        Ok(())
    }

    fn load(&self, files: &[File], most: u64) -> Result<ImageFacts, LeaseError> {
        let bar = progress::of_bytes(self.name.as_str(), 0);
        let load = protocol::Load {
            name: self.name,
            most,
            is_for_all: self.for_all,
            tells_progress: !bar.is_hidden(),
            state: self.state().map(StateId::to_bytes),
            ranges: self.range.clone(),
        };
        let sources: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let mut tell = |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let facts =
            images::load_telling(&self.broker.socket(), &load, &sources, LONGEST, &mut tell);
        bar.finish_and_clear();
        facts
    }

    /// A raw memory file does not name its state, so a delta of another memory file of that length is not noticed.
    fn note_of_state(&self, files: &[File]) -> Option<String> {
        let header = |file: &File| Reader::new(file).map(|reader| reader.header());
        let (raw, delta) = (files.first()?, files.get(1)?);
        if self.state().is_some() || header(raw).is_ok() {
            return None;
        }
        let state = header(delta).ok()?.base?;
        let paths: Vec<_> = self.paths().map(|path| path.display()).collect();
        Some(format!(
            "{} names no state; it was taken for {state}, because {} begins with that (--state verifies it)",
            paths[0], paths[1]
        ))
    }

    fn state(&self) -> Option<StateId> {
        let beside =
            || self.deltas.first().and_then(|_| hugekit_vm::checkpoint::state_of(&self.file));
        self.state.or_else(beside)
    }

    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.file].into_iter().chain(&self.deltas)
    }

    fn needed(&self, files: &[File]) -> anyhow::Result<u64> {
        let sources = files.iter().map(File::try_clone).collect::<Result<Vec<_>, _>>()?;
        let builder = sources.into_iter().fold(Image::builder(""), ImageBuilder::source);
        let needed = self.range.iter().copied().fold(builder, ImageBuilder::range).needed();
        needed.map_err(|error| self.about(error.source_number(), explained(error)))
    }

    fn line(&self, facts: ImageFacts, took: Duration) -> String {
        let size = |bytes: u64| Size(usize::try_from(bytes).unwrap_or(usize::MAX));
        let (bytes, present, huge) = (size(facts.bytes), size(facts.present), size(facts.huge));
        format!("{}: {bytes}, {present} in memory, {huge} on huge pages; {took:.2?}\n", self.name)
    }

    /// A mapping writes to a file without a change of its times until the kernel writes it back, so that a load alone
    /// cannot notice it.
    fn notes_of_writers<'a>(&'a self, files: &'a [File]) -> impl Iterator<Item = String> {
        let is_written = |(file, _): &(&File, _)| input::is_open_for_writing(file) == Some(true);
        self.paths().zip(files).map(|(path, file)| (file, path)).filter(is_written).map(|(_, path)| {
            format!(
                "a process has {} open for writing: if it wrote meanwhile, the image has bytes of several moments",
                path.display()
            )
        })
    }

    /// A granule that holds the end of the image may be on base pages.
    fn note_of_pages(&self, facts: ImageFacts) -> Option<String> {
        let base = facts.present.saturating_sub(facts.huge);
        let size = Size(usize::try_from(base).unwrap_or(usize::MAX));
        (base >= HUGE_PAGE_BYTES as u64).then(|| {
            let reason = base_pages::reason(&self.broker.socket());
            format!("the kernel had no huge pages for {size}, which is on base pages; {reason}")
        })
    }

    /// An image of one raw file, whole, is what programs could map by the name of the file.
    fn note_of_cache(&self, files: &[File]) -> Option<String> {
        let [raw] = files else { return None };
        let is_named = raw.metadata().is_ok_and(|found| found.nlink() > 0);
        if !is_named || !self.range.is_empty() || Reader::new(raw).is_ok() {
            return None;
        }
        let path = self.file.display();
        hugekit_warm::can_be_warmed(&self.file).is_ok_and(|can| can).then(|| {
            format!(
                "programs can also share {path} itself, in the page cache on huge pages: hugekit warm {path}"
            )
        })
    }

    /// With the path of the file that the error is about.
    fn explained(&self, error: LeaseError) -> anyhow::Error {
        let nth = match &error {
            LeaseError::Refused(Refusal::NotLoaded(why)) => NotLoaded::source(why),
            _ => None,
        };
        let nth = nth.and_then(|nth| usize::try_from(nth).ok());
        self.about(nth, crate::lease::explained(error))
    }

    fn about(&self, nth: Option<usize>, error: anyhow::Error) -> anyhow::Error {
        match nth.and_then(|nth| self.paths().nth(nth)) {
            Some(path) => {
                let path = path.display();
                hugekit_terminal::outcome::with_remedy(error, |message| {
                    format!("{path}: {message}")
                })
            }
            None => error,
        }
    }
}

fn opened(path: &Path) -> anyhow::Result<File> {
    hugekit_image::open(path).with_context(|| path.display().to_string())
}
