//! On Valgrind, where it is installed: nothing hangs or goes on wrong. What has faults served is refused, with the
//! reason, and the rest works.
#![allow(unsafe_code)]

use std::process::Command;

use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing, FaultError, Pool};
use hugekit::{ErrorKind, PoolError, Snapshot, SnapshotError, error_chain};
use hugekit_testing::trials::skipped;

/// What Valgrind is given as the name of the test that it runs.
const INNER: &str = "on_valgrind";

#[test]
#[ignore = "the other test runs it on Valgrind"]
fn on_valgrind() {
    if std::env::var_os(INNER).is_none() {
        return; // Not on Valgrind: `--include-ignored` runs it, too.
    }
    let mut state = vec![7_u8; 1 << 20];
    let pool = Pool::builder(1 << 20).backing(Backing::Base).scrub_threads(0).build().unwrap();
    pool.region(1 << 20).unwrap().fill(1);
    for fault_mode in [FaultMode::Auto, FaultMode::InPlace, FaultMode::Threaded { threads: 1 }] {
        let builder = Snapshot::builder().fault_mode(fault_mode);
        // SAFETY: no thread blocks SIGBUS, and no system call writes there.
        let refused = unsafe { builder.of_anonymous(&raw const state[..]) }.unwrap_err();
        assert!(matches!(refused, SnapshotError::Fault(FaultError::OnValgrind)), "{refused}");
        assert!(refused.kind() == ErrorKind::Unsupported);
        assert!(error_chain(&refused).to_string().contains("Valgrind"), "{refused:?}");
        let at_fault = pool.region_builder(1 << 19).clearing(Clearing::OnFault);
        let refused = at_fault.fault_mode(fault_mode).build().unwrap_err();
        assert!(matches!(refused, PoolError::Fault(FaultError::OnValgrind)), "{refused}");
    }
    state[1] = 8;
    let region = pool.region(1 << 19).unwrap();
    assert!(region.iter().all(|&byte| byte == 0));
    assert!(region.fork().is_err() && Snapshot::of_region(&region).is_err());
}

#[test]
fn fault_on_valgrind_is_refused_and_the_rest_works() {
    let mut run = Command::new("timeout");
    run.args(["--signal=KILL", "120", "valgrind", "--quiet"]);
    run.arg(std::env::current_exe().unwrap()).args(["--ignored", "--exact", INNER]).env(INNER, "1");
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skipped("no valgrind (apt-get install valgrind)");
    }
    let output = run.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{}: {said}", output.status);
}
