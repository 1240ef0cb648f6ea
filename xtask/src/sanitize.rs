//! `cargo xtask sanitize`: tests of the library, compiled with a sanitizer.
//!
//! The compiler has the sanitizers' runtimes and keeps the flag that asks for them for its nightly versions; a stable one
//! takes it when it is told to (`RUSTC_BOOTSTRAP=1`), which is good enough for tests. The standard library is the one
//! that comes with the compiler, without the sanitizer: that is fine for addresses and leaks, and not for threads, whose
//! sanitizer must see every lock there is.

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;

use crate::run::{cargo, host, passes, rustc, target_dir};

/// The defects that are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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
    /// Only this one, instead of all
    sanitizer: Option<Sanitizer>,
    /// Only the library's unit tests and those of served faults
    #[arg(long)]
    short: bool,
}

/// Programs of the library's tests, after the short form's.
const TESTS: [&str; 11] = [
    "fault",
    "clear",
    "copy",
    "fork",
    "parallel",
    "pool",
    "region",
    "region_snapshot",
    "routines",
    "signals",
    "snapshot",
];

/// Tests that the address sanitizer's own doings disturb, by program, name, and reason. All others run.
const EXCLUDED: [(&str, &str, &str); 7] = [
    ("region", "populate_of_a_region_leaves_no_fault", FAULTS),
    ("region", "populate_by_threads_is_shared_and_watched", FAULTS),
    ("region_snapshot", "snapshots_by_the_thousand_leave_nothing_behind", MAPPINGS),
    ("snapshot", "snapshots_by_the_thousand_leave_nothing_behind", MAPPINGS),
    ("signals", "fault_of_any_kind_in_a_fork_keeps_errno_and_the_bound_of_stack", STACK),
    ("signals", "fault_served_in_place_keeps_the_bound_of_stack", STACK),
    ("signals", "copy_for_a_fork_keeps_the_bound_of_stack", STACK),
];

const FAULTS: &str = "it counts page faults, and the shadow of the memory has some";
const MAPPINGS: &str = "it counts mappings, and the sanitizer's allocator makes some";
const STACK: &str = "it measures the handler's stack, and each frame has a red zone";

/// Leaks are looked for by a sanitizer of their own; the handlers of SIGSEGV and SIGBUS are the library's, the tests'
/// or the kernel's, as without a sanitizer; and what is on the stack, which cannot be snapshotted, stays there.
const OPTIONS: &str =
    "detect_leaks=0:handle_segv=0:handle_sigbus=0:detect_stack_use_after_return=0";

impl Sanitize {
    pub(crate) fn run(&self) -> Result<bool> {
        let mut passed = true;
        let all = Sanitizer::value_variants().iter().copied();
        for sanitizer in
            all.filter(|sanitizer| self.sanitizer.is_none_or(|asked| asked == *sanitizer))
        {
            if let Some(reason) = sanitizer.lack()? {
                crate::count::skip(&format!("{} sanitizer", sanitizer.name()), reason);
                continue;
            }
            passed &= sanitizer.test(&["--lib"], &[])?;
            for test in &TESTS[..if self.short { 1 } else { TESTS.len() }] {
                let disturbed =
                    EXCLUDED.iter().filter(|row| row.0 == *test && sanitizer == Sanitizer::Address);
                let skips =
                    disturbed.inspect(|(_, name, reason)| println!("skipped: {name}: {reason}"));
                let skips: Vec<_> = skips.flat_map(|row| ["--skip", row.1]).collect();
                passed &= sanitizer.test(&["--test", test], &skips)?;
            }
        }
        Ok(passed)
    }
}

impl Sanitizer {
    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Runs the tests of one program. With a target of its own, so that what runs at build time is compiled as always.
    fn test(self, program: &[&str], skips: &[&str]) -> Result<bool> {
        let mut cargo = cargo(&["test", "--package", "hugekit", "--target", &host()?]);
        if self == Self::Thread {
            cargo.arg("-Zbuild-std");
        }
        cargo.args(program).args(["--", "--include-ignored"]).args(skips);
        cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", format!("-Zsanitizer={}", self.name()));
        cargo.env("CARGO_TARGET_DIR", target_dir("sanitize").join(self.name()));
        passes(cargo.env("ASAN_OPTIONS", OPTIONS))
    }

    /// Why a sanitizer cannot be used here.
    fn lack(self) -> Result<Option<&'static str>> {
        let libraries = rustc(&["--print", "target-libdir"])?;
        let runtime = |channel| format!("librustc-{channel}_rt.{}san.a", &self.name()[..1]);
        if !["stable", "nightly"]
            .iter()
            .any(|name| Path::new(&libraries).join(runtime(name)).exists())
        {
            return Ok(Some("this compiler comes without its runtime"));
        }
        let sources =
            Path::new(&rustc(&["--print", "sysroot"])?).join("lib/rustlib/src/rust/library");
        let lacks_sources = self == Self::Thread && !sources.is_dir();
        Ok(lacks_sources.then_some(
            "it must see the locks of the standard library, whose sources are missing (rustup component add rust-src)",
        ))
    }
}
