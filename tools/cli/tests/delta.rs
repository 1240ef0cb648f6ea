//! `hugekit delta` on a chain of files.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use assert_cmd::Command;
use hugekit_delta::{Chain, Writer};
use predicates::prelude::*;
use predicates::str::contains;

const LENGTH: usize = 100_000;

/// Deltas of three states in a folder, and the last state.
struct Deltas {
    folder: tempfile::TempDir,
    last: Vec<u8>,
}

impl Deltas {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut chain = Chain::new(LENGTH as u64);
        let mut state = vec![1; LENGTH];
        for index in 0..3 {
            let file = File::create(folder.path().join(index.to_string())).unwrap();
            let mut saving = chain.save(&file).unwrap();
            state[index * 30_000..][..10].fill(9);
            saving.write_all(&state).unwrap();
            saving.finish().unwrap();
        }
        Self { folder, last: state }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::cargo_bin("hugekit").unwrap();
        command.current_dir(self.folder.path()).arg("delta").args(arguments);
        command
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn chain_is_brought_back_whole_merged_and_from_a_base() {
    let deltas = Deltas::new();
    deltas.command(&["apply", "0", "1", "2", "-o", "image"]).assert().success();
    assert!(fs::read(deltas.path("image")).unwrap() == deltas.last);
    deltas.command(&["merge", "0", "1", "-o", "01"]).assert().success();
    deltas.command(&["apply", "01", "2", "-o", "image"]).assert().success();
    assert!(fs::read(deltas.path("image")).unwrap() == deltas.last);
    let first = deltas.command(&["apply", "0", "-o", "base"]).output().unwrap();
    let state = String::from_utf8(first.stdout).unwrap();
    let rest = ["apply", "1", "2", "--base", "base", "--state", state.trim(), "-o", "image"];
    deltas.command(&rest).assert().success();
    assert!(fs::read(deltas.path("image")).unwrap() == deltas.last);
    assert_eq!(deltas.names(), ["0", "01", "1", "2", "base", "image"], "nothing is left over");
}

#[test]
fn what_is_in_a_delta_is_said_in_words_and_as_json() {
    let deltas = Deltas::new();
    deltas
        .command(&["info", "0", "1"])
        .assert()
        .success()
        .stdout(contains("0: full to ").and(contains("1: from ")));
    let output = deltas.command(&["info", "--json", "1", "2"]).output().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said[0]["state"], said[1]["base"]);
    assert_eq!((&said[0]["bytes"], &said[0]["length"]), (&4096.into(), &LENGTH.into()));
}

#[test]
fn delta_out_of_order_or_damaged_is_refused_and_what_was_there_stays() {
    let deltas = Deltas::new();
    fs::write(deltas.path("image"), "kept").unwrap();
    deltas
        .command(&["apply", "0", "2", "-o", "image"])
        .assert()
        .failure()
        .stderr(contains("2: the delta begins with state"));
    let mut bytes = fs::read(deltas.path("1")).unwrap();
    bytes[100] ^= 1;
    fs::write(deltas.path("damaged"), bytes).unwrap();
    for arguments in [
        &["apply", "0", "damaged", "-o", "image"][..],
        &["merge", "0", "damaged", "-o", "image"],
        &["info", "damaged"],
    ] {
        deltas.command(arguments).assert().failure().stderr(contains("damaged at byte 48"));
    }
    deltas.command(&["apply", "0", "-o", "image", "--base", "1"]).assert().code(2);
    assert_eq!(fs::read(deltas.path("image")).unwrap(), b"kept");
    assert_eq!(deltas.names(), ["0", "1", "2", "damaged", "image"], "nothing is left over");
}

/// Root could replace `/dev/null` so, for every program of the machine.
#[test]
fn output_that_is_no_file_is_refused_and_stays() {
    let deltas = Deltas::new();
    let pipe = deltas.path("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    for verb in ["apply", "merge"] {
        let refused = deltas.command(&[verb, "0", "1", "-o", "pipe"]).assert().code(1);
        refused.stderr(contains("something other than a file has this name"));
    }
    assert!(pipe.metadata().unwrap().file_type().is_fifo());
    assert_eq!(deltas.names(), ["0", "1", "2", "pipe"], "nothing is left over");
}

/// A delta says how long its states are, and may say anything: a file that cannot be so long is an error, and one that can
/// takes no more room than the delta has bytes.
#[test]
fn delta_that_claims_much_takes_no_room_or_is_refused() {
    let deltas = Deltas::new();
    for length in [1 << 40, 1 << 62, u64::MAX] {
        let file = File::create(deltas.path("claims")).unwrap();
        let mut writer = Writer::new(file, length, None).unwrap();
        writer.bytes(5, b"here").unwrap();
        writer.zeroes(1 << 20, length / 2).unwrap();
        writer.finish().unwrap();
        deltas.command(&["info", "claims"]).assert().success();
        let merge = ["merge", "claims", "-o", "merged"];
        deltas.command(&merge).timeout(Duration::from_secs(60)).assert().success();
        let apply = ["apply", "claims", "-o", "image"];
        let done = deltas.command(&apply).timeout(Duration::from_secs(60)).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        if done.status.success() {
            let image = fs::metadata(deltas.path("image")).unwrap();
            assert_eq!(image.len(), length);
            assert!(image.blocks() * 512 < 1 << 20, "{} blocks", image.blocks());
            fs::remove_file(deltas.path("image")).unwrap();
        } else {
            assert!(said.contains(&format!("the state has {length} bytes")), "{said}");
            assert!(said.contains("use another file system"), "{said}");
        }
        assert_eq!(deltas.names(), ["0", "1", "2", "claims", "merged"], "nothing is left over");
    }
}
