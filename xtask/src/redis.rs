//! The real `redis-server`, `redis-cli` and `redis-benchmark`, which the key-value store among the examples is tested and
//! compared with. Its tests find them on the path, or where they are unpacked here, and otherwise are skipped.

use std::path::Path;

use crate::debian::{Debian, Packages};

const PROGRAMS: [&str; 3] = ["redis-server", "redis-cli", "redis-benchmark"];

/// Fetches them if one is missing. Without success, the tests say what they lack.
pub(crate) fn fetch() {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target").join("redis");
    let debian = Debian::new(target);
    let runs = |program: &Path, debian: &Debian| debian.answer(program, &["--version"]).is_some();
    if PROGRAMS.iter().all(|name| debian.either(name, runs).is_some()) {
        return;
    }
    let packages = Packages { native: vec!["redis-server", "redis-tools"], arm64: vec![] };
    if let Err(error) = debian.fetch(&packages) {
        eprintln!("no redis tools: {error:#}");
    }
}
