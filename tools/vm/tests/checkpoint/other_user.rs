//! A VM of another user, in a mount namespace of its own: root saves and forks it.

use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Stdio};
use std::{fs, io};

use hugekit_guests::{Firecracker, Pages, Request};
use hugekit_testing::trials::skip;
use hugekit_vm::checkpoint::{CheckpointOptions, RunningVm, VmProspects, checkpoint};
use hugekit_vm::pager::{PagerOptions, Source};
use libtest_mimic::Trial;

use crate::scene::{
    LEN, PagerThread, SEED, START, check_file, check_pattern, origin, pager_options, trial,
};

/// No user of this machine.
const USER: u32 = 60_003;

/// Gives the user devices that only root may open on some machines.
const SCRIPT: &str = "for device in kvm userfaultfd; do \
        ! [ -e /dev/$device ] || { cp -a /dev/$device \"$1\" && chmod 666 \"$1/$device\" && \
            mount --bind \"$1/$device\" /dev/$device; } || exit; \
    done; shift; exec setpriv --reuid 60003 --regid 60003 --clear-groups -- \"$@\"";

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("other_user::root_saves_the_vm_of_a_user", Pages::Base, saved_by_root)]
}

fn saved_by_root() {
    if !rustix::process::geteuid().is_root() {
        skip("only root starts programs as another user");
    }
    let (folder, snapshot) = origin(Pages::Base);
    let place = folder.path();
    chown(place, Some(USER), Some(USER)).unwrap();
    fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
    let options = PagerOptions { users: vec![USER], ..pager_options() };
    let source = Source::open(&snapshot.memory).unwrap();
    let pager = PagerThread::start_with(place.join("p.sock"), source, options);
    let started = Firecracker::start_prepared(place, "clone", |command| {
        let mut within = Command::new("unshare");
        within.args(["--mount", "sh", "-c", SCRIPT, "sh"]).arg(place).arg(command.get_program());
        within.args(command.get_args());
        within.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        *command = within;
    });
    let mut vmm = match started {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            skip(format!("no mount namespace or setpriv: {error}"))
        }
        started => started.unwrap(),
    };
    vmm.load_by_handler(&snapshot, &pager.socket, true).unwrap();
    check_pattern(&mut vmm, SEED);
    pager.await_complete();
    let found = VmProspects::of(vmm.pid()).unwrap().expect("it has a VM");
    assert!(found.save.is_ok() && found.keeps_layout, "{found:?}");
    let vm = RunningVm::new(vmm.api().to_owned());
    let output = place.join("saved");
    checkpoint(&CheckpointOptions::new(vm, output.clone())).unwrap();
    check_file(&output.join("memory"), SEED);
    vmm.serial.ask(Request::Write { start: START, len: LEN, seed: 4 }).unwrap();
    check_pattern(&mut vmm, 4);
}
