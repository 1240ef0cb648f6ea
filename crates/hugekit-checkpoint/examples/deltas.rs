//! Full checkpoints and deltas of a stock Firecracker, in turn: pauses, times and bytes.
//!
//! `HUGEKIT_FIRECRACKER=… cargo run --release -p hugekit-checkpoint --example deltas [ROUNDS]`.
//! 1 GiB, of which the guest has written 512 MiB. Before each delta it writes to 1 % and then 10 %
//! of them, in clusters of 64 KiB.

use std::fs;
use std::path::{Path, PathBuf};

use hugekit_checkpoint::{Report, Settings, checkpoint};
use hugekit_guests::{CLUSTER, Firecracker, Request};

mod restored;
use restored::guest;

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 1024;
const START: u64 = 256 * MIB;
const LEN: u64 = 512 * MIB;
const WRITE: Request = Request::Write { start: START, len: LEN, seed: 1 };

type Done<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Done<()> {
    let rounds = std::env::args().nth(1).map_or(Ok(5), |rounds| rounds.parse())?;
    let folder = tempfile::tempdir_in(".")?;
    let mut vmm = guest(folder.path(), MEMORY, WRITE);
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

/// Saves the VM, and prints a line about it.
fn save(vmm: &Firecracker, folder: &Path, previous: &[PathBuf]) -> Done<PathBuf> {
    let output = folder.join(format!("saved-{}", previous.len()));
    let settings = Settings {
        previous: previous.to_vec(),
        ..Settings::new(vmm.pid(), folder.join("guest.api"), output.clone())
    };
    let report = checkpoint(&settings)?;
    let Report { paused_ms, complete_ms, copied_bytes, delta_bytes, .. } = report;
    let kind = ["full", "delta of 1 %", "delta of 10 %"][previous.len()];
    let bytes = delta_bytes.unwrap_or(copied_bytes);
    println!("{kind},{paused_ms:.2},{complete_ms:.1},{bytes}");
    Ok(output)
}
