//! A program that maps a file, such as one that loads model weights by `numpy.memmap`: its first touch of each page and its
//! random loads (`mapped.rs`), from a page cache on small pages and from one that was warmed. A program that copies the file
//! by `read(2)` is the control. And what a warm-up of a file costs that is not in memory (`cold.rs`).

mod cold;
mod mapped;
mod process;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::measure::part::Parts;
use crate::measure::{LabError, Observer};
use crate::record::Experiment;
use hugekit_machine::size::{GIB, MIB, Size};
use hugekit_warm::WarmReport;
use tempfile::TempDir;

use super::files::cached::FileCache;
use super::files::{Folders, free_bytes};
use super::{Bench, Definition, halved_to_fit};

pub(super) const DEFINITION: Definition = Definition {
    name: "warm",
    repeats: "beyond: files that programs map, after `hugekit warm`",
    why: "Measures what a new process waits for when it maps a file, as loaders of model weights and \
          virtual machine monitors do: page faults of the first touch, and random loads after it. \
          The page cache holds the file on small pages or on huge ones; the kernel maps it \
          accordingly. Also measures the time of a warm-up against reading the file once.",
    headlines: &["small-vs-warmed", "cat-vs-warm"],
    is_core: false,
    run,
};

/// Bytes of a file, if there is room.
const MOST: usize = 2 * GIB;
const QUICK: usize = 128 * MIB;

/// Smaller files have too few huge pages to say anything.
const LEAST: usize = 32 * MIB;

/// Files.
const MEASURED: usize = 2;

/// The available memory must have room for this many: those in the cache, a copy of one, and free blocks to warm one.
const IN_MEMORY: usize = MEASURED + 2;

/// The same of the disk: as much is left to others as the files have.
const ON_DISK: usize = 2 * MEASURED;

const REMEDY: &str = "set TMPDIR to a folder on XFS, or on ext4 with Linux 6.16 or later";

/// Two files of the same bytes.
#[derive(Debug)]
struct Files {
    small: PathBuf,
    warmed: PathBuf,
    bytes: usize,
    /// Removed with this value.
    _folder: TempDir,
}

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let Some((folder, system)) = Folders::find()?.disk else {
        return Ok(Experiment::skipped("warm", "no folder on a disk was found", REMEDY));
    };
    let in_memory = (bench.leave_memory()? / MEASURED).min(bench.available_memory()? / IN_MEMORY);
    let on_disk = free_bytes(folder.path()).map_err(LabError::Saved)?;
    let room = in_memory.min(usize::try_from(on_disk).unwrap_or(usize::MAX) / ON_DISK);
    let most = if bench.options().quick { QUICK } else { MOST };
    let Some(bytes) = halved_to_fit(most, LEAST, room) else {
        let reason = format!("a file of {} does not fit", Size(LEAST));
        let (memory, disk) = (Size(IN_MEMORY * LEAST), Size(ON_DISK * LEAST));
        let remedy = format!("free {memory} of memory, and {disk} of the disk");
        return Ok(Experiment::skipped("warm", reason, remedy));
    };
    bench.observer().begin("warm: files");
    let files = Files::make(folder, bytes, bench.observer())?;
    let report = FileCache::warm(&files.warmed)?;
    if let Some(left) = &report.left {
        return Ok(Experiment::skipped("warm", left.why.to_string(), left.why.remedy()));
    }
    let about = format!("a file of {} on {system}, in the page cache", Size(bytes));
    let mut experiment = Experiment::on("warm", about);
    experiment.notices.push(notice(&report));
    experiment.add("mapped", mapped::measure(&files, rounds(bench, 6.0)))?;
    experiment.add("cold", cold::measure(&files, rounds(bench, 4.0)))?;
    Ok(experiment)
}

fn rounds<'a>(bench: &Bench<'a>, share: f64) -> crate::measure::part::Rounds<'a> {
    match bench.options().quick {
        true => bench.long_rounds(0.5, 4),
        false => bench.rounds_of(share, 12, Some(6)),
    }
}

fn notice(report: &WarmReport) -> String {
    format!(
        "small has all of its units of 2MiB on base pages of the page cache, warmed has {} of {} on huge pages; \
         checked before each sample",
        report.huge(),
        report.units()
    )
}

impl Files {
    fn make(folder: TempDir, bytes: usize, observer: &dyn Observer) -> Result<Self, LabError> {
        let [small, warmed] = ["small", "warmed"].map(|name| folder.path().join(name));
        write(&small, bytes, PAGE, observer)?;
        write(&warmed, bytes, PORTION, observer)?;
        Ok(Self { small, warmed, bytes, _folder: folder })
    }
}

/// Bytes that are written between two looks at the observer.
const PORTION: usize = 4 * MIB;

const SEED: u64 = 2018;

/// Pieces that leave a file in the page cache on base pages.
const PAGE: usize = 4096;

/// Writes a file of random bytes, the same ones at each call, in pieces.
fn write(path: &Path, bytes: usize, piece: usize, observer: &dyn Observer) -> Result<(), LabError> {
    let mut file = File::create(path).map_err(LabError::Saved)?;
    let (mut random, mut portion) = (fastrand::Rng::with_seed(SEED), vec![0; PORTION]);
    for _ in 0..bytes / PORTION {
        observer.check()?;
        random.fill(&mut portion);
        portion
            .chunks(piece)
            .try_for_each(|piece| file.write_all(piece))
            .map_err(LabError::Saved)?;
    }
    file.sync_all().map_err(LabError::Saved)
}
