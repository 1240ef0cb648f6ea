//! `cargo xtask faults`: every system call refused once, in each public operation.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::settings::Settings;
use crate::testing::{Count, count_tests};

/// The feature of `hugekit` behind which its system calls may be refused.
pub(crate) const INJECTION: &str = "hugekit/fault-injection";

/// Bytes of each binary that has it compiled in; `sys/injection/armed.rs` says so too.
const MARK: &[u8] = b"hugekit: system calls may be refused";

/// Has every system call refused once, in each public operation: also a part of `test`
#[derive(Debug, Args)]
pub(crate) struct Faults {
    /// Every call and every answer that it may give, instead of some of each kind
    #[arg(long)]
    all: bool,
    /// As root, reserve huge pages meanwhile, instead of skipping what needs them
    #[arg(long)]
    setup: bool,
    /// Operations whose names contain this
    filter: Option<String>,
}

impl Faults {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let _settings = self.setup.then(Settings::for_tests).transpose()?;
        let mut count = Count::default();
        let passed = run(&mut count, self.all, self.filter.as_deref())?;
        count.print();
        Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The short form, of all operations.
pub(crate) fn short(count: &mut Count) -> Result<bool> {
    run(count, false, None)
}

fn run(count: &mut Count, all: bool, filter: Option<&str>) -> Result<bool> {
    check_that_products_have_no_injection()?;
    let arguments = ["test", "--package", "hugekit", "--features", INJECTION];
    let mut cargo = crate::command(&arguments);
    cargo.args(["--test", "refused_calls", "--"]).args(filter);
    count_tests(cargo.env("HUGEKIT_FAULTS", if all { "all" } else { "some" }), count)
}

/// The library that programs link is built without what has calls refused.
fn check_that_products_have_no_injection() -> Result<()> {
    crate::cargo(&["build", "--package", "hugekit-c"])?;
    let library = crate::target_dir("debug").join("libhugekit.so");
    let bytes = std::fs::read(&library).with_context(|| format!("{}", library.display()))?;
    let is_in = bytes.windows(MARK.len()).any(|part| part == MARK);
    ensure!(!is_in, "{} may refuse system calls", library.display());
    Ok(())
}
