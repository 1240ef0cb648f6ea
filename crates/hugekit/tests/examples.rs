//! Examples run, and what they print is what they say of themselves.

use std::fs::File;
use std::process::{Command, Output};

use hugekit::Pool;
use hugekit::fault::FaultMode;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// Runs an example as its reader would.
fn run(example: &str, arguments: &[&str]) -> Output {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--package", "hugekit", "--example", example, "--"]);
    cargo.args(arguments).output().expect("cargo can be started")
}

fn printed(example: &str, arguments: &[&str]) -> (bool, String) {
    let output = run(example, arguments);
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
    for expected in ["clones of 2 MiB on ", "20 clones and the template have their own bytes"] {
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

fn main() {
    let guest = no_guest();
    let fork = guest.clone().or_else(no_guest_on_a_fork);
    let trial = |trial: Trial, lacking: &Option<String>| match lacking {
        Some(reason) => {
            let reason = reason.clone();
            Trial::ignorable_test(trial.name(), move || Ok(Completion::ignored_with(reason)))
        }
        None => trial,
    };
    let verifies =
        Trial::test("a_guest_verifies_all_of_a_region", a_guest_verifies_all_of_a_region);
    let sizes = Trial::test("a_size_that_is_none_is_refused", a_size_that_is_none_is_refused);
    let clones = Trial::test("clones_write_their_own_memory", clones_write_their_own_memory);
    let pauses = "a_guest_saved_by_deltas_goes_on_exactly";
    let pauses = Trial::test(pauses, a_guest_saved_by_deltas_goes_on_exactly);
    let numbers = Trial::test(
        "a_number_of_clones_that_is_none_is_refused",
        a_number_of_clones_that_is_none_is_refused,
    );
    let vmm = "memory_of_a_vmm_of_crates_is_a_region";
    let vmm = Trial::test(vmm, memory_of_a_vmm_of_crates_is_a_region);
    let trials = vec![
        vmm,
        trial(verifies, &guest),
        trial(sizes, &guest),
        trial(clones, &fork),
        trial(pauses, &fork),
        trial(numbers, &guest),
    ];
    let slow = |trial: Trial| {
        trial.with_kind("slow: cargo builds the example first").with_ignored_flag(true)
    };
    libtest_mimic::run(&Arguments::from_args(), trials.into_iter().map(slow).collect()).exit();
}
