//! Measures how long packing takes, beside stock zstd, in alternating rounds: a memory file is packed as a layout, compressed
//! by `zstd -1 -T2`, and unpacked again. Prints each time and the bytes, and fails if bytes differ.
//!
//! `cargo run --release -p hugekit-vm --example packing -- MEMORY ROUNDS`, on a quiet machine. Without a memory file, 1 GiB is
//! made of the files of this machine's `/usr/lib`, with as many zeroes.

use std::error::Error;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hugekit_vm::oci::{PackOptions, UnpackOptions, pack, unpack};
use tempfile::TempDir;

const BYTES: u64 = 1 << 30;

/// Runs of files, and of zeroes behind each.
const RUN: usize = 96 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = TempDir::new()?;
    let memory = match arguments.next() {
        Some(path) => PathBuf::from(path),
        None => made(&folder.path().join("memory"))?,
    };
    let rounds = arguments.next().map_or(Ok(5), |rounds| rounds.parse())?;
    let state = folder.path().join("vmstate");
    fs::write(&state, "no devices")?;
    let (mut packing, mut zstd, mut unpacking) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let [layout, compressed, back] =
            ["layout", "zst", "back"].map(|name| folder.path().join(name));
        let since = Instant::now();
        let options = PackOptions::of_files(state.clone(), memory.clone(), layout.clone());
        let report = pack(&options, &|_, _| ())?;
        packing.push(since.elapsed());
        zstd.push(by_zstd(&memory, &compressed)?);
        let since = Instant::now();
        let options = UnpackOptions {
            layout: layout.clone(),
            output: back.clone(),
            keep_deltas: false,
            threads: None,
        };
        unpack(&options, &|_, _| ())?;
        unpacking.push(since.elapsed());
        let same = Command::new("cmp").arg(&memory).arg(back.join("memory")).status()?;
        if !same.success() {
            return Err("the unpacked memory differs".into());
        }
        let stock = fs::metadata(&compressed)?.len();
        println!(
            "{} bytes, zstd {stock}: {:.3}",
            report.packed_bytes,
            report.packed_bytes as f64 / stock as f64
        );
        fs::remove_dir_all(layout)?;
        fs::remove_dir_all(back)?;
        fs::remove_file(compressed)?;
    }
    for (name, mut times) in [("pack", packing), ("zstd -1 -T2", zstd), ("unpack", unpacking)] {
        times.sort();
        println!(
            "{name}: median {:.0?}, {:.0?} to {:.0?}",
            times[times.len() / 2],
            times[0],
            times[times.len() - 1]
        );
    }
    Ok(())
}

fn by_zstd(memory: &Path, to: &Path) -> Result<Duration, Box<dyn Error>> {
    let since = Instant::now();
    let mut command = Command::new("zstd");
    command.args(["-1", "-T2", "-q", "-f", "-o"]).arg(to).arg(memory).stdin(Stdio::null());
    if !command.status()?.success() {
        return Err("zstd has failed".into());
    }
    File::open(to)?.sync_all()?;
    Ok(since.elapsed())
}

fn made(path: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let mut memory = File::create_new(path)?;
    let (mut written, mut run) = (0, vec![0; RUN]);
    let mut folders = vec![PathBuf::from("/usr/lib")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if entry.file_type()?.is_file() && written < BYTES {
                let Ok(mut file) = File::open(entry.path()) else { continue };
                while written < BYTES && file.read_exact(&mut run).is_ok() {
                    memory.write_all(&run)?;
                    memory.write_all(&vec![0; RUN])?;
                    written += 2 * RUN as u64;
                }
            }
        }
    }
    memory.set_len(BYTES)?;
    Ok(path.to_owned())
}
