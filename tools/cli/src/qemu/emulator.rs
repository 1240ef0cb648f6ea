//! The emulator of this machine, if none is named.

use std::env::consts::ARCH;
use std::ffi::OsString;
use std::path::Path;

use rustix::fs::{Access, access};

use hugekit_terminal::outcome::Remedied;

/// The name for the emulator of this machine.
pub(super) const AUTO: &str = "auto";

/// Returns the first that is installed, where distributions install it.
pub(super) fn of_this_machine() -> anyhow::Result<OsString> {
    let usual = format!("/usr/bin/qemu-system-{ARCH}");
    first_of(&[&usual, "/usr/libexec/qemu-kvm", "/usr/bin/kvm"])
}

fn first_of(places: &[&str]) -> anyhow::Result<OsString> {
    let is_program = |place: &&&str| access(Path::new(place), Access::EXEC_OK).is_ok();
    if let Some(place) = places.iter().find(is_program) {
        return Ok(place.into());
    }
    let message = format!("no QEMU found: looked for {}", places.join(" "));
    let remedy = "set HUGEKIT_QEMU to its path for hugekit-qemu, or name it by --emulator";
    Err(Remedied { message, remedy: remedy.to_owned() }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_program_that_can_be_run_is_the_emulator() {
        let places = ["/nonexistent/qemu", "/proc/self/status", "/bin/sh", "/proc/self/exe"];
        assert_eq!(first_of(&places).unwrap(), "/bin/sh");
        let error = first_of(&places[..2]).unwrap_err();
        let expected = "no QEMU found: looked for /nonexistent/qemu /proc/self/status";
        assert_eq!(error.to_string(), expected);
        assert!(error.downcast_ref::<Remedied>().unwrap().remedy.contains("HUGEKIT_QEMU"));
    }
}
