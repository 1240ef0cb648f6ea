//! Taps for guests, in a network that no other test sees.
#![allow(unsafe_code)]

use std::fs::File;
use std::process::Command;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Returns the reason if no taps can be made here.
#[must_use]
pub fn lacking() -> Option<String> {
    let lacks = |file: &str| File::options().read(true).write(true).open(file).is_err();
    if !rustix::process::geteuid().is_root() || lacks("/dev/net/tun") {
        return Some("only root, with /dev/net/tun, can make taps".to_owned());
    }
    let has_ip = Command::new("ip").arg("-V").output().is_ok_and(|output| output.status.success());
    (!has_ip).then(|| "there is no program ip".to_owned())
}

/// Runs a check in a network of its own, with the taps `tap0` and on.
///
/// # Panics
/// The check panics.
pub fn with_taps(count: u32, check: impl FnOnce() + Send) {
    let in_network = || {
        // SAFETY: the flag changes the network of this thread, which is no memory and no descriptor.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("root has networks");
        let names = (0..count).map(|number| format!("tap{number}"));
        names.for_each(|tap| ip(&["tuntap", "add", &tap, "mode", "tap"]));
        check();
    };
    let ended = std::thread::scope(|scope| scope.spawn(in_network).join());
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` in the network of this thread.
///
/// # Panics
/// It fails.
pub fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().expect("there is ip");
    assert!(status.success(), "{arguments:?}");
}
