//! What depends on the machine: nodes, pages of 1 GiB, and what starts the broker.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use hugekit::pool::{Backing, Pool};
use hugekit_lease::protocol::Refusal;
use hugekit_lease::{Lease, LeaseError};
use hugekit_machine::{Root, hugepages};

use super::daemon::{Daemon, PATIENCE, program, socket, start};
use super::{Check, UNIT};

pub(crate) const CHECKS: &[Check] = &[("memory_comes_from_the_node_that_was_said", node)];

pub(crate) const CHECKS_OF_ONE: &[Check] =
    &[("what_starts_the_broker_is_told_when_it_listens_and_when_it_ends", notices)];

pub(crate) const CHECKS_OF_ROOT: &[Check] =
    &[("a_broker_of_another_user_is_asked_nothing", untrusted)];

pub(crate) const CHECKS_OF_THP: &[Check] =
    &[("shared_memory_is_on_huge_pages_and_how_much_is_said", transparent)];

pub(crate) const CHECKS_OF_GIGANTIC: &[Check] = &[("a_unit_is_a_gigantic_page", gigantic)];

/// Nodes of a mapping, from its line of `numa_maps`: `N0=4 N1=2`.
fn nodes_of(start: usize) -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/numa_maps").unwrap();
    let begins = format!("{start:x} ");
    let line = maps.lines().find(|line| line.starts_with(&begins)).unwrap();
    let is_node = |word: &&str| {
        word.strip_prefix('N').is_some_and(|word| word.starts_with(|c: char| c.is_ascii_digit()))
    };
    let nodes = line.split(' ').filter(is_node);
    nodes.map(|word| word.split_once('=').unwrap().0.to_owned()).collect()
}

fn node(backing: Backing) {
    let last = fs::read_to_string("/sys/devices/system/node/has_memory").unwrap();
    let last = last.trim().rsplit(['-', ',']).next().unwrap().to_owned();
    let daemon = Daemon::new(backing, 1, &["--node", &last]);
    assert_eq!(daemon.until(|_| true).node, Some(last.parse().unwrap()));
    let pool = Pool::builder(UNIT).broker(daemon.socket()).build().unwrap();
    let region = pool.region(UNIT).unwrap();
    region.populate(0..UNIT).unwrap();
    assert_eq!(nodes_of(region.as_ptr().addr()), [format!("N{last}")]);
}

/// As systemd with `Type=notify`.
fn notices(backing: Backing) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notices");
    let notices = UnixDatagram::bind(&path).unwrap();
    notices.set_read_timeout(Some(PATIENCE)).unwrap();
    let hear = || {
        let mut room = [0; 256];
        let len = notices.recv(&mut room).unwrap();
        String::from_utf8_lossy(&room[..len]).trim().to_owned()
    };
    let mut broker = start(folder.path(), backing, 0, &[]);
    let mut broker = broker.env("NOTIFY_SOCKET", &path).spawn().unwrap();
    assert_eq!(hear(), "READY=1");
    // It is: no program has to try again.
    hugekit_lease::status(&socket(folder.path())).unwrap();
    let pid = rustix::process::Pid::from_child(&broker);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(hear(), "STOPPING=1");
    assert!(broker.wait().unwrap().success());
}

/// One whose user is neither root nor this test's.
fn untrusted(backing: Backing) {
    let folder = tempfile::tempdir().unwrap();
    let hugekit = folder.path().join("hugekit");
    fs::copy(program().get_program(), &hugekit).unwrap();
    let open = Command::new("chown").args(["-R", "54321"]).arg(folder.path()).status().unwrap();
    assert!(open.success());
    let mine = start(folder.path(), backing, 0, &[]);
    let mut theirs = Command::new("setpriv");
    theirs.args(["--reuid", "54321", "--regid", "54321", "--clear-groups"]).arg(&hugekit);
    let mut broker = theirs.args(mine.get_args()).stderr(Stdio::null()).spawn().unwrap();
    let since = std::time::Instant::now();
    let asked = loop {
        match Lease::ask(&socket(folder.path()), UNIT, Duration::ZERO) {
            Err(LeaseError::NoBroker { .. }) => assert!(since.elapsed() < PATIENCE),
            other => break other,
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    broker.kill().unwrap();
    broker.wait().unwrap();
    match asked {
        Err(error @ LeaseError::Untrusted { uid: 54321, .. }) => assert!(error.remedy().is_some()),
        other => panic!("{other:?}"),
    }
}

/// Kilobytes of the mapping that begins there which the page tables have as huge pages, from smaps.
fn huge_kib(start: usize) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let begins = format!("{start:x}-");
    let mapping = maps.lines().skip_while(|line| !line.starts_with(&begins));
    let mut field = mapping.filter_map(|line| line.strip_prefix("ShmemPmdMapped:"));
    field.next().unwrap().trim().trim_end_matches(" kB").parse().unwrap()
}

fn transparent(backing: Backing) {
    let daemon = Daemon::new(backing, 1, &[]);
    let ready = daemon.until(|status| status.ready == 1).huge;
    let lease = daemon.ask(PATIENCE).unwrap();
    assert_eq!(lease.huge_bytes(), ready);
    let pool = Pool::builder(UNIT).lease(lease).build().unwrap();
    let region = pool.region(UNIT).unwrap();
    region.populate(0..UNIT).unwrap();
    // The kernel gives huge pages here, as the trial before has shown, and a unit is few.
    assert_eq!(ready, UNIT as u64);
    assert_eq!(huge_kib(region.as_ptr().addr()), UNIT as u64 >> 10);
    let mut status = program();
    status.args(["broker", "status", "--socket"]).arg(daemon.socket());
    daemon.until(|status| status.ready == 1);
    let said = String::from_utf8(status.output().unwrap().stdout).unwrap();
    assert!(said.contains("1 of 1, 4MiB of 4MiB on huge pages"), "{said}");
}

fn gigantic(backing: Backing) {
    let page = backing.page_size();
    let daemon = Daemon::of_units(page, backing, 1);
    daemon.until(|status| status.ready == 1);
    let pool = Pool::builder(page).broker(daemon.socket()).build().unwrap();
    assert_eq!(pool.backing(), backing);
    let mut region = pool.region(page).unwrap();
    assert!(region.iter().step_by(4096).all(|&byte| byte == 0));
    region[page - 1] = 7;
    // Where there is no second one, the broker says in pages of that size what it lacks.
    if hugepages::read_size(&Root::default(), page as u64).unwrap().unpromised() > 0 {
        return;
    }
    match Lease::ask(&daemon.socket(), page, Duration::ZERO) {
        Err(LeaseError::Refused(Refusal::NoPages { page_size, free, .. })) => {
            assert_eq!((page_size, free), (page as u64, 0));
        }
        other => panic!("{other:?}"),
    }
    drop((region, pool));
    daemon.until(|status| status.leases == 0);
}
