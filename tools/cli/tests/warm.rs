//! `hugekit warm` as users start it.
//!
//! Units that stay small because memory is fragmented, or because of the file system, are accepted where a test does not
//! make that itself: [`is_warm`].

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use hugekit_sys::page_cache::{self, CacheMapping};
use hugekit_testing::control_group::ControlGroup;
use hugekit_testing::processes::{self, Killed};
use hugekit_testing::trials::skipped;
use rustix::process::Signal;
use serde_json::Value;

const UNIT: usize = 2 << 20;
const UNITS: usize = 16;
const NOBODY: u32 = 65_534;

fn warm(arguments: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("hugekit"));
    command.arg("warm").args(arguments);
    command
}

/// A folder on a disk that all users may enter.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// A file that is on the disk, and on small pages of the cache.
fn file(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    let mut file = File::create(&path).unwrap();
    for at in 0..UNITS * UNIT / 4096 {
        file.write_all(&[at as u8 | 1; 4096]).unwrap();
    }
    file.sync_all().unwrap();
    path
}

fn cached(path: &Path) -> usize {
    let all = 0..UNITS * UNIT;
    let mapping = CacheMapping::new(File::open(path).unwrap(), 0, all.len()).unwrap();
    mapping.cached_pages(all).unwrap()
}

fn drop_cache(path: &Path) {
    page_cache::drop_clean(File::open(path).unwrap(), &(0..1 << 40)).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(command: &mut Command) -> (Output, String, String) {
    let output = command.output().unwrap();
    let (said, noted) = (text(&output.stdout), text(&output.stderr));
    (output, said, noted)
}

/// Returns whether a file is huge by a line about it. If not, this test has not made the reason.
fn is_warm(line: &str) -> bool {
    let is_warm = line.contains(&format!(" {UNITS} of {UNITS} units huge, "));
    if !is_warm {
        let of_machine = ["memory is fragmented", "makes no huge pages"];
        assert!(of_machine.iter().any(|why| line.contains(why)), "{line}");
        skipped(line);
    }
    is_warm
}

#[test]
fn each_file_has_a_line_and_the_exit_code_is_1_unless_all_are_huge() {
    let folder = folder();
    let (one, other) = (file(folder.path(), "one"), file(folder.path(), "other"));
    let paths = [one.to_str().unwrap(), other.to_str().unwrap()];
    let (output, said, noted) = run(warm(&["--check"]).args(paths));
    assert_eq!((output.status.code(), noted.as_str()), (Some(1), ""));
    for (line, path) in said.lines().zip(paths) {
        let small = format!("{path}: 0 of {UNITS} units huge, ");
        assert!(line.starts_with(&small), "{line}");
        assert!(line.contains(&format!(": {UNITS} on smaller pages, 0 not in memory")), "{line}");
        assert!(line.ends_with("(remedy: warm it: hugekit warm FILE)"), "{line}");
    }
    assert_eq!(said.lines().count(), 2);
    let (output, said, noted) = run(warm(&[]).args(paths));
    assert_eq!(noted, "");
    let all = said.lines().filter(|line| is_warm(line)).count();
    assert_eq!(output.status.code(), Some(i32::from(all < 2)), "{said}");
    if all == 2 {
        let (output, said, _) = run(warm(&["--check"]).args(paths));
        assert_eq!(output.status.code(), Some(0), "{said}");
        // A file that cannot be warmed does not stop the others.
        let missing = folder.path().join("missing");
        let (output, said, noted) = run(warm(&[]).arg(&missing).args(paths));
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 2));
        let expected = format!("error: {}: the file cannot be opened: No such", missing.display());
        assert!(noted.starts_with(&expected), "{noted}");
    }
}

#[test]
fn json_has_figures_reasons_and_errors() {
    let folder = folder();
    let one = file(folder.path(), "one");
    let (output, said, noted) = run(warm(&["--check", "--json", "/dev/zero"]).arg(&one));
    assert_eq!((output.status.code(), noted.as_str()), (Some(1), ""));
    let rows: Vec<Value> = serde_json::from_str(&said).unwrap();
    assert_eq!(rows[0]["file"], "/dev/zero");
    assert!(rows[0]["error"].as_str().unwrap().contains("character device"), "{said}");
    assert_eq!((&rows[1]["units"], &rows[1]["huge"]), (&UNITS.into(), &0.into()));
    assert_eq!(rows[1]["left"]["why"]["reason"], "not_made");
    assert_eq!(rows[1]["left"]["why"]["on_small_pages"], UNITS);
}

#[test]
fn group_or_machine_with_less_memory_than_the_file_is_refused_before_anything_is_dropped() {
    let (group, larger) = match (ControlGroup::new("memory"), ControlGroup::new("memory")) {
        (Ok(group), Ok(larger)) => (group, larger),
        (Err(reason), _) | (_, Err(reason)) => return skipped(reason),
    };
    // Of 56 MiB, 32 MiB are left to others.
    group.limit(56 << 20);
    larger.limit(256 << 20);
    let folder = folder();
    let one = file(folder.path(), "one");
    let before = cached(&one);
    for mode in [&[][..], &["--keep"]] {
        let (output, said, noted) = run(&mut group.around(warm(mode).arg(&one)));
        assert_eq!((output.status.code(), said.as_str()), (Some(1), ""), "{noted}");
        assert!(noted.contains("32 MiB of the file are to be in memory"), "{noted}");
        assert!(noted.contains("MiB available below /sys/fs/cgroup"), "{noted}");
        assert!(
            noted.contains("\nremedy: free memory, or raise the limit of the control"),
            "{noted}"
        );
        assert_eq!(cached(&one), before);
    }
    // A check needs no memory.
    let (_, said, noted) = run(&mut group.around(warm(&["--check"]).arg(&one)));
    assert!(said.contains("0 of 16 units huge") && noted.is_empty(), "{said} {noted}");
    let (_, said, noted) = run(&mut larger.around(warm(&[]).arg(&one)));
    assert_eq!(noted, "");
    is_warm(&said);
}

#[test]
fn user_without_rights_warms_a_file_of_another_one_and_cannot_check_it() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root runs a program as another user");
    }
    let folder = folder();
    let one = file(folder.path(), "one");
    fs::set_permissions(&one, fs::Permissions::from_mode(0o444)).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let mut command = warm(arguments);
        command.uid(NOBODY).gid(NOBODY).arg(&one);
        command
    };
    if as_nobody(&["--help"]).output().is_err() {
        return skipped("other users may not start the command here");
    }
    let (output, said, noted) = run(&mut as_nobody(&["--check"]));
    assert_eq!((output.status.code(), said.as_str()), (Some(1), ""));
    assert!(noted.contains("the kernel tells only the owner of the file"), "{noted}");
    assert!(noted.contains("\nremedy: check as the owner of the file or as root"), "{noted}");
    assert_eq!(cached(&one), UNITS * UNIT / 4096);
    let (_, said, _) = run(&mut as_nobody(&[]));
    is_warm(&said);
    // The limit of locked memory is that of users, below the size of the file. Nothing was dropped.
    let two = file(folder.path(), "two");
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -l 8192 && exec \"$0\" warm --keep \"$1\""]);
    limited.arg(assert_cmd::cargo::cargo_bin("hugekit")).arg(&two).uid(NOBODY).gid(NOBODY);
    let (output, said, noted) = run(&mut limited);
    assert_eq!((output.status.code(), said.as_str()), (Some(1), ""));
    let figures = "32 MiB of the file are to be locked, and this process may lock 8 MiB";
    assert!(noted.contains(figures), "{noted}");
    assert!(noted.contains("\nremedy: ulimit -l unlimited (LimitMEMLOCK=infinity"), "{noted}");
    let (_, said, _) = run(warm(&["--check"]).arg(&two));
    assert!(said.contains(&format!("0 of {UNITS} units huge")), "{said}");
    fs::set_permissions(&one, fs::Permissions::from_mode(0o400)).unwrap();
    let (output, _, noted) = run(&mut as_nobody(&[]));
    assert_eq!(output.status.code(), Some(1));
    assert!(noted.contains("cannot be opened: Permission denied"), "{noted}");
}

/// A command that keeps a file, and its first line.
fn keeping(path: &Path, manager: Option<&Path>) -> (Killed, String) {
    let mut command = warm(&["--keep"]);
    command.arg(path).stdout(Stdio::piped()).stderr(Stdio::null()).env_remove("NOTIFY_SOCKET");
    if let Some(manager) = manager {
        command.env("NOTIFY_SOCKET", manager);
    }
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (Killed(child), line)
}

#[test]
fn kept_file_stays_until_a_signal_and_the_service_manager_is_told() {
    let folder = folder();
    let one = file(folder.path(), "one");
    let at = folder.path().join("manager");
    let manager = UnixDatagram::bind(&at).unwrap();
    let (mut keeper, line) = keeping(&one, Some(&at));
    if line.is_empty() {
        return skipped("this process may not lock memory");
    }
    assert!(line.contains(": locked, "), "{line}");
    let is_warm = is_warm(&line);
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut notice = [0; 64];
    let received = manager.recv(&mut notice).unwrap();
    assert_eq!(&notice[..received], b"READY=1");
    // Another command that may read the file drops nothing that is locked.
    drop_cache(&one);
    assert_eq!(cached(&one), UNITS * UNIT / 4096);
    processes::signal(keeper.id(), Signal::TERM);
    assert_eq!(keeper.wait().unwrap().code(), Some(i32::from(!is_warm)));
    drop_cache(&one);
    assert_eq!(cached(&one), 0);
}

/// Maps the file of the environment until it is killed. The next test starts it.
#[test]
fn another_process() {
    let Some(path) = std::env::var_os("HUGEKIT_TEST_MAPS") else { return };
    let mapping = CacheMapping::new(File::open(path).unwrap(), 0, UNITS * UNIT).unwrap();
    mapping.populate(0..UNITS * UNIT).unwrap();
    println!("mapped");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn file_that_a_process_maps_is_named_before_it_is_dropped_and_after() {
    let folder = folder();
    let (one, other) = (file(folder.path(), "one"), file(folder.path(), "other"));
    // Not in this process, of which others are forked meanwhile.
    let mut holder = Command::new(std::env::current_exe().unwrap());
    holder.args(["--exact", "another_process", "--nocapture"]).env("HUGEKIT_TEST_MAPS", &one);
    let mut holder = Killed(holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(holder.stdout.as_mut().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line.contains("mapped")));
    let (output, said, noted) = run(warm(&[]).args([&one, &other]));
    let own = holder.id();
    let note = format!("note: {} is mapped by process {own}: ", one.display());
    assert!(noted.starts_with(&note), "{noted}");
    assert_eq!(noted.lines().count(), 1);
    let lines: Vec<_> = said.lines().collect();
    if lines[0].contains(&format!(": 0 of {UNITS} units huge, ")) {
        let why = format!("mapped on smaller pages by process {own} (remedy: warm it before they");
        assert!(lines[0].contains(&why), "{said}");
        assert_eq!(output.status.code(), Some(1));
    } else {
        skipped("this kernel collapses mapped files");
    }
    is_warm(lines[1]);
    assert_eq!(cached(&one), UNITS * UNIT / 4096);
}

/// Whatever the moment: the bytes are there, and the file can be warmed.
#[test]
fn signal_at_any_moment_ends_the_command_and_loses_nothing() {
    let folder = folder();
    let one = file(folder.path(), "one");
    let bytes = fs::read(&one).unwrap();
    for (round, signal) in
        [Signal::INT, Signal::TERM, Signal::KILL].into_iter().cycle().take(12).enumerate()
    {
        // Dirty pages, and units in all states.
        let changed = File::options().write(true).open(&one).unwrap();
        changed.write_all_at(&bytes[..UNIT * (round % 4)], 0).unwrap();
        let mut child =
            warm(&[]).arg(&one).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(2 * round as u64));
        processes::signal(child.id(), signal);
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = child.wait().unwrap();
        // It was done before, was stopped, or was killed before it caught signals.
        match (status.code(), status.signal()) {
            (Some(130), None) => assert!(said.contains("cancelled: ") || said.is_empty(), "{said}"),
            (Some(0 | 1), None) => assert!(said.contains(" units huge, "), "{said}"),
            (None, Some(number)) => assert_eq!(number, signal.as_raw()),
            other => panic!("{other:?}: {said}"),
        }
        assert!(fs::read(&one).unwrap() == bytes, "other bytes after round {round}");
    }
    let (_, said, _) = run(warm(&[]).arg(&one));
    is_warm(&said);
}

#[test]
fn second_mode_and_no_file_are_mistakes_in_the_arguments() {
    for (arguments, says) in [
        (&["--check", "--keep", "a"][..], "cannot be used with"),
        (&[], "<FILE>"),
        (&["--window", "5", "a"], "unexpected argument"),
    ] {
        let (output, _, noted) = run(&mut warm(arguments));
        assert_eq!(output.status.code(), Some(2));
        assert!(noted.contains(says), "{noted}");
    }
    let (_, said, _) = run(&mut warm(&["--help"]));
    assert!(said.trim_end().ends_with("Example: hugekit warm model.safetensors"), "{said}");
}
