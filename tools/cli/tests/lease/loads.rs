//! Loads of images from files that misbehave, and loads that are ended in the middle.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hugekit::pool::Backing;
use hugekit_delta::Chain;
use hugekit_lease::images;
use hugekit_lease::protocol::{Answer, Load, NotLoaded, Refusal};
use hugekit_testing::control_group::{ControlGroup, controller};
use hugekit_testing::fuse::{Call, Mounted, Reply};
use hugekit_testing::processes::Killed;
use hugekit_testing::trials::skip;
use rustix::process::Signal;

use super::Check;
use super::attacks::{connection, hear};
use super::daemon::{Daemon, PATIENCE, program, until_gone};
use super::images::{
    MEMORY, bytes_of, failed, in_shared_memory, load, load_of, memory, name, refused, run, send,
    written,
};

pub(crate) const CHECKS: &[Check] = &[
    ("a_file_that_answers_late_is_loaded", late),
    ("a_file_that_cannot_be_read_is_refused_with_the_place", unreadable_part),
    ("a_load_that_never_ends_keeps_neither_the_broker_nor_its_clients", never),
    ("a_broker_ends_while_its_load_waits_for_a_file", ends_in_a_load),
    ("the_memory_of_a_load_whose_client_is_killed_is_free_again", killed),
    ("a_name_is_taken_as_soon_as_its_load_begins", one_name),
    ("a_file_that_no_program_writes_to_or_that_is_no_file_is_refused", no_files),
    ("a_checkpoint_refuses_deltas_of_another_one", other_checkpoint),
    ("a_file_that_is_longer_than_memory_is_refused", huge_files),
    ("a_full_tmpfs_gets_no_part_of_an_image", full_tmpfs),
];

pub(crate) const CHECKS_OF_MEMORY: &[Check] =
    &[("a_group_with_too_little_memory_gets_no_image_and_keeps_the_broker", full_group)];

const NO_MOUNT: &str = "this process may not mount a file that it serves itself";

/// A piece of the file that its server sends.
fn part(offset: u64, len: usize) -> Reply {
    let memory = &*MEMORY;
    let start = memory.len().min(offset as usize);
    Reply::Bytes(memory[start..memory.len().min(start + len)].to_vec())
}

/// A file whose server answers as that function says.
fn served(folder: &Path, mut answer: impl FnMut(u64, usize) -> Reply + Send + 'static) -> Mounted {
    let flush = Reply::Bytes(vec![]);
    let file = Mounted::at(&folder.join("served"), memory().len() as u64, move |call| match call {
        Call::Read { offset, len } => answer(offset, len),
        Call::Flush => flush.clone(),
    });
    file.unwrap_or_else(|| skip(NO_MOUNT))
}

fn late(_: Backing) {
    let folder = tempfile::tempdir().unwrap();
    let slowly = |offset, len| {
        // Other threads run meanwhile, and what waits for the bytes sleeps.
        std::thread::sleep(Duration::from_millis(1));
        part(offset, len)
    };
    let file = served(folder.path(), slowly);
    let daemon = Daemon::of_images(&[]);
    load(&daemon, &load_of("web"), &[&File::open(file.path()).unwrap()]).unwrap();
    assert!(bytes_of(&daemon, "web") == memory());
}

fn unreadable_part(_: Backing) {
    const BAD: u64 = 3 << 20;
    let folder = tempfile::tempdir().unwrap();
    let half = |offset, len: usize| match offset + len as u64 > BAD {
        true => Reply::Error(libc::EIO),
        false => part(offset, len),
    };
    let file = served(folder.path(), half);
    let uid = rustix::process::geteuid().as_raw();
    let daemon = Daemon::of_images(&["--quota", &format!("{uid}=64MiB")]);
    let opened = File::open(file.path()).unwrap();
    let refusal = refused(load(&daemon, &load_of("web"), &[&opened]));
    let Refusal::NotLoaded(NotLoaded::Read { nth: 0, at, errno }) = refusal else {
        panic!("{refusal}")
    };
    // Where the piece begins that has the byte.
    assert!(at <= BAD && errno == libc::EIO as u64, "{refusal}");
    let path = file.path().to_str().unwrap();
    let said = failed(&run(&daemon, &["image", "load", "--name", "web"], &[path]));
    assert!(said.contains(path) && said.contains("Input/output error"), "{said}");
    // All of the quota is there again.
    let good = written(folder.path(), "good", &memory());
    load(&daemon, &load_of("web"), &[&good]).unwrap();
}

/// A load that waits for its file, in the middle: its client, and what is mounted.
struct Stuck {
    client: Killed,
    _file: Mounted,
}

/// Begins one, and waits until some of the memory is populated.
fn stuck(daemon: &Daemon, folder: &Path) -> Stuck {
    let reached = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&reached);
    let half = move |offset, len| {
        if offset < 2 << 20 {
            return part(offset, len);
        }
        told.store(true, Ordering::Relaxed);
        Reply::Never
    };
    let file = served(folder, half);
    let mut client = program();
    client.args(["image", "load", "--name", "stuck", "--socket"]).arg(daemon.socket());
    let client = client.arg(file.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let stuck = Stuck { client: Killed(client.unwrap()), _file: file };
    until(|| reached.load(Ordering::Relaxed));
    stuck
}

fn until(mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn never(_: Backing) {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::of_images(&[]);
    let stuck = stuck(&daemon, folder.path());
    let good = written(folder.path(), "good", &memory());
    load(&daemon, &load_of("web"), &[&good]).unwrap();
    assert!(bytes_of(&daemon, "web") == memory());
    assert_eq!(daemon.fillers().len(), 1, "the other load waits");
    drop(stuck);
    until(|| daemon.fillers().is_empty());
}

fn ends_in_a_load(_: Backing) {
    let folder = tempfile::tempdir().unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::KILL] {
        let mut daemon = Daemon::of_images(&[]);
        let mut stuck = stuck(&daemon, folder.path());
        let loads = daemon.fillers();
        assert_eq!(loads.len(), 1);
        assert!(shared_memory(loads[0]) > 0);
        daemon.signal(signal);
        // The file is silent all the time: whoever waits for it does not end.
        assert_eq!(daemon.ended().success(), signal != Signal::KILL);
        if signal != Signal::KILL {
            until(|| shared_memory(loads[0]) == 0);
            until(|| stuck.client.try_wait().unwrap().is_some());
        }
        // The process that loads has the connection too: nothing else can tell its client of a broker that is killed.
        drop(stuck);
        loads.into_iter().for_each(until_gone);
    }
}

/// Kilobytes of shared memory that a process has in its page tables; 0 if it has ended.
fn shared_memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:"));
    line.map_or(0, |line| line.trim().trim_end_matches(" kB").parse().unwrap())
}

/// The broker's descriptors of the file that is filled.
fn of_stuck(daemon: &Daemon) -> usize {
    daemon.descriptors().iter().filter(|link| link.contains("hugekit:stuck")).count()
}

fn killed(_: Backing) {
    let folder = tempfile::tempdir().unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let daemon = Daemon::of_images(&["--quota", &format!("{uid}=8MiB")]);
    for _ in 0..3 {
        let mut stuck = stuck(&daemon, folder.path());
        assert_eq!(of_stuck(&daemon), 1);
        let loads = daemon.fillers();
        assert!(loads.len() == 1 && shared_memory(loads[0]) > 0);
        stuck.client.kill().unwrap();
        stuck.client.wait().unwrap();
        // The process waits for its file, and has none of the memory any more.
        until(|| shared_memory(loads[0]) == 0);
        drop(stuck);
        until(|| daemon.fillers().is_empty() && of_stuck(&daemon) == 0);
    }
    let good = written(folder.path(), "good", &memory());
    load(&daemon, &Load { most: 8 << 20, ..load_of("stuck") }, &[&good]).unwrap();
}

fn one_name(_: Backing) {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::of_images(&[]);
    let stuck = stuck(&daemon, folder.path());
    let good = written(folder.path(), "good", &memory());
    let again = || load(&daemon, &load_of("stuck"), &[&good]);
    assert_eq!(refused(again()), Refusal::ImageExists);
    // Nothing has that name before all of it is there.
    assert_eq!(refused(images::drop(&daemon.socket(), name("stuck"))), Refusal::NoImage);
    assert_eq!(refused(images::get(&daemon.socket(), name("stuck"))), Refusal::NoImage);
    assert_eq!(images::list(&daemon.socket()).unwrap(), []);
    drop(stuck);
    until(|| daemon.fillers().is_empty());
    again().unwrap();
    assert!(bytes_of(&daemon, "stuck") == memory());
    two_at_once(&daemon, &good);
}

/// Of two loads of one name that are asked for at once, one is refused.
fn two_at_once(daemon: &Daemon, file: &File) {
    for _ in 0..20 {
        let clients = [connection(daemon), connection(daemon)];
        let files: [BorrowedFd<'_>; 1] = [file.as_fd()];
        clients.iter().for_each(|client: &OwnedFd| send(client, &load_of("two"), &files));
        let answers = clients.map(|client| hear(&client));
        let loaded = answers.iter().filter(|answer| matches!(answer, Some(Answer::Loaded(_))));
        assert_eq!(loaded.count(), 1, "{answers:?}");
        assert!(answers.contains(&Some(Answer::Refused(Refusal::ImageExists))), "{answers:?}");
        images::drop(&daemon.socket(), name("two")).unwrap();
    }
}

/// The command waits for none of them.
fn no_files(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let good = folder.path().join("good");
    fs::write(&good, memory()).unwrap();
    for path in [&fifo, &folder.path().to_owned(), &PathBuf::from("/dev/zero")] {
        let path = path.to_str().unwrap();
        for paths in [&[path][..], &[good.to_str().unwrap(), path]] {
            let said = failed(&run(&daemon, &["image", "load", "--name", "x"], paths));
            assert!(said.contains(path) && said.contains("no regular file"), "{said}");
        }
    }
}

/// The state file beside the memory names the state.
fn other_checkpoint(_: Backing) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("memory"), memory()).unwrap();
    fs::write(path("vmstate"), "a state").unwrap();
    let state = hugekit_vm::checkpoint::state_of(&path("memory")).unwrap();
    let raw = File::open(path("memory")).unwrap();
    let mut chain = Chain::resume_raw(&raw, state, []).unwrap();
    let delta = File::create_new(path("delta")).unwrap();
    let mut saving = chain.save_changes(&delta).unwrap();
    saving.put(4096, &[99; 4096]).unwrap();
    saving.finish().unwrap();
    let daemon = Daemon::of_images(&[]);
    let paths = ["memory", "delta"].map(path);
    let paths = paths.each_ref().map(|path| path.to_str().unwrap());
    let loaded = run(&daemon, &["image", "load", "--name", "right"], &paths);
    assert!(loaded.status.success());
    let mut expected = memory();
    expected[4096..8192].fill(99);
    assert!(bytes_of(&daemon, "right") == expected);
    fs::write(path("vmstate"), "another state").unwrap();
    let said = failed(&run(&daemon, &["image", "load", "--name", "wrong"], &paths));
    assert!(said.contains("delta of another state"), "{said}");
}

/// Where a sparse file may be that long.
fn huge_files(_: Backing) {
    let folder = in_shared_memory();
    let daemon = Daemon::of_images(&[]);
    let path = folder.path().join("sparse");
    File::create(&path).unwrap().set_len(1 << 62).unwrap();
    let said = failed(&run(&daemon, &["image", "load", "--name", "x"], &[path.to_str().unwrap()]));
    assert!(said.contains("memory"), "{said}");
    // A file system without holes says that all of it is data.
    let file = Mounted::at(&folder.path().join("served"), 1 << 62, |call| match call {
        Call::Read { len, .. } => Reply::Bytes(vec![0; len]),
        Call::Flush => Reply::Bytes(vec![]),
    });
    let file = file.unwrap_or_else(|| skip(NO_MOUNT));
    let path = file.path().to_str().unwrap();
    let said = failed(&run(&daemon, &["image", "load", "--name", "x"], &[path]));
    assert!(said.contains("are available"), "{said}");
    assert_eq!(images::list(&daemon.socket()).unwrap(), []);
}

fn full_tmpfs(_: Backing) {
    let folder = tempfile::tempdir().unwrap();
    let mount = |arguments: &[&str]| {
        Command::new("mount").args(arguments).arg(folder.path()).stderr(Stdio::null()).status()
    };
    if !mount(&["-t", "tmpfs", "-o", "size=2m", "none"]).is_ok_and(|status| status.success()) {
        skip("this process may not mount a tmpfs");
    }
    let _unmount = scopeguard::guard(folder.path().to_owned(), |path| {
        let _ = Command::new("umount").arg(path).status();
    });
    let daemon = Daemon::of_images(&[]);
    let other = tempfile::tempdir().unwrap();
    load(&daemon, &load_of("web"), &[&written(other.path(), "file", &memory())]).unwrap();
    let path = folder.path().join("vm");
    let lease = ["lease", "--image", "web", "--path", path.to_str().unwrap()];
    let said = failed(&run(&daemon, &lease, &[]));
    assert!(said.contains("remedy: free memory") && said.contains("tmpfs"), "{said}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

fn full_group(backing: Backing) {
    let group = ControlGroup::new(controller(backing)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let large = vec![7; 96 << 20];
    let file = written(folder.path(), "large", &large);
    group.limit(48 << 20);
    let charge = group.folder.to_str().unwrap().to_owned();
    let daemon = Daemon::of_images(&["--charge", &charge]);
    let asked = load(&daemon, &Load { most: 128 << 20, ..load_of("web") }, &[&file]);
    match refused(asked) {
        // Before the kernel ends the process that populates.
        Refusal::NotLoaded(NotLoaded::NoMemory) => {}
        other => panic!("{other}"),
    }
    until(|| daemon.fillers().is_empty());
    group.until_charged_below(backing, 8 << 20);
    let small = written(folder.path(), "small", &memory());
    load(&daemon, &load_of("web"), &[&small]).unwrap();
    assert!(bytes_of(&daemon, "web") == memory());
}
