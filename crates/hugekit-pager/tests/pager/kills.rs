//! Pagers that are killed at random moments: the next one takes every VM over, with every byte.
//!
//! `HUGEKIT_PAGER_KILLS` is how many of each kind, instead of the usual few.

use std::thread::sleep;
use std::time::Duration;

use hugekit_guests::{Pages, Request, SmallVmm};
use libtest_mimic::{Failed, Trial};
use tempfile::TempDir;

use crate::memory_file::{MIB, MemoryFile};
use crate::pager_process::{Options, PagerProcess};

const USUAL: u32 = 20;

/// Kills that one VM lives through.
const OF_ONE: u32 = 4;

const LEN: u64 = 32 * MIB;

pub(crate) fn kills() -> u32 {
    std::env::var("HUGEKIT_PAGER_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(USUAL)
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![Trial::test("kills::small_vmm_survives_every_kill_of_the_pager", || {
        small_vmm_survives_every_kill();
        Ok::<(), Failed>(())
    })]
}

/// Between the start of reading ahead and some time after the end of it.
pub(crate) fn random_moment() -> Duration {
    Duration::from_micros(fastrand::u64(0..40_000))
}

fn small_vmm_survives_every_kill() {
    let folder = TempDir::new().unwrap();
    let memory = MemoryFile::create(folder.path(), LEN);
    let removed = (6 * MIB, 4 * MIB);
    for round in 0..kills().div_ceil(OF_ONE) {
        let all = Options::new(&memory.path);
        let options = match round % 3 {
            0 => all,
            1 => Options { stay: true, ..all },
            // Nothing is read ahead that could wake the VM, and at any moment a fault is being
            // answered.
            _ => Options { prefetch: false, around: 4096, ..all },
        };
        let mut pager = PagerProcess::start(folder.path(), &options);
        let served = pager.log().len();
        let mut vmm = SmallVmm::start(&pager.socket, &[LEN], Pages::Base).unwrap();
        pager.await_line_behind(served, "serving");
        for _ in 0..OF_ONE {
            // It waits for its memory, gives some back, or both, when the pager is killed.
            vmm.serial.send(Request::Remove { start: removed.0, len: removed.1 }).unwrap();
            vmm.serial.send(Request::Touch { start: 0, len: LEN }).unwrap();
            sleep(random_moment());
            pager.kill();
            pager = PagerProcess::start(folder.path(), &options);
            for _ in 0..2 {
                vmm.serial.answer_within(Duration::from_secs(30)).unwrap();
            }
        }
        memory.check(&mut vmm.serial, Some(removed));
    }
}
