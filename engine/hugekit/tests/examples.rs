//! Examples run, and what they print is what they say of themselves.

use std::fs::File;
use std::sync::{Mutex, PoisonError};

use hugekit::Pool;
use hugekit::fault::FaultMode;
use hugekit_machine::{Memory, Root};
use hugekit_testing::checks;
use hugekit_testing::example::build;
use hugekit_testing::trials::unless_lacking;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// Their crates would make all tests of this crate slower to build.
const OF_VMMS: [&str; 4] = ["guest_memory", "clone_vm", "pause_vm", "vm_memory"];

fn printed(example: &str, arguments: &[&str]) -> (bool, String) {
    let output = build(example).and_then(|mut example| Ok(example.args(arguments).output()?));
    let output = output.expect("the example can be built and started");
    let print = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&print).into_owned())
}

fn a_guest_verifies_all_of_a_region() -> Result<(), Failed> {
    let (succeeded, print) = printed("guest_memory", &["64"]);
    assert!(succeeded, "{print}");
    for expected in ["64 MiB on ", "MAP_POPULATE", "region of a pool"] {
        assert!(print.contains(expected), "{print}");
    }
    Ok(())
}

fn memory_of_a_vmm_of_crates_is_a_region() -> Result<(), Failed> {
    let (succeeded, print) = printed("vm_memory", &[]);
    assert!(succeeded && print.contains("64 MiB of guest memory up to 0x3ffffff on "), "{print}");
    Ok(())
}

fn a_size_that_is_none_is_refused() -> Result<(), Failed> {
    for size in ["0", "4096", "much"] {
        let (succeeded, print) = printed("guest_memory", &[size]);
        assert!(!succeeded && print.contains("is no number of MiB"), "{print}");
    }
    Ok(())
}

fn clones_write_their_own_memory() -> Result<(), Failed> {
    let (succeeded, print) = printed("clone_vm", &["20", "2"]);
    assert!(succeeded, "{print}");
    for expected in [
        "clones of 2 MiB on ",
        "pool populated in ",
        "first fork, which starts the handler thread: ",
        "20 clones and the template have their own bytes",
    ] {
        assert!(print.contains(expected), "{print}");
    }
    Ok(())
}

fn a_guest_saved_by_deltas_goes_on_exactly() -> Result<(), Failed> {
    let (succeeded, print) = printed("pause_vm", &["16"]);
    assert!(succeeded, "{print}");
    for expected in [
        "all of ",
        "a delta of ",
        "3 guests went on, and ended exactly as one that was never paused",
    ] {
        assert!(print.contains(expected), "{print}");
    }
    Ok(())
}

fn a_number_of_clones_that_is_none_is_refused() -> Result<(), Failed> {
    for arguments in [&["0"][..], &["many"], &["1", "9999"]] {
        let (succeeded, print) = printed("clone_vm", arguments);
        assert!(!succeeded && print.contains("is no number of "), "{print}");
    }
    Ok(())
}

/// The README's program is that of the example `readme`, but for the sizes and the place of the snapshot.
fn the_readme_has_the_program_of_the_example() -> Result<(), Failed> {
    let readme = include_str!("../../../README.md");
    let example = include_str!("../examples/readme.rs");
    let (_, rest) = readme.split_once("```rust").ok_or("the README has no Rust")?;
    let program = rest.split("```").next().unwrap_or_default().lines().skip(1);
    let lines = program.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut compared = 0;
    for line in lines {
        let code = line.split(" //").next().unwrap_or(line);
        let code = code.replace("1 << 30", "mib << 20");
        let code = code.split("&mut std::fs").next().unwrap_or_default();
        assert!(example.contains(code), "the example has no line `{code}`");
        compared += 1;
    }
    assert!(compared >= 8, "only {compared} lines of the README are a program");
    Ok(())
}

/// An example, its arguments, what it prints at the end, and the MiB of memory that it needs.
type Sized = (&'static str, &'static [&'static str], &'static str, u64);

/// At the sizes of users: defaults that are shares of the memory, and limits, matter there. A guest has at most 3 GiB; that of
/// `pause_vm` runs for minutes if it has more than 256 MiB and its CPU is emulated.
const SIZED: [Sized; 13] = [
    ("readme", &["128"], "have their own bytes", 600),
    ("readme", &["1024"], "have their own bytes", 5_000),
    ("readme", &["4096"], "have their own bytes", 18_000),
    ("guest_memory", &["128"], "region of a pool", 600),
    ("guest_memory", &["1024"], "region of a pool", 3_000),
    ("guest_memory", &["3072"], "region of a pool", 8_000),
    ("clone_vm", &["2", "128"], "have their own bytes", 600),
    ("clone_vm", &["2", "1024"], "have their own bytes", 4_000),
    ("clone_vm", &["1", "3072"], "have their own bytes", 8_000),
    ("pause_vm", &["128"], "ended exactly as one that was never paused", 1_000),
    ("pause_vm", &["256"], "ended exactly as one that was never paused", 2_000),
    ("snapshot_stall", &["1"], "snapshot: made in", 4_000),
    ("snapshot_stall", &["4", "reserve"], "snapshot: made in", 18_000),
];

/// An example that needs more MiB runs in the nightly tests only.
const LARGE: u64 = 1_000;

/// One at a time: they share the memory that is available.
static ONE: Mutex<()> = Mutex::new(());

/// The trial of an example at a size; `lacking` is why it cannot run, if so.
fn sized((example, arguments, says, mib): Sized, lacking: Option<&String>) -> Trial {
    let name = format!("{example}_at_{}", arguments.join("_"));
    let lacking = lacking.cloned();
    let kind = if mib > LARGE { "nightly: it uses gigabytes" } else { "" };
    let trial = Trial::ignorable_test(name, move || {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let available = Memory::read(&Root::default())?.available >> 20;
        let short = format!("{available} MiB of memory are available, and {mib} are needed");
        if let Some(reason) = lacking.or((available < mib).then_some(short)) {
            return Ok(Completion::ignored_with(reason));
        }
        let (succeeded, print) = printed(example, arguments);
        assert!(succeeded && print.contains(says), "{print}");
        Ok(Completion::Completed)
    });
    trial.with_kind(kind).with_ignored_flag(!kind.is_empty())
}

/// Why no guest can run here, if so.
fn no_guest() -> Option<String> {
    if cfg!(not(target_arch = "x86_64")) {
        return Some("the guest's program is for x86-64".to_owned());
    }
    let device = File::options().read(true).write(true).open("/dev/kvm");
    device.err().map(|error| format!("/dev/kvm: {error}"))
}

/// Why a guest's faults cannot be served here, if so.
fn no_guest_on_a_fork() -> Option<String> {
    let pool = Pool::builder(4 << 20).build();
    let region = pool.and_then(|pool| pool.region(2 << 20)).expect("4 MiB of memory");
    let threaded = FaultMode::Threaded { threads: 1 };
    region.fork_builder().fault_mode(threaded).build().err().map(|error| error.to_string())
}

type Check = (&'static str, fn() -> Result<(), Failed>);

const WITH_A_GUEST: &[Check] = checks![
    a_guest_verifies_all_of_a_region,
    a_number_of_clones_that_is_none_is_refused,
    a_size_that_is_none_is_refused,
];

const WITH_A_GUEST_ON_A_FORK: &[Check] =
    checks![a_guest_saved_by_deltas_goes_on_exactly, clones_write_their_own_memory];

fn main() {
    let guest = no_guest();
    let fork = guest.clone().or_else(no_guest_on_a_fork);
    let trials = |checks: &[Check], lacking: Option<&str>| -> Vec<Trial> {
        let trials = checks.iter().map(|&(name, check)| Trial::test(name, check));
        trials.map(|trial| unless_lacking(trial, lacking)).collect()
    };
    let sized = SIZED.map(|one| {
        let is_guest = OF_VMMS.contains(&one.0);
        sized(one, fork.as_ref().filter(|_| is_guest))
    });
    let built = [
        trials(checks![memory_of_a_vmm_of_crates_is_a_region], None),
        trials(WITH_A_GUEST, guest.as_deref()),
        trials(WITH_A_GUEST_ON_A_FORK, fork.as_deref()),
        sized.into(),
    ];
    let readme = trials(checks![the_readme_has_the_program_of_the_example], None);
    let trials = built.into_iter().flatten().chain(readme).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
