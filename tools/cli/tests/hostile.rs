//! The command where things are not as they should be: no room, no reader, system calls that are refused. What can be
//! done is, what cannot is said, and no user is shown our source.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output};

use hugekit_testing::hostile::{self, behind, said};
use hugekit_testing::trials::{Checks, trials};
use libtest_mimic::Arguments;
use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

const HUGEKIT: &str = env!("CARGO_BIN_EXE_hugekit");

fn hugekit() -> Command {
    hostile::command(HUGEKIT)
}

fn filtered(call: i64, errno: i32, arguments: &str) -> Output {
    hostile::filtered(HUGEKIT, call, errno, arguments)
}

fn no_foreseeable_error_has_a_backtrace() {
    let output = hugekit().args(["man", "--dir", "/dev/null/man"]).output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("error: cannot make /dev/null/man"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

fn a_full_disk_is_an_error_in_words_and_a_closed_pipe_none() {
    for arguments in [["doctor", "--json"], ["completions", "bash"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = hugekit().args(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(said(&output).contains("No space left on device"), "{arguments:?}");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = hugekit().args(arguments).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), said(&output).as_str()), (Some(0), ""), "{arguments:?}");
    }
}

/// `USERFAULTFD_IOC_NEW` of `/dev/userfaultfd`.
const NEW_USERFAULTFD: u64 = 0xaa00;

/// The command without userfaultfd: neither by the system call nor by the device.
fn without_userfaultfd(arguments: &str) -> Output {
    let is_new =
        SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, NEW_USERFAULTFD);
    let of_device = SeccompRule::new(vec![is_new.unwrap()]).unwrap();
    let refused = [(libc::SYS_userfaultfd, Vec::new()), (libc::SYS_ioctl, vec![of_device])];
    behind(HUGEKIT, BTreeMap::from(refused), libc::EPERM, arguments)
}

const REFUSED: [i64; 11] = [
    libc::SYS_clone3,
    libc::SYS_fallocate,
    libc::SYS_ioctl,
    libc::SYS_madvise,
    libc::SYS_memfd_create,
    libc::SYS_perf_event_open,
    libc::SYS_prctl,
    libc::SYS_process_madvise,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_userfaultfd,
];

fn behind_a_filter_of_system_calls_the_doctor_reports_and_a_demo_ends_with_an_error_in_words() {
    for (call, errno) in
        REFUSED.iter().flat_map(|&call| [(call, libc::EPERM), (call, libc::ENOSYS)])
    {
        let output = filtered(call, errno, "doctor --json");
        assert_eq!((output.status.code(), said(&output).as_str()), (Some(0), ""), "{call} {errno}");
        for which in ["memory", "fork", "snapshot"] {
            let output = filtered(call, errno, &format!("demo {which} --size 4MiB"));
            let said = said(&output);
            match output.status.code() {
                Some(0) => {}
                code => {
                    assert!(code == Some(1) && said.contains("error: "), "{call} {errno} {said}");
                }
            }
        }
    }
}

/// Only the snapshot needs it.
fn behind_a_filter_of_system_calls_the_tour_says_why_it_takes_no_snapshot_and_does_the_rest() {
    let output = without_userfaultfd("demo --size 8MiB");
    assert_eq!((output.status.code(), said(&output).as_str()), (Some(0), ""));
    let printed = String::from_utf8_lossy(&output.stdout);
    let snapshot = "Saving memory while its program writes\n  not here ";
    let (fork, rest) = printed.split_once(snapshot).expect(&printed);
    assert!(rest.contains("userfaultfd"), "{printed}");
    let done = |parts: &str| parts.matches("\n  after    ").count();
    assert_eq!((done(fork), done(rest)), (1, 2), "{printed}");
}

/// Each system call is needed by some parts, if by any.
fn behind_any_filter_of_system_calls_the_tour_goes_to_its_end() {
    for (call, errno) in
        REFUSED.iter().flat_map(|&call| [(call, libc::EPERM), (call, libc::ENOSYS)])
    {
        let output = filtered(call, errno, "demo --size 4MiB");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{call} {errno} {printed} {}", said(&output));
        assert!(printed.contains("\nRead on: "), "{call} {errno} {printed}");
        said(&output);
    }
}

fn behind_a_filter_of_system_calls_a_process_is_not_said_to_be_gone() {
    let run = format!("tend --once {}", std::process::id());
    let output = filtered(libc::SYS_pidfd_open, libc::EPERM, &run);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let names_the_call = said.contains("pidfd_open is refused (remedy: ");
    assert!(names_the_call && said.contains("Operation not permitted"), "{said}");
}

const CHECKS: Checks = hugekit_testing::checks![
    no_foreseeable_error_has_a_backtrace,
    a_full_disk_is_an_error_in_words_and_a_closed_pipe_none,
    behind_a_filter_of_system_calls_the_doctor_reports_and_a_demo_ends_with_an_error_in_words,
    behind_a_filter_of_system_calls_the_tour_says_why_it_takes_no_snapshot_and_does_the_rest,
    "[nightly: it runs the tour for each system call] " behind_any_filter_of_system_calls_the_tour_goes_to_its_end,
    behind_a_filter_of_system_calls_a_process_is_not_said_to_be_gone,
];

fn main() {
    libtest_mimic::run(&Arguments::from_args(), trials(CHECKS, None)).exit();
}
