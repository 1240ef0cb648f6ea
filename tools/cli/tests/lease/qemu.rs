//! QEMU on a lease: its guest runs, in memory that the broker has populated.

use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use hugekit::pool::Backing;
use hugekit_programs::{Emulator, firmware};

use super::daemon::{Daemon, PATIENCE, program};
use super::{Check, UNIT};

pub(crate) const CHECKS: &[Check] = &[("a_guest_of_qemu_runs_in_a_lease", guest)];

/// The emulator that the fleet has unpacked, or the machine's own.
pub(crate) fn emulator() -> Result<Emulator, String> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    Emulator::of_fleet("x86_64", &target)
}

/// Why it cannot be started here.
pub(crate) fn lacking() -> Option<String> {
    emulator().err()
}

fn guest(backing: Backing) {
    let daemon = Daemon::new(backing, 1, &[]);
    let (rom, said) = (daemon.folder.path().join("rom"), daemon.folder.path().join("said"));
    let (image, byte) = firmware();
    std::fs::write(&rom, image).unwrap();
    let mut lease = program();
    lease.args(["lease", "--size", &UNIT.to_string(), "--socket"]).arg(daemon.socket());
    lease.arg("--");
    emulator().unwrap().pass_to(&mut lease);
    lease.args(["-accel", "tcg", "-nodefaults", "-display", "none", "-m", "4M"]);
    lease.arg("-bios").arg(&rom).arg("-debugcon").arg(format!("file:{}", said.display()));
    lease.args(["-machine", "pc,memory-backend=m", "-object"]);
    lease.arg("memory-backend-file,id=m,size=4M,mem-path={},share=on");
    let mut qemu = lease.stdin(Stdio::null()).spawn().unwrap();
    let since = Instant::now();
    while std::fs::read(&said).unwrap_or_default() != [byte] {
        assert!(qemu.try_wait().unwrap().is_none(), "QEMU ended");
        assert!(since.elapsed() < PATIENCE, "the guest says nothing");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // What the guest runs in is the broker's, not memory of QEMU's own.
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", qemu.id())).unwrap();
    assert!(maps.contains("hugekit:lease"), "{maps}");
    daemon.until(|status| status.leases == 1);
    qemu.kill().unwrap();
    qemu.wait().unwrap();
    daemon.until(|status| status.leases == 0);
}
