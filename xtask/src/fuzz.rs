//! `cargo xtask fuzz`: lets libFuzzer look for bytes that break what reads the bytes of strangers.
//!
//! The engine is compiled from source by the crate `libfuzzer-sys`, which takes a C++ compiler and nothing else; the
//! compiler pass that tells it which code an input reaches is a stable one's, too. Inputs that reach new code stay
//! below `target/fuzz` for the next run; `--keep` takes of that into the repository what reaches more than is kept there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::count::skip;
use crate::run::{cargo, host, passes, root, said, succeed, target_dir};

/// The pass, and counters that are as quick as can be. One unit per crate, so that inlining leaves little uncounted.
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions=on \
    -Coverflow-checks=on";

/// Random operations through the C interface: no bytes, and another engine.
const OPERATIONS: &str = "operations";

/// Looks for inputs that break what reads them
#[derive(Debug, clap::Args)]
pub(crate) struct Fuzz {
    /// Only this target: a folder of proof/fuzz/corpus, or `operations`, which are random operations through the
    /// C interface
    #[arg(long)]
    target: Option<String>,
    /// The time for which each target is fuzzed, in seconds
    #[arg(long, default_value_t = 30)]
    seconds: u32,
    /// The seed of the random choices, so that a run can be repeated; by default each run begins elsewhere
    #[arg(long)]
    seed: Option<u32>,
    /// Take what reaches more into the repository
    #[arg(long)]
    keep: bool,
}

impl Fuzz {
    pub(crate) fn run(&self) -> Result<bool> {
        let entries = fs::read_dir(corpus()).context("no corpus")?;
        let names: std::io::Result<Vec<_>> =
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect();
        let mut names = names?;
        names.sort();
        let chosen = |name: &str| self.target.as_ref().is_none_or(|target| target == name);
        let known = names.join(", ");
        names.retain(|name| chosen(name));
        ensure!(!names.is_empty() || chosen(OPERATIONS), "the targets are {known}, {OPERATIONS}");
        let mut passed = names.is_empty() || self.run_parsers(&names)?;
        if chosen(OPERATIONS) {
            passed &= self.run_operations()?;
        }
        Ok(passed)
    }

    /// A test of the C interface generates sequences, checks and shortens them.
    fn run_operations(&self) -> Result<bool> {
        let mut test = cargo(&["test", "--test", "operations"]);
        test.env("HUGEKIT_FUZZ_SECONDS", self.seconds.to_string());
        test.envs(self.seed.map(|seed| ("HUGEKIT_FUZZ_SEED", seed.to_string())));
        passes(&mut test)
    }

    fn run_parsers(&self, names: &[String]) -> Result<bool> {
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
        if said(Command::new(compiler).arg("--version")).is_none() {
            skip(&names.join(", "), "libFuzzer needs a C++ compiler (apt-get install g++)");
            return Ok(true);
        }
        let program = build()?;
        let results = names.iter().map(|name| self.run_target(&program, name));
        results.collect::<Result<Vec<_>>>().map(|passed| passed.iter().all(|passed| *passed))
    }

    /// Fuzzes a target. Returns true if nothing was found.
    fn run_target(&self, program: &Path, name: &str) -> Result<bool> {
        println!("fuzzing {name} for {} seconds", self.seconds);
        let (known, found) = (place("corpus", name)?, place("found", name)?);
        let kept = corpus().join(name);
        let mut fuzz = engine(program, name);
        fuzz.args(["-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"]);
        fuzz.arg(format!("-max_total_time={}", self.seconds));
        fuzz.arg(format!("-artifact_prefix={}/", found.display()));
        fuzz.args(self.seed.map(|seed| format!("-seed={seed}"))).args([&known, &kept]);
        if !passes(&mut fuzz)? {
            println!(
                "{name}: an input breaks it. Replay it with HUGEKIT_FUZZ_TARGET={name} {} FILE. After the repair, move \
                 the input from {} into {}",
                program.display(),
                found.display(),
                kept.display()
            );
            return Ok(false);
        }
        if self.keep {
            // Code that is reached counts, not how often: few inputs are kept.
            let merge = ["-set_cover_merge=1", "-use_counters=0", "-verbosity=0"];
            succeed(engine(program, name).args(merge).args([&kept, &known]))?;
        }
        Ok(true)
    }
}

/// Trees of files are made and dropped thousands of times: in memory if there is a file system for that.
fn engine(program: &Path, name: &str) -> Command {
    let mut engine = Command::new(program);
    engine.env("HUGEKIT_FUZZ_TARGET", name);
    if Path::new("/dev/shm").is_dir() {
        engine.env("TMPDIR", "/dev/shm");
    }
    engine
}

/// The program, compiled with its engine. With a target of its own, so that what runs at build time is not counted.
fn build() -> Result<PathBuf> {
    let (target_dir, triple) = (target_dir("fuzz/build"), host()?);
    let mut cargo = cargo(&["build", "--release", "--package", "hugekit-fuzz"]);
    cargo.args(["--features", "engine", "--bin", "fuzz", "--target", &triple]);
    cargo.env("CARGO_TARGET_DIR", &target_dir);
    succeed(cargo.env("CARGO_ENCODED_RUSTFLAGS", RUSTFLAGS.replace(' ', "\x1f")))?;
    Ok(target_dir.join(triple).join("release/fuzz"))
}

fn corpus() -> PathBuf {
    root().join("proof/fuzz/corpus")
}

/// A folder below `target/fuzz`.
fn place(what: &str, name: &str) -> Result<PathBuf> {
    let folder = target_dir("fuzz").join(what).join(name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}
