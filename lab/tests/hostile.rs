//! The lab where things are not as they should be: no home, no room, no threads, no reader, and records of strangers.
//! What can be measured is, what cannot is said, and no user is shown our source.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use hugekit_testing::hostile::{self, said};
use hugekit_testing::trials::{Checks, skip, trials};
use libtest_mimic::Arguments;
use serde_json::Value;

const LAB: &str = env!("CARGO_BIN_EXE_hugekit-lab");

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/record.json");

fn lab() -> Command {
    hostile::command(LAB)
}

fn experiments(output: &Output) -> Vec<Value> {
    let record: Value = serde_json::from_slice(&output.stdout).expect("a record, whatever failed");
    record["experiments"].as_array().unwrap().clone()
}

fn no_foreseeable_error_has_a_backtrace() {
    let folder = tempfile::tempdir().unwrap();
    let damaged = folder.path().join("damaged.json");
    fs::write(&damaged, r#"{"schema": "hugekit-lab/1"}"#).unwrap();
    let damaged = damaged.to_str().unwrap();
    let runs: [(&[&str], &str); 6] = [
        (&["--show", "nosuch"], "cannot read /dev/null/hugekit/records"),
        (&["--show", damaged], "the record is damaged: missing field"),
        (&["--show", "/no/such.json"], "cannot read /no/such.json: No such file"),
        (&["--show", KEPT, "/no/such.json", "--html", "-"], "cannot read /no/such.json"),
        (&["--compare", KEPT, damaged], "damaged"),
        (&["stores", "--json", "/no/such/a.json"], "cannot write /no/such/a.json"),
    ];
    for (arguments, expected) in runs {
        let output = lab().args(arguments).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.starts_with("error: ") && said.contains(expected), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

fn standard_error_may_be_closed_too() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut run = lab();
    run.args(["stores", "--routine", "memset", "--memory", "64MiB", "--rounds", "2"]);
    let output = run.stderr(writer).stdout(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("Summary"));
}

fn no_string_of_a_record_acts_on_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let evil = "\\u001b]0;owned\\u0007\\u009b2J\\u202e";
    let old = fs::read_to_string(KEPT).unwrap();
    let strings = ["GiB/s", "AMD EPYC", "stores", "stores/memset/4KiB", "KVM", "hugekit lab"];
    for (index, word) in strings.into_iter().enumerate() {
        let text = old.replacen(&format!("\"{word}"), &format!("\"{evil}{word}"), 1);
        assert!(text != old, "{word}");
        let path = folder.path().join(format!("{index}.json"));
        fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap();
        let looks: [&[&str]; 4] = [
            &["--show", path],
            &["--compare", KEPT, path],
            &["--show", path, KEPT, "--html", "-"],
            &["--show", path, "--json", "-"],
        ];
        for arguments in looks {
            let output = lab().args(arguments).output().unwrap();
            for text in [&output.stdout, &output.stderr] {
                let text = String::from_utf8(text.clone()).unwrap();
                let acts = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
                assert!(!text.contains(acts), "{arguments:?}: {text:?}");
            }
        }
    }
}

fn a_file_of_any_name_is_shown_as_plain_text() {
    let folder = tempfile::tempdir().unwrap();
    let records = folder.path().join("hugekit/records");
    fs::create_dir_all(&records).unwrap();
    fs::write(records.join("2\u{1b}[31m.json"), "{").unwrap();
    // As on a terminal: elsewhere escapes are taken out with the colours.
    let mut list = lab();
    list.args(["--list"]).env("XDG_DATA_HOME", folder.path()).env("CLICOLOR_FORCE", "1");
    let list = list.output().unwrap();
    assert_eq!(list.status.code(), Some(0));
    let listed = String::from_utf8_lossy(&list.stdout);
    assert!(listed.starts_with("2\u{fffd}[31m "), "{listed:?}");
    let show = lab().args(["--show", "/no/\u{1b}[31m.json"]).output().unwrap();
    assert!(!show.stderr.contains(&0x1b), "{:?}", String::from_utf8_lossy(&show.stderr));
}

fn without_addresses_what_fits_is_measured_or_nothing_is_begun() {
    for kib in [1_500_000, 400_000, 150_000, 60_000] {
        let run = "demand fault cow snapshot --quick --rounds 2 --no-record --json -";
        let output = hostile::limited(LAB, &format!("ulimit -v {kib}"), run);
        let said = said(&output);
        match output.status.code() {
            Some(0) => assert_eq!(experiments(&output).len(), 4),
            Some(4) => assert!(said.contains("could not be measured"), "{said}"),
            code => assert!(
                code == Some(2) && said.contains("not enough memory to measure on"),
                "{code:?} {said}"
            ),
        }
    }
}

fn without_descriptors_what_needs_none_is_measured_and_the_rest_is_noted() {
    let output = hostile::limited(
        LAB,
        "ulimit -n 6",
        "stores snapshot --routine memset --quick --memory 64MiB --rounds 2 --no-record --json -",
    );
    assert!(said(&output).contains("could not be measured"));
    assert_eq!(output.status.code(), Some(4), "which says that something is missing");
    let [stores, snapshot] = &experiments(&output)[..] else { panic!("both are there") };
    assert!(!stores["cases"].as_array().unwrap().is_empty() && stores["failures"].is_null());
    let cases = snapshot["cases"].as_array().unwrap();
    assert!(cases.iter().any(|case| case["id"] == "snapshot/fork2-4k/stall"), "{cases:?}");
    for failure in snapshot["failures"].as_array().unwrap() {
        let (case, reason) = (&failure["case"], &failure["reason"]);
        assert!(case.as_str().unwrap().starts_with("snapshot/"), "{case}");
        assert!(reason.as_str().unwrap().contains("Too many open files"), "{reason}");
    }
}

fn on_a_full_disk(script: &str) -> Output {
    let mount = "mount -t tmpfs -o size=4k none /mnt && dd if=/dev/zero of=/mnt/full bs=4k count=1 status=none";
    let allowed = Command::new("unshare").args(["--mount", "sh", "-c", mount]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        skip("this process may not mount a file system of its own");
    }
    let script = format!("{mount} && lab='{LAB}' && {script}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).env("RUST_BACKTRACE", "1");
    command.env("XDG_DATA_HOME", "/mnt/data").output().unwrap()
}

fn on_a_full_disk_the_tables_are_printed_all_the_same() {
    let run = "exec \"$lab\" stores --routine memset --memory 64MiB --rounds 2";
    let output = on_a_full_disk(run);
    let said = said(&output);
    assert!(said.contains("warning: cannot keep the record in /mnt/data"), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("Summary"));
    assert_eq!(output.status.code(), Some(0));
    let run = "exec \"$lab\" stores --routine memset --memory 64MiB --rounds 2 --no-record --json /mnt/a.json --html /tmp/hugekit-hostile.html";
    let output = on_a_full_disk(run);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("cannot write /mnt/a.json"), "{words}");
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("Summary"), "measured, and shown: {printed}");
    let page = Path::new("/tmp/hugekit-hostile.html");
    assert!(
        fs::read_to_string(page).unwrap().contains("</html>"),
        "the page is written all the same"
    );
    fs::remove_file(page).unwrap();
}

fn without_a_home_a_run_is_printed() {
    let mut run = lab();
    run.args(["stores", "--routine", "memset", "--memory", "64MiB", "--rounds", "2"]);
    let output = run.env_remove("XDG_DATA_HOME").env("HOME", "relative").output().unwrap();
    assert!(said(&output).contains("warning: "), "{}", said(&output));
    assert_eq!(output.status.code(), Some(0));
}

/// Each with the experiments that make the call.
fn behind_a_filter_of_system_calls_what_needs_the_call_fails_alone() {
    for (call, experiments) in [
        (libc::SYS_clone3, "stores epochs"),
        (libc::SYS_fallocate, "fault"),
        (libc::SYS_madvise, "parallel"),
        (libc::SYS_memfd_create, "fork"),
        (libc::SYS_userfaultfd, "cow snapshot"),
    ] {
        let run = format!("{experiments} --quick --memory 32MiB --rounds 2 --no-record --json -");
        let output = hostile::filtered(LAB, call, libc::EPERM, &run);
        let said = said(&output);
        assert!(matches!(output.status.code(), Some(0 | 4)), "{call} {said}");
        for experiment in self::experiments(&output) {
            let failures = experiment["failures"].as_array().into_iter().flatten();
            for reason in failures.map(|failure| failure["reason"].as_str().unwrap()) {
                assert!(!reason.contains("a mistake in hugekit"), "{call} {reason}");
            }
        }
    }
}

const CHECKS: Checks = hugekit_testing::checks![
    no_foreseeable_error_has_a_backtrace,
    standard_error_may_be_closed_too,
    no_string_of_a_record_acts_on_a_terminal,
    a_file_of_any_name_is_shown_as_plain_text,
    "[nightly: it runs many experiments] " without_addresses_what_fits_is_measured_or_nothing_is_begun,
    without_descriptors_what_needs_none_is_measured_and_the_rest_is_noted,
    on_a_full_disk_the_tables_are_printed_all_the_same,
    without_a_home_a_run_is_printed,
    "[nightly: it runs many experiments] " behind_a_filter_of_system_calls_what_needs_the_call_fails_alone,
];

fn main() {
    libtest_mimic::run(&Arguments::from_args(), trials(CHECKS, None)).exit();
}
