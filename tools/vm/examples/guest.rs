//! Runs a program with a guest that can be saved and forked. Tests of the Python interface use
//! it.
//!
//! `cargo run -p hugekit-vm --example guest -- PROGRAM [ARGUMENT…]`. The program gets four
//! more arguments: the process of the guest's Firecracker, the socket of its API, a folder, and the
//! path of Firecracker. Afterwards the guest must still have its words. The exit status is the
//! program's, or 77 if no guest can be run here.

use std::process::{Command, ExitCode};

use hugekit_guests::{Request, lacking, program};

mod restored;
use restored::{LONGEST_WAIT, guest};

/// In MiB.
const MEMORY: u64 = 64;
const WRITE: Request = Request::Write { start: 16 << 20, len: 32 << 20, seed: 7 };
const VERIFY: Request = Request::Verify { start: 16 << 20, len: 32 << 20, seed: 7 };

fn main() -> ExitCode {
    if let Some(reason) = lacking() {
        println!("SKIP {reason}");
        return ExitCode::from(77);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut guest = guest(folder.path(), MEMORY, WRITE);
    let mut arguments = std::env::args_os().skip(1);
    let status = Command::new(arguments.next().expect("a program"))
        .args(arguments)
        .arg(guest.pid().to_string())
        .arg(folder.path().join("guest.api"))
        .arg(folder.path())
        .arg(program().expect("a guest runs"))
        .status()
        .expect("the program starts");
    assert_eq!(guest.serial.ask_within(VERIFY, LONGEST_WAIT).expect("it answers"), 0);
    ExitCode::from(status.code().map_or(1, |code| code as u8))
}
