//! `cargo xtask faults` and `cargo xtask soak`: every system call refused once, and everything at once.

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::run;
use crate::settings::Settings;

/// Compiles the library with its test hooks.
const HOOKS: &str = "--cfg hugekit_faults";

/// Bytes of each binary that has the hooks compiled in; `engine/sys/src/injection/armed.rs` has the same.
const MARK: &[u8] = b"hugekit: system calls may be refused";

/// Has every system call refused once, in each public operation: also a part of `ci` and `nightly`
#[derive(Debug, Args)]
pub(crate) struct Faults {
    /// Only the first call of each kind
    #[arg(long, conflicts_with = "all")]
    first: bool,
    /// Every call and every answer that it may give, instead of some of each kind
    #[arg(long)]
    all: bool,
    /// Reserve huge pages meanwhile, instead of skipping what needs them; needs root
    #[arg(long)]
    setup: bool,
    /// Operations whose names contain this
    filter: Option<String>,
}

/// Does everything at once, in one process, for the requested time, and verifies every byte; at the end memory,
/// descriptors, mappings and threads must be the same as at the start
#[derive(Debug, Args)]
pub(crate) struct Soak {
    /// The length in minutes
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// The number that decides which operations are run, as an earlier soak printed it
    #[arg(long)]
    seed: Option<u64>,
    /// Reserve huge pages and have khugepaged scan without rest meanwhile; needs root
    #[arg(long)]
    setup: bool,
}

impl Faults {
    pub(crate) fn run(&self) -> Result<bool> {
        let _settings = self.setup.then(Settings::for_tests).transpose()?;
        check_that_products_have_no_injection()?;
        let mut cargo = run::cargo(&["test", "--package", "hugekit", "--no-fail-fast"]);
        cargo.args(["--test", "refused_calls", "--test", "held", "--test", "targets"]);
        cargo.args(["--", "--include-ignored"]);
        cargo.args(&self.filter).env("RUSTFLAGS", HOOKS);
        cargo.env("CARGO_TARGET_DIR", run::target_dir("faults"));
        let depth = match (self.first, self.all) {
            (true, _) => "first",
            (_, true) => "all",
            _ => "some",
        };
        run::passes(cargo.env("HUGEKIT_FAULTS", depth))
    }
}

impl Soak {
    pub(crate) fn run(&self) -> Result<bool> {
        let _settings = self.setup.then(Settings::for_soak).transpose()?;
        let mut cargo = run::cargo(&["run", "--release", "--package", "hugekit-soak", "--"]);
        cargo.args(["--minutes", &self.minutes.to_string()]);
        cargo.args(self.seed.into_iter().flat_map(|seed| ["--seed".to_owned(), seed.to_string()]));
        run::passes(&mut cargo)
    }
}

/// The library that programs link cannot have its system calls refused.
fn check_that_products_have_no_injection() -> Result<()> {
    // The packages of `cargo test`, so that nothing is compiled again with other features.
    run::succeed(&mut run::cargo(&["build", "--quiet", "--lib"]))?;
    let library = run::build_dir()?.join("debug/libhugekit.so");
    let bytes = std::fs::read(&library).with_context(|| format!("{}", library.display()))?;
    let is_in = bytes.windows(MARK.len()).any(|part| part == MARK);
    ensure!(!is_in, "{} may refuse system calls", library.display());
    Ok(())
}
