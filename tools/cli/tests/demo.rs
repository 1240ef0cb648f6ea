//! `hugekit demo`: each way is gone and checked; how fast is no matter here.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use hugekit_testing::permitted;
use hugekit_testing::processes::{Killed, happens};
use hugekit_testing::trials::skipped;
use rustix::process::{Pid, Signal, kill_process};

/// What a demonstration prints, or the remedy for what this machine refuses.
fn demo(which: &str) -> Result<String, String> {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_hugekit"));
    let output = demo.args(["demo", which, "--size", "8MiB"]).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[test]
fn demo_of_memory_has_every_way_within_80_columns() {
    let said = demo("memory").unwrap();
    for way in [
        "vec![0; n], from the kernel",
        "pool.region(n), from hugekit",
        "the same, cleared only then",
    ] {
        assert!(said.contains(way), "{said}");
    }
    assert!(said.contains("1.0 times as fast"), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
}

#[test]
fn demo_of_forks_and_snapshots_has_every_way_or_a_remedy() {
    for (which, way) in [("fork", "region.fork()"), ("snapshot", "Snapshot::of_region()")] {
        match demo(which) {
            Ok(said) => assert!(said.contains(way), "{said}"),
            Err(said) => assert!(said.contains("remedy: "), "{said}"),
        }
    }
}

const PARTS: [&str; 4] = [
    "fork(2) of a program with",
    "Saving memory while its program writes",
    "Start of a program that needs memory",
    "Restore from a file",
];

/// The tour at a small size, with temporary files in this folder. Without servers, unless the test has its own.
fn tour(folder: &Path) -> Command {
    tour_of("8MiB", folder)
}

fn tour_of(size: &str, folder: &Path) -> Command {
    let mut tour = Command::new(env!("CARGO_BIN_EXE_hugekit"));
    tour.args(["demo", "--size", size]).env("TMPDIR", folder).env("PATH", "/nonexistent");
    tour
}

/// The lines of each part, after those of the beginning.
fn parts(output: &Output) -> Vec<String> {
    let (said, printed) = (&output.stderr, String::from_utf8(output.stdout.clone()).unwrap());
    assert!(said.is_empty(), "{}", String::from_utf8_lossy(said));
    assert_eq!(output.status.code(), Some(0), "{printed}");
    assert!(printed.lines().all(|line| line.chars().count() <= 80), "{printed}");
    let blocks: Vec<String> = printed.split("\n\n").map(str::to_owned).collect();
    assert_eq!(blocks.len(), PARTS.len() + 2, "{printed}");
    for (block, part) in blocks[1..].iter().zip(PARTS) {
        assert!(block.starts_with(part), "{printed}");
    }
    assert!(blocks[0].starts_with("Linux ") && blocks[5].starts_with("Read on: "), "{printed}");
    blocks[1..=PARTS.len()].to_vec()
}

/// Without the breaks of its lines.
fn in_a_line(part: &str) -> String {
    part.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The part was measured, and its last lines are the command for the user's own program.
fn is_done(part: &str) -> bool {
    let labels = ["\n  before   ", "\n  after    ", "\n  yours    "];
    labels.iter().all(|label| part.contains(label)) && part.contains(" times as fast\n")
}

#[test]
fn tour_measures_every_part_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let parts = parts(&tour(folder.path()).output().unwrap());
    for part in &parts {
        let needs_userfaultfd = part.starts_with(PARTS[1]);
        let is_lacking = needs_userfaultfd && permitted::lacking().is_some();
        assert!(is_done(part) || is_lacking, "{part}");
    }
    let of_server = "redis-server and valkey-server are not installed";
    assert!(in_a_line(&parts[0]).contains(of_server), "{}", parts[0]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Which may not collapse the memory of another process, and asks for no right.
#[test]
fn tour_of_an_ordinary_user_has_the_program_put_its_own_memory_on_huge_pages() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root becomes another user; all other tests are of this user");
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let program = folder.path().join("hugekit");
    fs::copy(env!("CARGO_BIN_EXE_hugekit"), &program).unwrap();
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
    setpriv.args(["demo", "--size", "8MiB"]).env("TMPDIR", folder.path());
    let parts = parts(&setpriv.env("XDG_RUNTIME_DIR", "/nonexistent").output().unwrap());
    for part in [0, 2, 3] {
        assert!(is_done(&parts[part]), "{}", parts[part]);
    }
    assert!(in_a_line(&parts[0]).contains("on huge pages itself, in "), "{}", parts[0]);
    let is_measured_or_not_permitted = is_done(&parts[1]) || parts[1].contains("\n  remedy   ");
    assert!(is_measured_or_not_permitted, "{}", parts[1]);
}

#[test]
fn tour_without_a_folder_for_files_says_so_and_does_the_rest() {
    let parts = parts(&tour(Path::new("/nonexistent/folder")).output().unwrap());
    assert!(is_done(&parts[0]), "{}", parts[0]);
    for part in &parts[1..] {
        assert!(part.contains("\n  not here "), "{part}");
    }
}

#[test]
fn tour_with_a_server_that_ends_at_once_uses_a_program_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = with_server(folder.path(), "echo error: no config >&2; exit 3");
    let parts = parts(&tour(folder.path()).env("PATH", path).output().unwrap());
    assert!(is_done(&parts[0]), "{}", parts[0]);
    assert!(in_a_line(&parts[0]).contains("redis-server is not used (no config)"), "{}", parts[0]);
}

/// A folder with a script of this name, to be searched before others.
fn with_server(folder: &Path, script: &str) -> String {
    let server = folder.join("redis-server");
    fs::write(&server, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&server, Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

/// The first part would start the server.
#[test]
fn tour_without_a_reader_measures_nothing_more() {
    let (of_server, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let started = of_server.path().join("started");
    let path = with_server(of_server.path(), ": > \"$STARTED\"");
    let mut tour = tour(folder.path());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = tour.env("PATH", path).env("STARTED", &started).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    assert!(!started.exists());
}

/// While the tour waits for its server, it has a process and a folder.
#[test]
fn signal_ends_the_tour_and_leaves_no_process_and_no_file() {
    for signal in [Signal::INT, Signal::TERM] {
        let (of_server, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // It never listens.
        let path = with_server(of_server.path(), ": > \"$STARTED\"; exec sleep 600");
        let started = of_server.path().join("started");
        let mut tour = tour(folder.path());
        tour.env("PATH", path).env("STARTED", &started).stdout(Stdio::null());
        let tour = tour.stderr(Stdio::piped()).spawn().unwrap();
        assert!(happens(|| started.exists()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        kill_process(Pid::from_child(&tour), signal).unwrap();
        let output = tour.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert_eq!(said, "interrupted; nothing is left behind\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(processes_of(folder.path()).is_empty());
    }
}

#[test]
#[ignore = "nightly: it interrupts at random moments"]
fn signal_at_any_moment_leaves_no_process_and_no_file() {
    let mut random = hugekit_testing::seed::random();
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let mut tour = tour_of("128MiB", folder.path());
        if let Ok(path) = std::env::var("PATH") {
            tour.env("PATH", path);
        }
        let tour = tour.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(random.u64(50..4000)));
        kill_process(Pid::from_child(&tour), Signal::INT).unwrap();
        let output = tour.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 130)), "{:?} {said}", output.status);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{said}");
        // Those that the tour's own processes started end when these have ended.
        assert!(happens(|| processes_of(folder.path()).is_empty()));
    }
}

/// SIGKILL cannot be heard: the kernel then ends the tour's processes.
#[test]
fn tour_that_is_killed_leaves_no_process() {
    let (of_server, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = with_server(of_server.path(), ": > \"$STARTED\"; exec sleep 600");
    let started = of_server.path().join("started");
    let mut tour = tour(folder.path());
    tour.env("PATH", path).env("STARTED", &started).stdout(Stdio::null());
    let mut tour = Killed(tour.spawn().unwrap());
    assert!(happens(|| started.exists()));
    tour.kill().unwrap();
    tour.wait().unwrap();
    assert!(happens(|| processes_of(folder.path()).is_empty()));
}

/// Processes whose temporary files are in this folder.
fn processes_of(folder: &Path) -> Vec<PathBuf> {
    let mark = format!("TMPDIR={}\0", folder.display());
    let is_of_tour = |process: &PathBuf| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&mark)
    };
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    processes.filter(is_of_tour).collect()
}
