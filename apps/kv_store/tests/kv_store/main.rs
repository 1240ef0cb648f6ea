//! The server as a process: killed, damaged, filled, and compared with the real server.

mod killed;
mod limits;
mod redis_programs;
mod saves;
mod server;

use hugekit_testing::trials::trials;
use kv_store::arena::Arena;
use libtest_mimic::Arguments;

/// Why this machine takes no snapshots.
fn no_snapshots() -> Option<String> {
    Arena::new(8 << 20).unwrap().changes(None).err().map(|error| error.to_string())
}

fn main() {
    let missing = |name| redis_programs::program(name).err();
    let trials = [
        trials(limits::CHECKS, None),
        trials(killed::CHECKS, no_snapshots()),
        trials(saves::CHECKS, no_snapshots()),
        trials(redis_programs::REDIS_CLI, missing("redis-cli")),
        trials(redis_programs::REDIS_PY, redis_programs::python().err()),
        trials(redis_programs::REDIS_SERVER, missing("redis-server")),
    ];
    let trials = trials.into_iter().flatten().collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
