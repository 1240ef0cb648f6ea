//! The parts of the tests, and how each is run.

use anyhow::Result;
use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::count::Count;
use super::{count_tests, library};
use crate::aarch64::{self, Outcome};
use crate::{
    book, chromium, compiler, emulators, faults, fleet, older, python, redis, soak, valgrind,
};

/// The parts of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// The library's tests but the long ones: all that runs unless more is asked for
    Library,
    /// `cargo test`: every crate, programs in C and C++ included
    Workspace,
    /// Every system call refused once
    Faults,
    /// Snapshots and forks, as on older kernels
    Older,
    /// Models of the library's threads, explored
    Models,
    /// The library, built by the oldest compiler that it promises
    Compiler,
    /// The Python package
    Python,
    /// The library for aarch64, emulated
    Aarch64,
    /// Everything at once, for half a minute
    Soak,
    /// Three guests of the fleet: other kernels, nodes and limits
    Fleet,
    /// The book of docs/, every link followed
    Book,
}

impl Part {
    /// As `--only` has it.
    pub(super) fn name(self) -> String {
        self.on_the_command_line().get_name().to_owned()
    }

    pub(super) fn about(self) -> String {
        self.on_the_command_line().get_help().map(ToString::to_string).unwrap_or_default()
    }

    fn on_the_command_line(self) -> PossibleValue {
        self.to_possible_value().expect("each part is on the command line")
    }

    /// Whether all of it passed, or was skipped.
    pub(super) fn run(self, count: &mut Count, install: bool) -> Result<bool> {
        match self {
            Self::Library => library::run(count),
            Self::Workspace => run_workspace(count, install),
            Self::Faults => faults::short(count),
            Self::Older => older::run(count),
            Self::Models => run_models(count),
            Self::Compiler => compiler::run(count, install),
            Self::Python => run_python(count, install),
            Self::Aarch64 => run_aarch64(count, install),
            Self::Soak => run_soak(count),
            Self::Fleet => fleet::short(install, count),
            Self::Book => book::test(install, count),
        }
    }
}

fn run_aarch64(count: &mut Count, install: bool) -> Result<bool> {
    match aarch64::test(install)? {
        Outcome::Passed => count.passed += 1,
        Outcome::Skipped { reason } => count.skip(format!("aarch64 under emulation: {reason}")),
    }
    Ok(true)
}

fn run_soak(count: &mut Count) -> Result<bool> {
    let went_well = soak::short()?;
    if went_well {
        count.passed += 1;
    } else {
        count.failed += 1;
    }
    Ok(went_well & kill_servers(count)? & compare_servers(count)?)
}

/// The key-value server, killed more often than a test of the workspace does it.
fn kill_servers(count: &mut Count) -> Result<bool> {
    let arguments = ["test", "--package", "kv_store", "--test", "kv_store", "killed_at_any_moment"];
    count_tests(crate::command(&arguments).env("HUGEKIT_KILLS", "50"), count)
}

/// The key-value server beside the real one, for longer than a test of the workspace compares them.
fn compare_servers(count: &mut Count) -> Result<bool> {
    let arguments = ["test", "--package", "kv_store", "--test", "kv_store", "the_real_server"];
    count_tests(crate::command(&arguments).env("HUGEKIT_FUZZ_SECONDS", "30"), count)
}

fn run_workspace(count: &mut Count, install: bool) -> Result<bool> {
    if install {
        redis::fetch();
        chromium::fetch();
        emulators::fetch();
        fleet::qemu::fetch();
    }
    let mut cargo = crate::command(&["test", "--workspace", "--no-fail-fast"]);
    valgrind::tell(&mut cargo, install);
    cargo.env(crate::SLOW, "1");
    count_tests(&mut cargo, count)
}

fn run_python(count: &mut Count, install: bool) -> Result<bool> {
    match python::test(install)? {
        python::Outcome::Skipped(reason) => {
            count.skip(reason);
            Ok(true)
        }
        python::Outcome::Ran { succeeded, said } => {
            said.lines().for_each(|line| count.read_pytest(line));
            Ok(succeeded)
        }
    }
}

/// Lets loom explore the interleavings of `sync` and `parallel`. Its crates are compiled differently, and
/// therefore elsewhere; optimised, because there are many interleavings.
fn run_models(count: &mut Count) -> Result<bool> {
    let target = crate::target_dir("loom");
    let arguments = ["test", "--release", "--package", "hugekit", "--lib", "models"];
    let mut cargo = crate::command(&arguments);
    count_tests(cargo.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target), count)
}
