//! Pagers that are killed at random moments, from before a VMM connects until after its VM is
//! complete: the next one takes every VM over, with every byte.
//!
//! A VMM that finds no pager, or loses it before it has sent its message, sees an error at once. Such
//! a restore is repeated, and its kill is not counted. Other modules kill pagers at chosen moments.

use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_guests::{Request, SmallVmm};
use hugekit_testing::seed::random;
use hugekit_testing::trials::nightly;
use libtest_mimic::{Failed, Trial};

use crate::fixture::Fixture;
use crate::memory_file::MIB;
use crate::pager_process::{LONGEST_WAIT, Options, PagerProcess};

/// Kills of one test that VMs live through.
const KILLS: u32 = 100;

/// Why a test is not in CI.
pub(crate) const REASON: &str = "it kills at random moments";

/// Kills that one VM lives through.
const OF_ONE: u32 = 4;

const LEN: u64 = 32 * MIB;

/// What a VM gives back.
const REMOVED: (u64, u64) = (6 * MIB, 4 * MIB);

pub(crate) fn trials() -> Vec<Trial> {
    let trial = Trial::test("kills::small_vmm_survives_every_kill_of_the_pager", || {
        small_vmm_survives_every_kill();
        Ok::<(), Failed>(())
    });
    vec![nightly(REASON, trial)]
}

/// When a pager is killed: half of the time about when it records the VM, which is `typical` after
/// the start of a restore, and otherwise at any time until all data was read ahead.
pub(crate) fn random_moment(random: &mut fastrand::Rng, typical: Duration) -> Duration {
    let typical = typical.as_micros() as u64;
    let micros = if random.bool() {
        random.u64(typical / 2..typical * 3 / 2 + 1)
    } else {
        random.u64(0..typical + 40_000)
    };
    Duration::from_micros(micros)
}

/// What happened to VMs.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    survived: u32,
    /// Of these, VMs that the killed pager had not recorded.
    lost: u32,
    /// Restores that saw an error.
    refused: u32,
}

impl Tally {
    /// A pager was killed, and the VM has every byte.
    pub(crate) fn survived(&mut self, pid: i32, pager: &PagerProcess) {
        self.survived += 1;
        self.lost += u32::from(!pager.log().contains(&format!("{pid}: serving")));
    }

    pub(crate) fn refused(&mut self) {
        self.refused += 1;
        let most = 50 * KILLS;
        assert!(self.refused < most, "{most} restores saw an error");
    }

    pub(crate) fn is_enough(&self) -> bool {
        self.survived >= KILLS
    }

    pub(crate) fn print(&self, what: &str) {
        eprintln!("{what}: {self:?}");
    }
}

fn small_vmm_survives_every_kill() {
    let (mut tally, mut random) = (Tally::default(), random());
    for round in 0.. {
        if tally.is_enough() {
            break;
        }
        survive(round, &mut tally, &mut random);
    }
    tally.print("small VMM");
}

/// One VM that lives through several kills.
fn survive(round: u32, tally: &mut Tally, random: &mut fastrand::Rng) {
    let mut fixture = Fixture::with(LEN, |all| match round % 3 {
        0 => all,
        1 => Options { stay: true, ..all },
        // Nothing is read ahead that could wake the VM, and at any moment a fault is being
        // answered.
        _ => Options { prefetch: false, around: 4096, ..all },
    });
    let typical = time_to_serve(&fixture);
    let mut vm = fixture.vm();
    if kill_under(&mut fixture, &mut vm, random_moment(random, typical)).is_err() {
        // By itself and not by a signal: it has seen an error.
        let ending = vm.ending_within(LONGEST_WAIT).unwrap();
        assert_eq!(ending.and_then(|status| status.code()), Some(1), "the VM hangs or has crashed");
        return tally.refused();
    }
    tally.survived(vm.pid(), &fixture.pager);
    for _ in 1..OF_ONE {
        kill_under(&mut fixture, &mut vm, random_moment(random, typical)).unwrap();
        tally.survived(vm.pid(), &fixture.pager);
    }
    fixture.check(&mut vm, Some(REMOVED));
}

/// The VM waits for its memory, gives some back, or both, when the pager is killed.
fn kill_under(fixture: &mut Fixture, vm: &mut SmallVmm, at: Duration) -> std::io::Result<()> {
    let (start, len) = REMOVED;
    let sent = vm
        .serial
        .send(Request::Remove { start, len })
        .and_then(|()| vm.serial.send(Request::Touch { start: 0, len: LEN }));
    sleep(at);
    fixture.pager.kill();
    fixture.start_next();
    sent?;
    for _ in 0..2 {
        vm.serial.answer_within(LONGEST_WAIT)?;
    }
    Ok(())
}

/// From the start of a VMM until its VM is recorded.
fn time_to_serve(fixture: &Fixture) -> Duration {
    let before = fixture.pager.log().len();
    let since = Instant::now();
    let _vm = fixture.vm();
    fixture.pager.await_line_behind(before, "serving");
    since.elapsed()
}
