//! What a client does not get, in figures.

use std::process::{Command, Stdio};
use std::time::Duration;

use hugekit::ErrorKind;
use hugekit::pool::Backing;
use hugekit_lease::protocol::Refusal;
use hugekit_lease::{Lease, LeaseError};

use super::daemon::{Daemon, PATIENCE, program, start};
use super::{Check, UNIT};

pub(crate) const CHECKS: &[Check] = &[
    ("another_size_is_refused_with_that_of_a_unit", size),
    ("beyond_its_quota_a_user_gets_nothing", quota),
    ("a_client_that_does_not_wait_gets_what_is_ready_or_nothing", no_wait),
    ("memory_that_is_to_be_left_free_is", keep_free),
    ("units_return_for_a_program_that_lacks_their_memory", give_back),
    ("a_second_broker_at_a_place_is_refused", second),
];

pub(crate) const CHECKS_OF_ROOT: &[Check] = &[
    ("another_user_is_served_by_root_alone", other_user),
    ("another_user_is_served_as_the_unit_file_starts_the_broker", other_user_by_unit),
];

fn refused(asked: Result<Lease, LeaseError>) -> Refusal {
    match asked {
        Err(LeaseError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

fn size(backing: Backing) {
    let daemon = Daemon::new(backing, 1, &[]);
    for bytes in [0, 1, UNIT - 1, UNIT / 2, 2 * UNIT, usize::MAX] {
        let refusal = refused(Lease::ask(&daemon.socket(), bytes, PATIENCE));
        assert_eq!(refusal, Refusal::WrongSize { asked: bytes as u64, unit: UNIT as u64 });
    }
    assert_eq!(daemon.until(|_| true).ready, 1);
}

fn quota(backing: Backing) {
    let uid = rustix::process::geteuid().as_raw();
    let quota = format!("{uid}={}", 2 * UNIT + 5);
    let daemon = Daemon::new(backing, 3, &["--quota", &quota, "--quota", "*=0"]);
    let leases = [daemon.ask(PATIENCE).unwrap(), daemon.ask(PATIENCE).unwrap()];
    let (asked, used) = (UNIT as u64, 2 * UNIT as u64);
    let expected = Refusal::OverQuota { asked, used, quota: used + 5 };
    let error = daemon.ask(PATIENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoMemory);
    assert!(error.remedy().is_some());
    assert_eq!(refused(Err(error)), expected);
    // A descriptor that another one was made of is the same lease.
    let [kept, ended] = leases;
    let kept = kept.into_file();
    let again = kept.try_clone().unwrap();
    drop((kept, ended));
    daemon.until(|status| status.leases == 1);
    let third = daemon.ask(PATIENCE).unwrap();
    assert_eq!(refused(daemon.ask(PATIENCE)), expected);
    drop((again, third));
    daemon.until(|status| status.leases == 0);
}

fn no_wait(backing: Backing) {
    let daemon = Daemon::new(backing, 0, &[]);
    let unit = UNIT as u64;
    match refused(daemon.ask(Duration::ZERO)) {
        Refusal::NoneReady { unit: said, before: 0, .. } => assert_eq!(said, unit),
        other => panic!("{other}"),
    }
    // What was refused does not count.
    daemon.until(|status| status.leases == 0 && status.waiting == 0);
}

fn keep_free(backing: Backing) {
    let all = 1_u64 << 50;
    let daemon = Daemon::listening(backing, 2, &["--keep-free", &all.to_string()]);
    match refused(daemon.ask(Duration::from_millis(20))) {
        Refusal::NoPages { unit, free, keep_free, .. } => {
            assert_eq!((unit, keep_free), (UNIT as u64, all));
            assert!(free < all);
        }
        other => panic!("{other}"),
    }
    let status = daemon.until(|_| true);
    assert_eq!((status.ready, status.filling), (0, 0));
}

fn give_back(backing: Backing) {
    let uid = rustix::process::geteuid().as_raw();
    let quota = format!("{uid}={}", 1_u64 << 50);
    let daemon = Daemon::new(backing, 3, &["--quota", &quota]);
    let page_size = if backing.is_reserved() { backing.page_size() as u64 } else { 0 };
    let ask = |bytes, page_size| hugekit_lease::give_back(&daemon.socket(), bytes, page_size);
    // Neither for memory of another kind, nor if enough is free, nor beyond the quota.
    assert_eq!(ask(1 << 50, 1 << 30).unwrap(), 0);
    assert_eq!(ask(1, page_size).unwrap(), 0);
    let refusal = ask(1 << 51, page_size).unwrap_err();
    assert!(matches!(refusal, LeaseError::Refused(Refusal::OverQuota { .. })), "{refusal}");
    assert_eq!(daemon.until(|_| true).ready, 3);
    // The machine has not so much: all units return, and for some time none is begun ahead.
    assert_eq!(ask(1 << 50, page_size).unwrap(), 3 * UNIT as u64);
    let none_is_ready = || {
        // The pause is a minute. Without it the broker would have begun a unit before it answered the second time.
        daemon.status().unwrap();
        let status = daemon.until(|status| status.leases == 0);
        assert_eq!((status.ready, status.filling), (0, 0));
    };
    none_is_ready();
    // A client that asks is served at once.
    daemon.ask(PATIENCE).unwrap();
    none_is_ready();
}

fn second(backing: Backing) {
    let daemon = Daemon::new(backing, 1, &[]);
    let second = start(daemon.folder.path(), backing, 1, &[]).stderr(Stdio::piped()).output();
    let second = second.unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(said.contains("another broker listens") && said.contains("remedy: "), "{said}");
    // The first one was not disturbed.
    daemon.ask(PATIENCE).unwrap();
}

/// A user of a number that no account has.
fn other_user(backing: Backing) {
    let daemon = Daemon::new(backing, 1, &["--quota", &format!("54321={UNIT}")]);
    serves_other_user(&daemon);
}

/// With the capabilities alone that systemd leaves it.
fn other_user_by_unit(backing: Backing) {
    let unit = include_str!("../../systemd/hugekit-broker.service");
    let set = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let names = set.split(' ').map(|name| name.trim_start_matches("CAP_").to_lowercase());
    let kept: String = names.map(|name| format!(",+{name}")).collect();
    let daemon = Daemon::around(UNIT, backing, |broker| {
        let mut command = Command::new("setpriv");
        command.args(["--no-new-privs", "--bounding-set", &format!("-all{kept}"), "--"]);
        command.arg(broker.get_program()).args(broker.get_args());
        command.args(["--quota", &format!("54321={UNIT}")]);
        command
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    assert_eq!(of("CapEff:"), of("CapBnd:"));
    serves_other_user(&daemon);
}

fn serves_other_user(daemon: &Daemon) {
    let open = Command::new("chmod").arg("0755").arg(daemon.folder.path()).status().unwrap();
    assert!(open.success());
    // Where that user may start it: the build's own folder may be closed to others.
    let hugekit = daemon.folder.path().join("hugekit");
    std::fs::copy(program().get_program(), &hugekit).unwrap();
    let (hugekit, socket) = (hugekit.display(), daemon.socket());
    let lease = format!("{hugekit} lease --size {UNIT} --socket {}", socket.display());
    let script = format!(
        "{lease} -- sh -c 'head -c 1 {{}} | od -An -tx1; stat -Lc %u:%a {{}}; {lease} -- cat \"{{\"\"}}\"'"
    );
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "54321", "--regid", "54321", "--clear-groups", "sh", "-c", &script]);
    let output = command.output().unwrap();
    // It opened its own by the path, and got no second one within its quota.
    let (out, err) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    let (out, err) = (out.unwrap(), err.unwrap());
    assert_eq!(out.split_ascii_whitespace().collect::<Vec<_>>(), ["00", "54321:600"], "{err}");
    assert!(
        err.contains("4 MiB were asked for, but the user's leases are 4 MiB of a quota"),
        "{err}"
    );
    assert!(!output.status.success());
}
