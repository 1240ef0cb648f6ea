//! Files whose page cache is put on huge pages.

use std::fs;
use std::path::PathBuf;

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit_warm::{WarmError, WarmMode, WarmOptions, Warmed, Warmer};

use super::{FOLIOS, PAINT, Run};
use crate::case::{Point, have};

pub(super) const EACH: &[(&str, Run)] =
    hugekit_testing::checks![a_file_is_warmed, a_file_is_checked, a_file_is_kept];

/// A file in which all bytes tell where they are.
fn file() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, &PAINT[..FOLIOS * hugekit::HUGE_PAGE_BYTES]).unwrap();
    (folder, path)
}

fn run(point: &Point, mode: WarmMode) {
    let (_folder, path) = file();
    let options = WarmOptions { mode, ..WarmOptions::default() };
    let warm = || Warmer::new(options).run(&path);
    if let Some(Warmed { report, lock }) = point.unless_refused(point.refuse(warm), WarmError::kind)
    {
        point.check(report.units() == FOLIOS as u64, "other units");
        point.check(lock.is_some() == (mode == WarmMode::Keep), "a lock");
    }
    let bytes = fs::read(&path).unwrap();
    point.check(bytes == PAINT[..bytes.len()], "other bytes");
    point.check(have(warm(), WarmError::kind).report.units() == FOLIOS as u64, "other units");
}

fn a_file_is_warmed(point: &Point, _: Backing, _: FaultMode) {
    run(point, WarmMode::Make);
}

fn a_file_is_checked(point: &Point, _: Backing, _: FaultMode) {
    run(point, WarmMode::Check);
}

fn a_file_is_kept(point: &Point, _: Backing, _: FaultMode) {
    run(point, WarmMode::Keep);
}
