//! Images: loaded, checked and mapped.

use std::fs::File;
use std::io::Write as _;

use hugekit::fault::FaultMode;
use hugekit::image::{Image, ImageError};
use hugekit::pool::Backing;

use super::{FOLIOS, Run};
use crate::case::{Point, have};

pub(super) const EACH: &[(&str, Run)] = hugekit_testing::checks![
    an_image_is_loaded,
    an_image_is_written_to_a_tmpfs,
    an_image_is_mapped,
];

/// A file of memory in which each granule has a byte.
fn source() -> (File, Vec<u8>) {
    let mut bytes = vec![0; FOLIOS * hugekit::HUGE_PAGE_BYTES];
    bytes.iter_mut().step_by(100_003).for_each(|byte| *byte = 7);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    (file, bytes)
}

fn an_image_is_loaded(point: &Point, _: Backing, _: FaultMode) {
    let (file, bytes) = source();
    let load = || Image::builder("test").source(file.try_clone().unwrap()).load();
    if let Some(image) = point.unless_refused(point.refuse(load), ImageError::kind) {
        point.check(*have(image.map(), ImageError::kind) == bytes[..], "other bytes");
    }
}

fn an_image_is_written_to_a_tmpfs(point: &Point, _: Backing, _: FaultMode) {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let (path, (file, bytes)) = (folder.path().join("memory"), source());
    let load = || Image::builder("test").source(file.try_clone().unwrap()).load_to(&path);
    let loaded = point.unless_refused(point.refuse(load), ImageError::kind);
    point.check(path.exists() == loaded.is_some(), "a name");
    point.check(loaded.is_none() || std::fs::read(&path).unwrap() == bytes, "other bytes");
}

fn an_image_is_mapped(point: &Point, _: Backing, _: FaultMode) {
    let (file, bytes) = source();
    let image = have(Image::builder("test").source(file).load(), ImageError::kind);
    let map = || Image::check(image.open_again()?)?.map();
    if let Some(mut mapped) = point.unless_refused(point.refuse(map), ImageError::kind) {
        point.check(*mapped == bytes[..], "other bytes");
        mapped.fill(9);
    }
    point.check(*have(image.map(), ImageError::kind) == bytes[..], "the image was written");
}
