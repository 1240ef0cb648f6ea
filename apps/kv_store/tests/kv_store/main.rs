//! The server as a process: written to while it saves, killed, damaged, filled, and compared with the
//! real server.

mod chains;
#[path = "../../../../crates/hugekit-delta/tests/chains/colliding.rs"]
mod colliding;
mod differences;
mod killed;
mod limits;
mod programs;
mod saves;
mod server;

use hugekit::Snapshot;
use hugekit::fault::FaultMode;
use libtest_mimic::{Arguments, Completion, Trial};

type Checks = &'static [(&'static str, fn())];

/// Functions with their names.
macro_rules! checks {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name)),*] };
}
use checks;

fn trials(checks: Checks, lacking: Option<&str>) -> Vec<Trial> {
    let trial = |&(name, check): &(&'static str, fn())| {
        let trial = Trial::test(name, move || {
            check();
            Ok(())
        });
        match lacking {
            None => trial,
            Some(reason) => {
                let reason = reason.to_owned();
                Trial::ignorable_test(trial.name(), move || Ok(Completion::ignored_with(reason)))
            }
        }
    };
    checks.iter().map(trial).collect()
}

/// Why this machine takes no snapshots.
#[allow(unsafe_code)]
fn no_snapshots() -> Option<String> {
    let memory = vec![1_u8; 8 << 20];
    let builder = Snapshot::builder().fault_mode(FaultMode::InPlace);
    // SAFETY: no thread writes to the memory, and it outlives the snapshot.
    let made = unsafe { builder.of_anonymous(&raw const memory[..]) };
    made.err().map(|error| error.to_string())
}

fn main() {
    let missing = |name| programs::redis(name).err();
    let trials = [
        trials(limits::CHECKS, None),
        trials(chains::CHECKS, no_snapshots().as_deref()),
        trials(killed::CHECKS, no_snapshots().as_deref()),
        trials(saves::CHECKS, no_snapshots().as_deref()),
        trials(differences::CHECKS, missing("redis-server").as_deref()),
        trials(programs::REDIS_CLI, missing("redis-cli").as_deref()),
        trials(programs::REDIS_PY, programs::python().err().as_deref()),
    ];
    let trials = trials.into_iter().flatten().collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
