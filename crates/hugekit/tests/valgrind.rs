//! On Valgrind, where it is installed: nothing hangs. Threads that serve faults would, and are refused, with the
//! reason; in place, everything works.
#![allow(unsafe_code)]

use std::process::Command;

use hugekit::fault::Handling;
use hugekit::pool::{Backing, Clearing, FaultError, Pool};
use hugekit::{ErrorClass, PoolError, Snapshot, SnapshotError};

/// What Valgrind is given as the name of the test that it runs.
const INNER: &str = "on_valgrind";

#[test]
#[ignore = "run on Valgrind by the other one"]
fn on_valgrind() {
    let mut state = vec![7_u8; 1 << 20];
    let snapshot = |handling, state: &[u8]| {
        let builder = Snapshot::builder().handling(handling);
        // SAFETY: no thread blocks SIGBUS, and no system call writes there.
        unsafe { builder.of_anonymous(&raw const state[..]) }
    };
    let refused = snapshot(Handling::Threaded { threads: 1 }, &state).unwrap_err();
    assert!(matches!(refused, SnapshotError::Fault(FaultError::OnValgrind)), "{refused}");
    assert!(refused.class() == ErrorClass::Unsupported && refused.to_string().contains("Valgrind"));
    let taken = snapshot(Handling::Auto, &state).unwrap();
    let serving = taken.serving().unwrap();
    assert!(serving.handling == Handling::InPlace && serving.fall.is_some());
    std::thread::scope(|scope| {
        for part in state.chunks_mut(1 << 18) {
            scope.spawn(|| part.fill(8));
        }
    });
    let mut copy = vec![0; 1 << 20];
    taken.copy_to(&mut copy).unwrap();
    assert!(copy.iter().all(|&byte| byte == 7) && state.iter().all(|&byte| byte == 8));
    regions();
}

fn regions() {
    let pool = Pool::builder(1 << 20).backing(Backing::Base).scrub_threads(0).build().unwrap();
    pool.region(1 << 20).unwrap().fill(1);
    let at_fault = || pool.region_builder(1 << 19).clearing(Clearing::AtFault);
    let refused = at_fault().handling(Handling::Threaded { threads: 1 }).build().unwrap_err();
    assert!(matches!(refused, PoolError::Fault(FaultError::OnValgrind)), "{refused}");
    assert!(at_fault().build().unwrap().iter().all(|&byte| byte == 0));
    let region = pool.region(1 << 19).unwrap();
    let mut fork = region.fork().unwrap();
    fork[5] = 3;
    assert_eq!((region[5], fork[5]), (0, 3));
}

#[test]
fn threads_are_refused_and_the_rest_works() {
    let mut run = Command::new("timeout");
    run.args(["--signal=KILL", "120", "valgrind", "--quiet"]);
    run.arg(std::env::current_exe().unwrap()).args(["--ignored", "--exact", INNER]);
    if Command::new("valgrind").arg("--version").output().is_err() {
        return; // Nobody can meet it here.
    }
    let output = run.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{}: {said}", output.status);
}
