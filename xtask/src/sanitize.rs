//! `cargo xtask sanitize`: tests of the library and of its C interface, compiled with a sanitizer.
//!
//! The compiler has the sanitizers' runtimes and keeps the flag that asks for them for its nightly versions; a stable one
//! takes it when it is told to (`RUSTC_BOOTSTRAP=1`), which is good enough for tests. The standard library is the one
//! that comes with the compiler, without the sanitizer: that is fine for addresses and leaks, and not for threads, whose
//! sanitizer must see every lock there is.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::fuzz::host;

/// The defects that are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sanitizer {
    /// Accesses beyond or after an allocation
    Address,
    /// Allocations that nothing points to when the process ends
    Leak,
    /// Accesses that race
    Thread,
}

/// Tests under a sanitizer
#[derive(Debug, clap::Args)]
pub(crate) struct Sanitize {
    /// One alone, instead of all
    sanitizer: Option<Sanitizer>,
    /// The library's unit tests and those of served faults alone
    #[arg(long)]
    short: bool,
}

/// Tests of the library, by file; `None` are the unit tests.
const TESTS: &[Option<&str>] = &[
    None,
    Some("clear"),
    Some("copy"),
    Some("fault"),
    Some("fork"),
    Some("parallel"),
    Some("pool"),
    Some("region"),
    Some("region_snapshot"),
    Some("routines"),
    Some("signals"),
    Some("snapshot"),
];

/// Those of the short form.
const SHORT: &[Option<&str>] = &[None, Some("fault")];

/// A test that the address sanitizer's own doings disturb.
struct Excluded {
    file: &'static str,
    /// Its name, or part of it.
    test: &'static str,
    reason: &'static str,
}

/// All of them: what is not here runs.
const EXCLUDED: &[Excluded] = &[
    Excluded { file: "region", test: "populate_of_a_region_leaves_no_fault", reason: FAULTS },
    Excluded { file: "region", test: "populate_by_threads_is_shared_and_watched", reason: FAULTS },
    Excluded {
        file: "region_snapshot",
        test: "snapshots_by_the_thousand_leave_nothing_behind",
        reason: MAPPINGS,
    },
    Excluded {
        file: "snapshot",
        test: "snapshots_by_the_thousand_leave_nothing_behind",
        reason: MAPPINGS,
    },
    Excluded {
        file: "signals",
        test: "fault_of_any_kind_in_a_fork_keeps_errno_and_the_bound_of_stack",
        reason: STACK,
    },
    Excluded {
        file: "signals",
        test: "fault_served_in_place_keeps_the_bound_of_stack",
        reason: STACK,
    },
    Excluded { file: "signals", test: "copy_for_a_fork_keeps_the_bound_of_stack", reason: STACK },
];

const FAULTS: &str = "it counts page faults, and the shadow of the memory has some";
const MAPPINGS: &str = "it counts mappings, and the sanitizer's allocator makes some";
const STACK: &str = "it measures the handler's stack, and each frame has a red zone";

/// Leaks are looked for by a sanitizer of their own; the handlers of SIGSEGV and SIGBUS are the library's, the tests'
/// or the kernel's, as without a sanitizer; and what is on the stack, which cannot be snapshotted, stays there.
const OPTIONS: &str =
    "detect_leaks=0:handle_segv=0:handle_sigbus=0:detect_stack_use_after_return=0";

impl Sanitize {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let all = [Sanitizer::Address, Sanitizer::Leak, Sanitizer::Thread];
        let mut passed = true;
        for sanitizer in all {
            if self.sanitizer.is_none_or(|asked| asked == sanitizer) {
                passed &= self.run_one(sanitizer)?;
            }
        }
        Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Whether all passed, or could not be run here.
    fn run_one(&self, sanitizer: Sanitizer) -> Result<bool> {
        if let Some(reason) = lacking(sanitizer)? {
            println!("skipped: {} sanitizer: {reason}", sanitizer.name());
            return Ok(true);
        }
        let mut passed = true;
        for file in if self.short { SHORT } else { TESTS } {
            passed &= sanitizer.test(*file)?;
        }
        Ok(passed)
    }
}

impl Sanitizer {
    fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Leak => "leak",
            Self::Thread => "thread",
        }
    }

    /// Runs the tests of one file. With a target of its own, so that what runs at build time is compiled as always.
    fn test(self, file: Option<&str>) -> Result<bool> {
        let mut cargo = self.cargo(&["test", "--package", "hugekit"])?;
        match file {
            Some(file) => cargo.args(["--test", file]),
            None => cargo.arg("--lib"),
        };
        cargo.arg("--");
        let disturbed = |test: &&Excluded| self == Self::Address && Some(test.file) == file;
        for Excluded { test, reason, .. } in EXCLUDED.iter().filter(disturbed) {
            println!("skipped: {test} with the {} sanitizer: {reason}", self.name());
            cargo.args(["--skip", test]);
        }
        Ok(cargo.status().context("cannot start cargo")?.success())
    }

    fn cargo(self, arguments: &[&str]) -> Result<Command> {
        let mut cargo = crate::command(arguments);
        cargo.args(["--target", &host()?]);
        cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", format!("-Zsanitizer={}", self.name()));
        cargo.env("CARGO_TARGET_DIR", crate::target_dir("sanitize").join(self.name()));
        cargo.env("ASAN_OPTIONS", OPTIONS);
        if self == Self::Thread {
            cargo.arg("-Zbuild-std");
        }
        Ok(cargo)
    }
}

/// Why a sanitizer cannot be used here, if so.
fn lacking(sanitizer: Sanitizer) -> Result<Option<String>> {
    let library = format!("librustc-stable_rt.{}san.a", &sanitizer.name()[..1]);
    let nightly = library.replace("-stable", "-nightly");
    let libraries = said(&["--print", "target-libdir"])?;
    let runtime =
        [library, nightly].into_iter().any(|name| Path::new(&libraries).join(name).exists());
    if !runtime {
        return Ok(Some("this compiler comes without its runtime".to_owned()));
    }
    let sources = Path::new(&said(&["--print", "sysroot"])?).join("lib/rustlib/src/rust/library");
    let is_lacking = sanitizer == Sanitizer::Thread && !sources.is_dir();
    Ok(is_lacking.then(|| {
        "it must see the locks of the standard library, which has to be compiled for it, and its sources are missing \
         (rustup component add rust-src)"
            .to_owned()
    }))
}

/// The compiler's output.
fn said(arguments: &[&str]) -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(arguments).output().context("cannot start rustc")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
