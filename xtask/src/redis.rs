//! The real `redis-server`, `redis-cli` and `redis-benchmark`, which the key-value server `apps/kv_store` is tested and
//! compared with. Its tests find them on the path, or where they are unpacked here, and otherwise are skipped.

use std::path::Path;

use crate::debian::{Debian, Piece};

static REDIS: Piece = Piece {
    name: "redis",
    remedy: "apt-get install redis-server redis-tools",
    packages: &["redis-server", "redis-tools"],
    arm64_packages: &[],
};

const PROGRAMS: [&str; 3] = ["redis-server", "redis-cli", "redis-benchmark"];

/// Fetches them if one is missing. Without success, the tests say what they lack.
pub(crate) fn fetch() {
    let debian = Debian::new("redis", crate::target_dir("redis"));
    let runs = |program: &Path, debian: &Debian| debian.answer(program, &["--version"]).is_some();
    if PROGRAMS.iter().all(|name| debian.either(name, runs).is_some()) {
        return;
    }
    if let Err(error) = debian.fetch(&[&REDIS]) {
        eprintln!("no redis tools: {error:#}");
    }
}
