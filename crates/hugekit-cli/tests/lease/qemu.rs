//! QEMU on a lease: its guest runs, in memory that the broker has populated.

use std::process::{Command, Stdio};
use std::time::Instant;

use hugekit::pool::Backing;

use super::daemon::{Daemon, PATIENCE, program};
use super::{Check, UNIT};

pub(crate) const CHECKS: &[Check] = &[("a_guest_of_qemu_runs_in_a_lease", guest)];

const QEMU: &str = "qemu-system-x86_64";

/// Why it cannot be started here.
pub(crate) fn lacking() -> Option<String> {
    let started = Command::new(QEMU).arg("--version").stdout(Stdio::null()).status();
    let runs = started.is_ok_and(|status| status.success());
    (!runs).then(|| format!("no {QEMU}: apt-get install qemu-system-x86"))
}

/// The guest: it writes 0x21 to its first word of memory, reads it, says it to the debug port, and halts.
fn firmware() -> Vec<u8> {
    let start = [
        0xc6, 0x06, 0x00, 0x05, 0x21, // mov byte [0x500], 0x21
        0xa0, 0x00, 0x05, // mov al, [0x500]
        0xe6, 0xe9, // out 0xe9, al
        0xf4, // hlt
        0xeb, 0xfd, // jmp to the halt
    ];
    let mut rom = vec![0x90; 1 << 16];
    rom[..start.len()].copy_from_slice(&start);
    // The processor begins sixteen bytes before the end: a jump to the start.
    rom[0xfff0..0xfff5].copy_from_slice(&[0xea, 0x00, 0x00, 0x00, 0xf0]);
    rom
}

fn guest(backing: Backing) {
    let daemon = Daemon::new(backing, 1, &[]);
    let (rom, said) = (daemon.folder.path().join("rom"), daemon.folder.path().join("said"));
    std::fs::write(&rom, firmware()).unwrap();
    let mut lease = program();
    lease.args(["lease", "--size", &UNIT.to_string(), "--socket"]).arg(daemon.socket());
    lease.args(["--", QEMU, "-accel", "tcg", "-nodefaults", "-display", "none", "-m", "4M"]);
    lease.arg("-bios").arg(&rom).arg("-debugcon").arg(format!("file:{}", said.display()));
    lease.args(["-machine", "pc,memory-backend=m", "-object"]);
    lease.arg("memory-backend-file,id=m,size=4M,mem-path={},share=on");
    let mut qemu = lease.stdin(Stdio::null()).spawn().unwrap();
    let since = Instant::now();
    while std::fs::read(&said).unwrap_or_default() != [0x21] {
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
