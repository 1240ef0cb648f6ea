//! The example `key_value` as a process: it ends and starts again, is killed, and finds damaged files.

mod traced;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use hugekit::Pool;
use hugekit::pool::Backing;
use hugekit::snapshot::Changes;
use hugekit_testing::example::build;
use hugekit_testing::trials::skipped;
use tempfile::TempDir;

use self::traced::killed_before;

/// In MiB.
const MEMORY: &str = "4";

/// One of so many files is full.
const FULL_EVERY: usize = 8;

/// Why this machine takes no snapshots.
fn no_snapshots() -> Option<String> {
    let pool = Pool::builder(2 << 20).backing(Backing::Base).build().unwrap();
    let region = pool.region(1 << 20).unwrap();
    Changes::first(&region).err().map(|error| error.to_string())
}

fn command(folder: &Path) -> Command {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| build("key_value").unwrap().get_program().into());
    let mut command = Command::new(program);
    command.arg(folder).arg(MEMORY);
    command
}

fn output(folder: &Path, commands: &str) -> Output {
    let mut command = command(folder);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut store = pipes.spawn().unwrap();
    // The store may have ended before it has read all of them.
    let _ = store.stdin.take().unwrap().write_all(commands.as_bytes());
    store.wait_with_output().unwrap()
}

/// The answers of a store that starts, gets commands, and ends.
fn answers(folder: &Path, commands: &str) -> Vec<String> {
    let output = output(folder, commands);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The error of a store that does not start.
fn refused(folder: &Path) -> String {
    let output = output(folder, "count\n");
    assert!(!output.status.success() && output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

/// Keys and values. A key without a value was removed.
type Model = BTreeMap<String, String>;

/// The values that a store has of these keys.
fn found<'a>(folder: &Path, keys: impl Iterator<Item = &'a String> + Clone) -> Model {
    let commands: String = keys.clone().map(|key| format!("get {key}\n")).collect();
    let answers = answers(folder, &commands);
    let pairs = keys.zip(answers);
    pairs
        .filter_map(|(key, answer)| Some((key.clone(), answer.strip_prefix("= ")?.into())))
        .collect()
}

/// Commands that change a store, and what it has after them. Values have other lengths each time, or the same.
fn changed(round: usize, model: &mut Model) -> String {
    let mut commands = String::new();
    for key in 0..20 {
        let (name, len) = (format!("key{key}"), 300 * key + key % 3 * round);
        let value = char::from(b'a' + round as u8).to_string().repeat(len);
        commands += &format!("set {name} {value}\n");
        model.insert(name, value);
    }
    let gone = format!("key{}", round % 20);
    commands += &format!("remove {gone}\n");
    model.remove(&gone);
    commands
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A folder with this many saves, and the last state.
fn saved(saves: usize) -> (TempDir, Model) {
    let (folder, mut model, mut commands) =
        (tempfile::tempdir().unwrap(), Model::new(), String::new());
    for round in 0..saves {
        commands += &changed(round, &mut model);
        commands += "save\nwait\n";
    }
    let answers = answers(folder.path(), &commands);
    let saved = |kind: &str| answers.iter().filter(|answer| answer.starts_with(kind)).count();
    assert_eq!(saved("saved full"), saves.div_ceil(FULL_EVERY), "{answers:?}");
    assert_eq!(saved("saved "), saves);
    (folder, model)
}

#[test]
fn store_that_starts_again_has_its_last_save_and_goes_on_with_deltas() {
    if let Some(reason) = no_snapshots() {
        return skipped(reason);
    }
    let folder = tempfile::tempdir().unwrap();
    let first = [
        "set a one two",
        "set b 1",
        "set a 3",
        "remove b",
        "remove b",
        "save",
        "set a 4",
        "wait",
        "get a",
    ];
    let answers_of = |commands: &[&str]| answers(folder.path(), &(commands.join("\n") + "\n"));
    let said = answers_of(&first);
    assert_eq!(said[..7], ["ok", "ok", "ok", "ok", "none", "saving", "ok"]);
    assert!(said[7].starts_with("saved full: ") && said[8] == "= 4", "{said:?}");
    // The last value of `a` came after the save.
    let second = ["get a", "get b", "count", "set c x", "save", "save", "wait", "wait", "nonsense"];
    let said = answers_of(&second);
    assert_eq!(said[..5], ["= 3", "none", "1", "ok", "saving"]);
    assert!(
        said[5].starts_with("error: a save runs") && said[7].starts_with("error: no save runs")
    );
    // Of 4 MiB, the block of both records and of the bytes that are used.
    assert!(said[6].starts_with("saved delta: 4096 bytes changed"), "{said:?}");
    assert!(said[8].starts_with("error: no such command"), "{said:?}");
    assert_eq!(answers_of(&["get a", "get c", "count"]), ["= 3", "= x", "2"]);
    assert_eq!(names(folder.path()), ["0.delta", "1.delta"]);
}

#[test]
fn files_before_a_full_one_go_and_no_record_is_lost_when_records_are_made_again() {
    if let Some(reason) = no_snapshots() {
        return skipped(reason);
    }
    let (folder, mut model) = saved(FULL_EVERY + 2);
    assert_eq!(names(folder.path()), ["8.delta", "9.delta"]);
    assert_eq!(found(folder.path(), model.clone().keys()), model);
    // Ten times as much as the memory has room for.
    let mut commands = String::new();
    for round in 0..40 {
        let value = format!("{round}").repeat(200_000 + round);
        commands += &format!("set large {value}\nset other{} {}\n", round % 2, &value[..1000]);
        model.extend([
            ("large".into(), value.clone()),
            (format!("other{}", round % 2), value[..1000].into()),
        ]);
    }
    let too_much = "x".repeat(5 << 20);
    commands += &format!("set large {too_much}\nsave\nwait\n");
    let said = answers(folder.path(), &commands);
    assert!(said[..80].iter().all(|answer| answer == "ok"));
    assert!(said[80].starts_with("error: no room: 5242893 bytes needed"), "{}", said[80]);
    assert_eq!(found(folder.path(), model.keys()), model);
}

/// Every call of the program that changes a file is one of these events, so no other moment leaves other files.
#[test]
fn store_killed_before_any_call_that_changes_a_file_has_the_last_whole_state() {
    if let Some(reason) = no_snapshots() {
        return skipped(reason);
    }
    // The next save is a delta, and the one after it is full.
    let (before, model) = saved(FULL_EVERY - 1);
    let (mut states, mut commands) = (vec![model.clone()], String::new());
    for round in FULL_EVERY..FULL_EVERY + 2 {
        let mut state = states.last().unwrap().clone();
        // More bytes than a delta writes together, so that the program is killed between two writes of one file.
        let large = char::from(b'a' + (round % 26) as u8).to_string().repeat(5 << 19);
        commands += &format!("set large {large}\n");
        state.insert("large".into(), large);
        commands += &(changed(round, &mut state) + "save\nset key0 of-no-save\nwait\n");
        states.push(state);
    }
    let keys = (0..20).map(|key| format!("key{key}")).chain(["large".into()]);
    let keys: Vec<String> = keys.collect();
    let mut events = Vec::new();
    loop {
        let folder = tempfile::tempdir().unwrap();
        for name in names(before.path()) {
            fs::copy(before.path().join(&name), folder.path().join(&name)).unwrap();
        }
        let [input, said] = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
        fs::write(input.path(), &commands).unwrap();
        let mut command = command(folder.path());
        command.stdin(File::open(input.path()).unwrap()).stdout(said.reopen().unwrap());
        let event = match killed_before(command, folder.path(), events.len()) {
            Err(error) => return skipped(format!("no process can be traced: {error}")),
            Ok(event) => event,
        };
        let said = fs::read_to_string(said.path()).unwrap();
        let saves = said.matches("saved ").count();
        let found = found(folder.path(), keys.iter());
        let later = states.get(saves + 1);
        assert!(found == states[saves] || Some(&found) == later, "{events:?} {event:?}: {saves}");
        let Some(event) = event else {
            assert_eq!(saves, 2);
            break;
        };
        events.push(event);
        // The next save goes on with these files.
        let next = answers(folder.path(), "set key0 new\nsave\nwait\n");
        assert!(next[2].starts_with("saved "), "{next:?}");
        let mut expected = found;
        expected.insert("key0".into(), "new".into());
        assert_eq!(self::found(folder.path(), keys.iter()), expected, "{events:?}");
    }
    // Each of the two saves first removes the file of a save that was killed.
    for (name, times) in [("open", 2), ("fsync", 4), ("rename", 2), ("unlink", FULL_EVERY + 2)] {
        assert_eq!(
            events.iter().filter(|&&event| event == name).count(),
            times,
            "{name} {events:?}"
        );
    }
    assert!(events.iter().filter(|&&event| event == "write").count() >= 4, "{events:?}");
}

#[test]
fn store_whose_files_are_damaged_or_missing_does_not_start_and_names_the_file() {
    if let Some(reason) = no_snapshots() {
        return skipped(reason);
    }
    let (folder, model) = saved(3);
    for (name, next) in
        [("0.delta", Some("1.delta")), ("1.delta", Some("2.delta")), ("2.delta", None)]
    {
        let path = folder.path().join(name);
        let good = fs::read(&path).unwrap();
        for offset in [3, 30, good.len() / 2, good.len() - 1] {
            let mut bad = good.clone();
            bad[offset] ^= 4;
            for damaged in [&bad[..], &good[..offset]] {
                fs::write(&path, damaged).unwrap();
                let error = refused(folder.path());
                assert!(error.contains(name), "{error}");
                assert!(fs::read(&path).unwrap() == damaged);
            }
        }
        fs::remove_file(&path).unwrap();
        if let Some(next) = next {
            let error = refused(folder.path());
            assert!(error.contains(next) && error.contains("begins with state"), "{error}");
        }
        fs::write(&path, good).unwrap();
    }
    assert_eq!(found(folder.path(), model.clone().keys()), model);
}

#[test]
fn save_that_fails_leaves_the_files_and_the_next_one_is_full() {
    if let Some(reason) = no_snapshots() {
        return skipped(reason);
    }
    let (folder, mut model) = saved(2);
    // No file can be made there.
    let partial = folder.path().join("partial");
    fs::create_dir(&partial).unwrap();
    let said = answers(folder.path(), "set key1 1\nsave\nwait\nset key2 2\nsave\nwait\n");
    for answer in [&said[2], &said[5]] {
        assert!(answer.starts_with("error: not saved") && answer.contains("partial"), "{answer}");
    }
    assert_eq!(found(folder.path(), model.clone().keys()), model);
    // The same store goes on once there is room.
    let mut command = command(folder.path());
    let mut store = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = store.stdin.take().unwrap();
    let mut output = std::io::BufRead::lines(std::io::BufReader::new(store.stdout.take().unwrap()));
    input.write_all(b"set key1 3\nsave\nwait\n").unwrap();
    let refused = output.by_ref().nth(2).unwrap().unwrap();
    assert!(refused.starts_with("error: not saved"), "{refused}");
    assert!(self::refused(folder.path()).contains("in use by another store"));
    fs::remove_dir(&partial).unwrap();
    input.write_all(b"set key2 4\nsave\nwait\n").unwrap();
    let saved = output.by_ref().nth(2).unwrap().unwrap();
    assert!(saved.starts_with("saved full"), "{saved}");
    drop(input);
    assert!(store.wait().unwrap().success());
    model.extend([("key1".into(), "3".into()), ("key2".into(), "4".into())]);
    assert_eq!(found(folder.path(), model.clone().keys()), model);
    assert_eq!(names(folder.path()).len(), 1);
}
