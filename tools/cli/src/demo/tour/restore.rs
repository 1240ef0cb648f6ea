//! A program starts from the bytes of a file, as a VM that is restored: it reads or maps the file, or maps an image of it
//! that a broker holds.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Instant;

use anyhow::Context;
use hugekit_machine::size::Size;
use rustix::io::{FdFlags, fcntl_setfd};

use super::broker::TourBroker;
use super::part::{Measured, PartResult};
use super::process::{TourProcess, ends_with_the_tour, helper, hugekit};
use super::start::time;
use super::{Tour, room};
use crate::demo::helper::Helper;

pub(super) const TITLE: &str = "Restore from a file";

const ROUNDS: usize = 3;

/// Restores, the file and its image.
pub(super) const STEPS: u64 = 3 * ROUNDS as u64 + 2;

/// The memory of the program, of the image, and of the file, which may be in memory.
const COPIES: usize = 3;

pub(super) fn run(tour: &Tour) -> anyhow::Result<PartResult> {
    let bytes = room::in_a_file(room::bytes(tour.size / 2, COPIES)?)?;
    tour.does("a file to restore from");
    let file = SnapshotFile::write(bytes, tour)?;
    tour.step();
    tour.does("a broker loads an image of the file");
    let broker = TourBroker::start(None, &tour.stop)?;
    let began = Instant::now();
    load(&broker, &file, tour)?;
    let loaded = began.elapsed();
    tour.step();
    tour.does("restores from a file and from an image");
    let mut ways = [
        Measured::new("it reads the file"),
        Measured::new("it maps the file"),
        Measured::new("it maps an image on huge pages"),
    ];
    for _ in 0..ROUNDS {
        let read = helper(Helper::Restores, bytes, &[OsStr::new("read"), file.path.as_ref()])?;
        let map = helper(Helper::Restores, bytes, &[OsStr::new("map"), file.path.as_ref()])?;
        for (way, command) in ways.iter_mut().zip([read, map, from_image(&broker, bytes)?]) {
            way.times.push(time(tour, command)?);
        }
    }
    let [read, map, after] = ways;
    Ok(PartResult {
        title: format!("{TITLE}: {}", Size(bytes)),
        before: vec![read, map],
        after,
        notes: format!(
            "From the start until a byte of every page was read, medians of {ROUNDS} in turn. The \
             file is in the page cache. The image is loaded once, here in {loaded:.1?}, for any \
             number of restores."
        ),
        commands: vec![
            "hugekit broker &".to_owned(),
            "hugekit image load --name vm MEMORY_FILE".to_owned(),
            "hugekit lease --image vm -- PROGRAM {}   # see docs/firecracker.md".to_owned(),
        ],
    })
}

/// A file without a name, which the tour's processes open by its descriptor.
struct SnapshotFile {
    path: String,
    /// Open as long as it is used.
    _file: File,
}

impl SnapshotFile {
    fn write(bytes: usize, tour: &Tour) -> anyhow::Result<Self> {
        let file = tempfile::tempfile().context("no file to restore from")?;
        fcntl_setfd(&file, FdFlags::empty())?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut writer = TourProcess::start(helper(Helper::Writes, bytes, &[OsStr::new(&path)])?)?;
        writer.right(&tour.stop)?;
        Ok(Self { path, _file: file })
    }
}

fn load(broker: &TourBroker, file: &SnapshotFile, tour: &Tour) -> anyhow::Result<()> {
    let mut command = hugekit()?;
    command.args(["image", "load", "--name", "demo", "--socket"]).arg(broker.socket());
    command.arg(&file.path);
    TourProcess::start(ends_with_the_tour(&command)?)?.finish(&tour.stop)
}

/// Returns the program as it is started by `hugekit lease`.
fn from_image(broker: &TourBroker, bytes: usize) -> anyhow::Result<Command> {
    let mut command = hugekit()?;
    command.args(["lease", "--image", "demo", "--socket"]).arg(broker.socket());
    let program = helper(Helper::Restores, bytes, &[OsStr::new("map"), OsStr::new("{}")])?;
    command.arg("--").arg(program.get_program()).args(program.get_args());
    Ok(command)
}
