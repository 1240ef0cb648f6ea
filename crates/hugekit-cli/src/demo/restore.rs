//! A VM restored and its memory touched: page by page, and by the pager.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use hugekit_guests::{Firecracker, Pages, Request, Serial, SmallVmm, Snapshot, pattern_at};
use hugekit_machine::size::Size;
use hugekit_pager::{Event, LONGEST_AROUND, Pager, Settings, Source};

use super::ways::Ways;

const MIB: u64 = 1 << 20;

/// Of the VM's memory, from here on it is touched. A guest has its own memory before.
const START: u64 = 2 * MIB;

const SEED: u64 = 0x5eed;

/// Restores that are timed, in turn.
#[derive(Clone, Copy)]
enum Way {
    SinglePages,
    Around,
    Ahead,
}

/// What is restored, by which VMM.
struct Origin {
    folder: tempfile::TempDir,
    snapshot: Snapshot,
    bytes: u64,
    is_stock: bool,
}

pub(super) fn run(bytes: usize) -> anyhow::Result<Ways> {
    let origin = Origin::make(bytes as u64)?;
    let vmm = if origin.is_stock { "stock Firecracker" } else { "a small VMM of hugekit's" };
    let about = format!(
        "A VM with {} is restored by {vmm}, and touches its memory: from the restore, or the start \
         if that is later, to the last touch.",
        Size(bytes)
    );
    let ways = [
        ("4 KiB for each page fault", ""),
        ("hugekit pager, 2 MiB around each", ""),
        ("hugekit pager, all read ahead", "the VM starts when its memory is on huge pages."),
    ];
    Ways::in_turn(about, &ways, |way| {
        origin.restore([Way::SinglePages, Way::Around, Way::Ahead][way])
    })
}

impl Origin {
    fn make(bytes: u64) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let snapshot = Snapshot::in_folder(folder.path());
        let is_stock = hugekit_guests::lacking().is_none();
        if is_stock {
            let mut origin = Firecracker::start(folder.path(), "origin")?;
            origin.boot(bytes / MIB, Pages::Base)?;
            origin.serial.ask(Request::Write { start: START, len: bytes - START, seed: SEED })?;
            origin.save(&snapshot)?;
        } else {
            write_memory(&snapshot.memory, bytes).context("cannot write a memory file")?;
        }
        Ok(Self { folder, snapshot, bytes, is_stock })
    }

    fn restore(&self, way: Way) -> anyhow::Result<Duration> {
        let mut settings = Settings::new(self.folder.path().join("pager.sock"));
        settings.prefetch = matches!(way, Way::Ahead);
        settings.around = if matches!(way, Way::SinglePages) {
            rustix::param::page_size() as u64
        } else {
            LONGEST_AROUND
        };
        settings.record = Duration::ZERO;
        let socket = settings.socket.clone();
        let pager = Pager::start(settings, Source::open(&self.snapshot.memory)?)?;
        let (stop, stopped) = UnixStream::pair()?;
        let (told, completed) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            let tell = move |event: Event| {
                if matches!(event, Event::Complete(_)) {
                    let _ = told.send(());
                }
            };
            let served = scope.spawn(move || pager.run(stopped.as_fd(), &tell));
            let took = self.restore_by(&socket, || match way {
                Way::Ahead => {
                    completed.recv().map_err(|_| anyhow!("the pager has ended"))?;
                    Ok(Some(Instant::now()))
                }
                _ => Ok(None),
            });
            drop(stop);
            served.join().map_err(|_| anyhow!("the pager has panicked"))??;
            took
        })
    }

    /// `ready` waits until the VM may start, and says when it began if its beginning is not that of
    /// the restore.
    fn restore_by(
        &self,
        socket: &Path,
        ready: impl Fn() -> anyhow::Result<Option<Instant>>,
    ) -> anyhow::Result<Duration> {
        if !self.is_stock {
            let start = Instant::now();
            let mut vmm = SmallVmm::start(socket, &[self.bytes], Pages::Base)?;
            let start = ready()?.unwrap_or(start);
            return self.touch(&mut vmm.serial, start);
        }
        let mut vmm = Firecracker::start(self.folder.path(), "clone")?;
        let start = Instant::now();
        vmm.load_by_handler(&self.snapshot, socket, false)?;
        let start = ready()?.unwrap_or(start);
        vmm.resume()?;
        self.touch(&mut vmm.serial, start)
    }

    fn touch(&self, serial: &mut Serial, start: Instant) -> anyhow::Result<Duration> {
        let len = self.bytes - START;
        serial.ask(Request::Touch { start: START, len })?;
        let took = start.elapsed();
        let wrong = serial.ask(Request::Verify { start: START, len, seed: SEED })?;
        ensure!(wrong == 0, "{wrong} words of the VM differ");
        Ok(took)
    }
}

fn write_memory(path: &PathBuf, bytes: u64) -> std::io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    for address in (0..bytes).step_by(8) {
        file.write_all(&pattern_at(address, SEED).to_le_bytes())?;
    }
    file.flush()
}
