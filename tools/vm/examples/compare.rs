//! Measures ways to restore a VM of Cloud Hypervisor, in shuffled rounds: its own two, and ours with
//! and without an image.
//!
//! `HUGEKIT_CLOUD_HYPERVISOR=… cargo run --release -p hugekit-vm --example compare -- ROUNDS`

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hugekit_guests::cloud_hypervisor::{lacking, snapshot_for};
use hugekit_guests::{CloudHypervisor, Request};
use hugekit_image::Image;
use hugekit_vm::cloud_hypervisor::{ReadyMemory, Restore, Snapshot};
use serde_json::json;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 1024 * MIB;

/// Half of the memory has bytes that are not zero, and is touched after the restore.
const START: u64 = 256 * MIB;
const LEN: u64 = 512 * MIB;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Cloud Hypervisor copies all memory first.
    Copy,
    /// Cloud Hypervisor copies 4 KiB for each page fault.
    OnDemand,
    /// `hugekit restore`.
    Ready,
    /// `hugekit restore --image`.
    Image,
}

const WAYS: [Way; 4] = [Way::Copy, Way::OnDemand, Way::Ready, Way::Image];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(reason) = lacking() {
        return Err(reason.into());
    }
    let rounds: u32 = std::env::args().nth(1).map_or(Ok(8), |rounds| rounds.parse())?;
    let folder = TempDir::new()?;
    let snapshot = saved(folder.path())?;
    let image = Image::load(snapshot.join("memory-ranges"))?;
    println!("way, milliseconds until the first reply, and for the touch of 512 MiB");
    for _ in 0..rounds {
        let mut ways = WAYS;
        fastrand::shuffle(&mut ways);
        for way in ways {
            let (reply, touch) = restored(folder.path(), &snapshot, way, &image)?;
            let milliseconds = |time: Duration| time.as_secs_f64() * 1000.0;
            println!("{way:?} {:.1} {:.1}", milliseconds(reply), milliseconds(touch));
        }
    }
    Ok(())
}

fn saved(folder: &Path) -> std::io::Result<PathBuf> {
    let snapshot = folder.join("snapshot");
    let mut origin = CloudHypervisor::start(folder, "origin")?;
    let mut serial = origin.boot(&json!({"size": MEMORY}))?;
    serial.ask(Request::Write { start: START, len: LEN, seed: 1 })?;
    origin.save(&snapshot)?;
    Ok(snapshot)
}

/// From a VMM that waits for its VM to the first reply, and the touch after it.
fn restored(
    folder: &Path,
    snapshot: &Path,
    way: Way,
    image: &Image,
) -> Result<(Duration, Duration), Box<dyn std::error::Error>> {
    let own = snapshot_for(folder, "clone", snapshot)?;
    let mut clone = CloudHypervisor::start(folder, "clone")?;
    let since = Instant::now();
    match way {
        Way::Copy => clone.restore(&own, "Copy")?,
        Way::OnDemand => clone.restore(&own, "OnDemand")?,
        Way::Ready | Way::Image => send(&clone, &own, (way == Way::Image).then_some(image))?,
    }
    let mut serial = clone.serial()?;
    serial.ask(Request::Reply)?;
    let reply = since.elapsed();
    let since = Instant::now();
    serial.ask(Request::Touch { start: START, len: LEN })?;
    let touch = since.elapsed();
    drop(clone);
    std::fs::remove_dir_all(own)?;
    Ok((reply, touch))
}

fn send(
    clone: &CloudHypervisor,
    own: &Path,
    image: Option<&Image>,
) -> Result<(), Box<dyn std::error::Error>> {
    let snapshot = Snapshot::open(own)?;
    let memory = match image {
        Some(image) => ReadyMemory::of_image(Image::check(image.open_again()?)?, &snapshot)?,
        None => ReadyMemory::load(&snapshot)?,
    };
    Restore::new(&snapshot).resume(true).send(clone.api(), &memory)?;
    Ok(())
}
