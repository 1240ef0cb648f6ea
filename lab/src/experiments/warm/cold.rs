//! A file that is not in memory: warmed, and read once in order as `cat` does.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Instant;

use crate::measure::part::{Part, Rounds};
use crate::measure::{LabError, Observer};
use crate::record::Unit;
use hugekit_machine::size::Size;

use super::{FileCache, Files};

/// Bytes of each read, as of `cat` and `cp`.
const TOGETHER: usize = 128 << 10;

pub(super) fn measure(files: &Files, rounds: Rounds<'_>) -> Result<Part, LabError> {
    rounds.observer.begin("warm: a cold file");
    let workload = format!("cold-{}", Size(files.bytes));
    let names = ["cat", "warm"].map(|method| format!("{method}/{workload}"));
    let mut part = rounds.measure("warm", Unit::Microseconds, &names, |index| {
        FileCache::Cold.prepare(&files.small)?;
        let since = Instant::now();
        match index {
            0 => cat(&files.small, rounds.observer)?,
            _ => FileCache::Warmed.prepare(&files.small)?,
        }
        Ok(since.elapsed().as_secs_f64() * 1e6)
    })?;
    part.compare(("cat", "warm"), &workload, None);
    Ok(part)
}

/// Reads all of a file and keeps none of it.
fn cat(path: &Path, observer: &dyn Observer) -> Result<(), LabError> {
    let mut file = File::open(path).map_err(LabError::Saved)?;
    let mut buffer = vec![0; TOGETHER];
    loop {
        observer.check()?;
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(LabError::Saved(error)),
        }
    }
}
