//! The key-value server: asked by the real `redis-cli`, `redis-benchmark` and redis-py, by raw sockets that
//! mean no good, killed, and started again on what it has saved.

mod chains;
mod client;
#[path = "../../../../crates/hugekit-delta/tests/chains/colliding.rs"]
mod colliding;
mod differences;
mod dumps;
mod ending;
mod killed;
mod limits;
mod models;
mod protocol;
mod real_programs;
mod saves;
mod server;
mod stopped_saves;
mod values;
use hugekit::Snapshot;
use hugekit::fault::FaultMode;
use kv_store::redis;
use libtest_mimic::{Arguments, Completion, Trial};

type Check = (&'static str, fn());

fn trials(checks: &[Check], lacking: Option<&str>) -> Vec<Trial> {
    let trial = |&(name, check): &Check| {
        let run = move || {
            check();
            Ok(())
        };
        let trial = Trial::test(name, run);
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

/// Why no snapshot can be taken here.
#[allow(unsafe_code)]
fn no_snapshots() -> Option<String> {
    let memory = vec![1_u8; 8 << 20];
    let builder = Snapshot::builder().fault_mode(FaultMode::InPlace);
    // SAFETY: no thread writes to it.
    let made = unsafe { builder.of_anonymous(&raw const memory[..]) };
    made.err().map(|error| error.to_string())
}

fn main() {
    let arguments = Arguments::from_args();
    let missing = ["redis-cli", "redis-benchmark", "redis-server"]
        .into_iter()
        .find_map(|name| redis::program(name).err());
    let checks = [dumps::CHECKS, protocol::CHECKS, limits::CHECKS, ending::CHECKS].concat();
    let saving =
        [chains::SAVING, killed::SAVING, saves::SAVING, stopped_saves::SAVING, values::SAVING]
            .concat();
    let no_redis_server = redis::program("redis-server").err();
    let trials = [
        trials(&checks, None),
        trials(&saving, no_snapshots().as_deref()),
        trials(differences::CHECKS, no_redis_server.as_deref()),
        trials(real_programs::WITH_REDIS, missing.as_deref()),
        trials(real_programs::WITH_REDIS_PY, real_programs::no_redis_py().as_deref()),
    ];
    libtest_mimic::run(&arguments, trials.into_iter().flatten().collect()).exit();
}
