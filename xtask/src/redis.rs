//! The real `redis-server`, `redis-cli`, `redis-benchmark` and redis-py, which the key-value server `apps/kv_store` is
//! tested and compared with. Its tests find them where they usually are, or where they are unpacked here, and otherwise
//! are skipped.

use std::path::Path;

use anyhow::Result;

use crate::debian::{Debian, Piece};
use crate::environment::Environment;

static REDIS: Piece = Piece {
    name: "redis",
    remedy: "apt-get install redis-server redis-tools",
    packages: &["redis-server", "redis-tools"],
    arm64_packages: &[],
};

const PROGRAMS: [&str; 3] = ["redis-server", "redis-cli", "redis-benchmark"];

/// The library that programs in Python have.
const LIBRARY: &str = "redis>=8,<9";

/// Fetches what is missing of both. Without success, the tests say what they lack.
pub(crate) fn fetch() {
    fetch_programs();
    if let Err(error) = fetch_library() {
        eprintln!("no redis-py: {error:#}");
    }
}

/// redis-py, in a virtual environment that stays for the next run.
fn fetch_library() -> Result<()> {
    let folder = crate::target_dir("redis").join("python");
    Environment { folder, requirements: &[LIBRARY] }.make(true)
}

fn fetch_programs() {
    let debian = Debian::new("redis", crate::target_dir("redis"));
    let runs = |program: &Path, debian: &Debian| debian.answer(program, &["--version"]).is_some();
    if PROGRAMS.iter().all(|name| debian.either(name, runs).is_some()) {
        return;
    }
    if let Err(error) = debian.fetch(&[&REDIS]) {
        eprintln!("no redis tools: {error:#}");
    }
}
