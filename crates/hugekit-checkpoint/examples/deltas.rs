//! Full checkpoints and deltas of a stock Firecracker, in turn: pauses, times and bytes.
//!
//! `HUGEKIT_FIRECRACKER=… cargo run --release -p hugekit-checkpoint --example deltas [ROUNDS]`.
//! 1 GiB, of which the guest has written 512 MiB. Before each delta it writes to 1 % and then 10 %
//! of them, in clusters of 64 KiB.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use hugekit_checkpoint::{Report, Settings, checkpoint};
use hugekit_guests::{CLUSTER, Firecracker, Pages, Request, Snapshot};
use hugekit_pager::{Event, Pager, Source};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 1024;
const START: u64 = 256 * MIB;
const LEN: u64 = 512 * MIB;

type Done<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Done<()> {
    let rounds = std::env::args().nth(1).map_or(Ok(5), |rounds| rounds.parse())?;
    let folder = tempfile::tempdir_in(".")?;
    let mut vmm = restored(folder.path())?;
    println!("kind,paused_ms,complete_ms,bytes");
    for round in 0..rounds {
        let full = save(&vmm, folder.path(), &[])?;
        let mut folders = vec![full];
        for percent in [1, 10] {
            let every = CLUSTER * 100 / percent;
            let start = START + round * CLUSTER;
            vmm.serial.ask(Request::Dirty { start, len: LEN - round * CLUSTER, every })?;
            folders.push(save(&vmm, folder.path(), &folders)?);
        }
        folders.iter().try_for_each(fs::remove_dir_all)?;
    }
    Ok(())
}

/// A guest that its pager has left.
fn restored(folder: &Path) -> Done<Firecracker> {
    let snapshot = Snapshot::in_folder(folder);
    let mut origin = Firecracker::start(folder, "origin")?;
    origin.boot(MEMORY, Pages::Base)?;
    origin.serial.ask(Request::Write { start: START, len: LEN, seed: 1 })?;
    origin.save(&snapshot)?;
    drop(origin);
    let socket = folder.join("pager.sock");
    let settings = hugekit_pager::Settings {
        record: Duration::ZERO,
        ..hugekit_pager::Settings::new(socket.clone())
    };
    let pager = Pager::start(settings, Source::open(&snapshot.memory)?)?;
    let (stop, stopped) = UnixStream::pair()?;
    let (tell, told) = channel();
    let thread = std::thread::spawn(move || {
        pager.run(stopped.as_fd(), &|event| {
            let _ = tell.send(matches!(event, Event::Complete(_)));
        })
    });
    let vmm = Firecracker::start(folder, "vm")?;
    vmm.load_by_handler(&snapshot, &socket, true)?;
    while !told.recv_timeout(Duration::from_secs(60))? {}
    drop(stop);
    thread.join().map_err(|_| io::Error::other("the pager has panicked"))??;
    Ok(vmm)
}

/// Saves the VM, and prints a line about it.
fn save(vmm: &Firecracker, folder: &Path, previous: &[PathBuf]) -> Done<PathBuf> {
    let output = folder.join(format!("saved-{}", previous.len()));
    let settings = Settings {
        previous: previous.to_vec(),
        ..Settings::new(vmm.pid(), folder.join("vm.api"), output.clone())
    };
    let report = checkpoint(&settings)?;
    let Report { paused_ms, complete_ms, copied_bytes, delta_bytes, .. } = report;
    let kind = ["full", "delta of 1 %", "delta of 10 %"][previous.len()];
    let bytes = delta_bytes.unwrap_or(copied_bytes);
    println!("{kind},{paused_ms:.2},{complete_ms:.1},{bytes}");
    Ok(output)
}
