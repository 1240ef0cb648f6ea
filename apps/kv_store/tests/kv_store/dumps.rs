//! Dumps that are damaged.

use std::fs;

use crate::Check;
use crate::models::{model, set_all};
use crate::server::{Server, folder};

fn start_on_a_damaged_dump_is_refused_and_leaves_it() {
    let folder = folder();
    let server = Server::start(folder.path());
    let saved = model(&mut fastrand::Rng::with_seed(6), 300);
    set_all(&mut server.client(), &saved);
    server.client().ok(&[b"SAVE"]);
    server.kill();
    let dump = folder.path().join("dump.hkv");
    let good = fs::read(&dump).unwrap();
    let refused = |bad: &[u8]| {
        fs::write(&dump, bad).unwrap();
        let said = Server::refused(folder.path(), "64MiB");
        assert!(said.contains("damaged at byte ") && said.contains("left as it is"), "{said}");
        assert!(fs::read(&dump).unwrap() == bad);
    };
    let offsets = (0..30).chain((30..good.len()).step_by(good.len() / 20)).chain([good.len() - 1]);
    for (bit, offset) in offsets.enumerate() {
        let mut bad = good.clone();
        bad[offset] ^= 1 << (bit % 8);
        refused(&bad);
    }
    for len in [0, 7, 8, 27, 28, good.len() / 2, good.len() - 21, good.len() - 1] {
        refused(&good[..len]);
    }
    refused(&[&good[..], b"x"].concat());
    fs::write(&dump, &good).unwrap();
    Server::start(folder.path()).client().holds(&saved);
}

pub(crate) const CHECKS: &[Check] = &[(
    "start_on_a_damaged_dump_is_refused_and_leaves_it",
    start_on_a_damaged_dump_is_refused_and_leaves_it,
)];
