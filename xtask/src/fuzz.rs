//! `cargo xtask fuzz`: lets libFuzzer look for bytes that break what reads the bytes of strangers.
//!
//! The engine is compiled from source by the crate `libfuzzer-sys`, which takes a C++ compiler and nothing else; the
//! compiler pass that tells it which code an input reaches is a stable one's, too. What it finds worth keeping stays
//! below `target/fuzz` for the next run; `--keep` takes of that into the repository what reaches more than is kept there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::operations;

/// The pass, and counters that are as quick as can be. One unit per crate, so that inlining leaves little uncounted.
const RUSTFLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Cdebug-assertions=on",
    "-Coverflow-checks=on",
];

/// Random operations through the C interface: no bytes, and another engine.
const OPERATIONS: &str = "operations";

/// Looks for inputs that break what reads them
#[derive(Debug, clap::Args)]
pub(crate) struct Fuzz {
    /// One target alone: `record`, `profile`, `machine`, `resp`, `image`, `commands`, `lease`, or `operations`, which are random
    /// operations through the C interface
    #[arg(long)]
    target: Option<String>,
    /// How long each target is fuzzed
    #[arg(long, default_value_t = 30)]
    seconds: u32,
    /// Where randomness begins, so that a run can be repeated; another one each time if not said
    #[arg(long)]
    seed: Option<u32>,
    /// Take what reaches more into the repository
    #[arg(long)]
    keep: bool,
}

impl Fuzz {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let mut names = targets()?;
        names.push(OPERATIONS.to_owned());
        if let Some(asked) = &self.target {
            ensure!(names.contains(asked), "{asked} is no target: there are {}", names.join(", "));
            names.retain(|name| name == asked);
        }
        let (operations, parsers): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| name == OPERATIONS);
        let mut passed = self.run_parsers(&parsers)?;
        if !operations.is_empty() {
            passed &= operations::run(self.seconds, self.seed)?;
        }
        Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn run_parsers(&self, names: &[String]) -> Result<bool> {
        if names.is_empty() {
            return Ok(true);
        }
        if let Some(reason) = lacking() {
            println!("skipped: {}: {reason}", names.join(", "));
            return Ok(true);
        }
        let program = build()?;
        let mut passed = true;
        for name in names {
            passed &= self.run_target(&program, name)?;
        }
        Ok(passed)
    }

    /// Whether nothing was found.
    fn run_target(&self, program: &Path, name: &str) -> Result<bool> {
        println!("fuzzing {name} for {} seconds", self.seconds);
        let (known, found) = (place("corpus", name)?, place("found", name)?);
        let mut engine = Command::new(program);
        engine.env("HUGEKIT_FUZZ_TARGET", name).env("TMPDIR", scratch());
        engine.args(["-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"]);
        engine.arg(format!("-max_total_time={}", self.seconds));
        engine.arg(format!("-artifact_prefix={}/", found.display()));
        engine.args(self.seed.map(|seed| format!("-seed={seed}")));
        engine.arg(&known).arg(kept(name));
        let status = engine.status().with_context(|| format!("cannot start {engine:?}"))?;
        if !status.success() {
            println!(
                "{name}: an input breaks it. Replay it with HUGEKIT_FUZZ_TARGET={name} {} FILE; what is below {} and is \
                 mended belongs into {}",
                program.display(),
                found.display(),
                kept(name).display()
            );
            return Ok(false);
        }
        if self.keep {
            merge(program, name, &known)?;
        }
        Ok(true)
    }
}

/// Takes over what reaches more than is kept.
fn merge(program: &Path, name: &str, known: &Path) -> Result<()> {
    let mut engine = Command::new(program);
    engine.env("HUGEKIT_FUZZ_TARGET", name).env("TMPDIR", scratch());
    // Code that is reached counts, not how often: few inputs are kept.
    engine
        .args(["-set_cover_merge=1", "-use_counters=0", "-verbosity=0"])
        .arg(kept(name))
        .arg(known);
    crate::succeed(&mut engine)
}

/// Why there is no engine, if so.
fn lacking() -> Option<String> {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let mut ask = Command::new(&compiler);
    let answer = ask.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = answer.is_ok_and(|status| status.success());
    let reason = "libFuzzer is compiled from source, and there is no C++ compiler";
    (!is_there).then(|| format!("{reason} {} (apt-get install g++)", compiler.display()))
}

/// The program, compiled with its engine. With a target of its own, so that what runs at build time is not counted.
fn build() -> Result<PathBuf> {
    let target_dir = crate::target_dir("fuzz/build");
    let triple = host()?;
    let mut cargo = crate::command(&["build", "--release", "--package", "hugekit-fuzz"]);
    cargo.args(["--features", "engine", "--bin", "fuzz", "--target", &triple]);
    cargo
        .env("CARGO_TARGET_DIR", &target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", RUSTFLAGS.join("\x1f"));
    crate::succeed(&mut cargo)?;
    Ok(target_dir.join(triple).join("release/fuzz"))
}

/// The compiler's name for this machine.
pub(crate) fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().context("cannot start rustc")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not say what it runs on")
}

/// The targets, by their folders of kept inputs.
fn targets() -> Result<Vec<String>> {
    let folder = corpus();
    let entries = fs::read_dir(&folder).with_context(|| format!("no {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        match entry?.file_name().into_string() {
            Ok(name) => names.push(name),
            Err(name) => bail!("{} is no target", name.display()),
        }
    }
    names.sort();
    Ok(names)
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crates").join("hugekit-fuzz/corpus")
}

fn kept(name: &str) -> PathBuf {
    corpus().join(name)
}

/// A folder below `target/fuzz`.
fn place(what: &str, name: &str) -> Result<PathBuf> {
    let folder = crate::target_dir("fuzz").join(what).join(name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Trees of files are made and dropped thousands of times: in memory where that can be.
fn scratch() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}
