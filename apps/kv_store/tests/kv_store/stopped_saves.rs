//! Saves that stand still in the middle, for as long as the test likes.

use std::fs;
use std::io::Read;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::Check;
use crate::client::{Answer, Client};
use crate::models::{few_sizes, model, set_all};
use crate::server::{Server, folder};

/// The partial dump is a pipe here: the save stands still in the middle for as long as the test likes.
struct Stopped {
    begun: [u8; 8],
    pipe: fs::File,
}

impl Stopped {
    fn new(folder: &Path, client: &mut Client) -> Self {
        let pipe = folder.join("dump.hkv.part");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        client.background_save();
        // Opened when the save has opened it, too.
        let mut reader = fs::File::open(&pipe).unwrap();
        let mut begun = [0; 8];
        reader.read_exact(&mut begun).unwrap();
        Self { begun, pipe: reader }
    }

    /// Lets it write all of it, and returns that.
    fn all(mut self) -> Vec<u8> {
        let mut all = self.begun.to_vec();
        self.pipe.read_to_end(&mut all).unwrap();
        all
    }
}

fn bgsave_killed_in_the_middle_keeps_the_last_dump() {
    let folder = folder();
    let saved = model(&mut fastrand::Rng::with_seed(1), 3000);
    let server = Server::start(folder.path());
    let mut client = server.client();
    set_all(&mut client, &saved);
    client.ok(&[b"SAVE"]);
    client.ok(&[b"FLUSHALL"]);
    set_all(&mut client, &model(&mut fastrand::Rng::with_seed(2), 4000));
    let stopped = Stopped::new(folder.path(), &mut client);
    let running = "ERR Background save already in progress".to_owned();
    assert_eq!(client.line("BGSAVE"), Answer::Error(running.clone()));
    assert_eq!(client.line("SAVE"), Answer::Error(running));
    server.kill();
    drop(stopped);
    // What a killed save leaves behind is a file otherwise.
    fs::remove_file(folder.path().join("dump.hkv.part")).unwrap();
    fs::write(folder.path().join("dump.hkv.part"), "half a dump").unwrap();
    let server = Server::start(folder.path());
    let mut client = server.client();
    client.holds(&saved);
    client.background_save();
    assert_eq!(client.wait_for_the_save(), "ok");
    assert!(!folder.path().join("dump.hkv.part").exists());
}

/// A save that cannot end holds what it has: writers change everything, and what comes out is what was.
fn bgsave_that_stands_still_holds_what_was() {
    let folder = folder();
    let server = Server::start(folder.path());
    let mut client = server.client();
    let saved = model(&mut fastrand::Rng::with_seed(3), 3000);
    set_all(&mut client, &saved);
    let stopped = Stopped::new(folder.path(), &mut client);
    client.ok(&[b"FLUSHALL"]);
    set_all(&mut client, &model(&mut fastrand::Rng::with_seed(4), 3000));
    let dump = stopped.all();
    // A pipe cannot be synchronised with a disk.
    assert_eq!(client.wait_for_the_save(), "err");
    server.kill();
    fs::write(folder.path().join("dump.hkv"), dump).unwrap();
    Server::start(folder.path()).client().holds(&saved);
}

/// As before, with so little room that writers must write what is protected, and copy it aside.
fn set_without_free_slabs_beside_a_save_copies_aside() {
    let folder = folder();
    let small = ["--memory", "24MiB"];
    let server = Server::start_with(folder.path(), &small);
    let mut client = server.client();
    let mut random = fastrand::Rng::with_seed(5);
    let saved = few_sizes(&mut random);
    set_all(&mut client, &saved);
    let stopped = Stopped::new(folder.path(), &mut client);
    let mut held = saved.clone();
    for _ in 0..8 {
        let changed = few_sizes(&mut random);
        set_all(&mut client, &changed);
        held.extend(changed);
    }
    let dump = stopped.all();
    assert_eq!(client.wait_for_the_save(), "err");
    client.holds(&held);
    server.kill();
    fs::write(folder.path().join("dump.hkv"), dump).unwrap();
    Server::start_with(folder.path(), &small).client().holds(&saved);
}

pub(crate) const SAVING: &[Check] = &[
    (
        "bgsave_killed_in_the_middle_keeps_the_last_dump",
        bgsave_killed_in_the_middle_keeps_the_last_dump,
    ),
    ("bgsave_that_stands_still_holds_what_was", bgsave_that_stands_still_holds_what_was),
    (
        "set_without_free_slabs_beside_a_save_copies_aside",
        set_without_free_slabs_beside_a_save_copies_aside,
    ),
];
