//! Images: loaded, mapped, listed, saved and dropped, and what clients do to get in the way.

use std::fs::{self, File};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use hugekit::pool::Backing;
use hugekit_delta::{Chain, StateId};
use hugekit_image::Image;
use hugekit_lease::protocol::{
    Answer, ImageName, ImageRange, Load, MOST_SOURCES, NotLoaded, Refusal, Request,
};
use hugekit_lease::{Lease, LeaseError, images};
use hugekit_testing::processes::happens;
use hugekit_testing::trials::skip;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::attacks::{connection, hear};
use super::daemon::{Daemon, PATIENCE, program};
use super::{Check, UNIT};

pub(crate) const CHECKS: &[Check] = &[
    ("a_program_gets_an_image_by_a_path", by_path),
    ("a_file_that_needs_no_image_is_named_with_the_command_that_warms_it", page_cache),
    ("an_image_of_deltas_is_what_they_lead_to", chains),
    ("deltas_that_do_not_follow_are_refused_with_their_file", wrong_chains),
    ("an_image_that_was_dropped_goes_on_for_who_has_it", dropped),
    ("an_image_counts_until_no_process_has_it", quota),
    ("a_saved_image_has_the_bytes_and_the_holes", saved),
    ("an_image_is_a_file_of_a_tmpfs_for_who_takes_no_descriptor", in_tmpfs),
    ("the_list_says_who_has_an_image", listed),
    ("a_broker_without_units_leases_nothing", without_units),
    ("a_client_cannot_have_read_what_it_may_not", rights),
    ("sources_that_make_no_image_are_refused_with_the_reason", wrong_sources),
    ("more_than_there_is_memory_for_is_refused", too_large),
    ("a_client_that_goes_while_its_image_is_loaded_leaves_nothing", goes),
    ("clients_of_one_image_share_no_position", positions),
    ("a_client_that_asks_is_told_how_far_its_load_is", progress),
    ("progress_that_a_client_does_not_read_leaves_room_for_its_answer", unread_progress),
    ("the_command_shows_progress_on_a_terminal_only", progress_on_a_terminal),
];

pub(crate) const CHECKS_OF_ROOT: &[Check] = &[("each_user_has_names_of_its_own", users)];

pub(crate) fn name(text: &str) -> ImageName {
    text.parse().unwrap()
}

pub(crate) fn load_of(text: &str) -> Load {
    let (name, most) = (name(text), 64 << 20);
    let (is_for_all, tells_progress, state, ranges) = (false, false, None, vec![]);
    Load { name, most, is_for_all, tells_progress, state, ranges }
}

/// Bytes of which no two pages are alike, and an odd length.
pub(crate) static MEMORY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let numbers = (0..(5 << 20) / 8 + 3_u64)
        .flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    numbers.collect()
});

pub(crate) fn memory() -> Vec<u8> {
    MEMORY.clone()
}

pub(crate) fn written(folder: &Path, name: &str, bytes: &[u8]) -> File {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    File::open(path).unwrap()
}

pub(crate) fn load(daemon: &Daemon, load: &Load, sources: &[&File]) -> Result<(), LeaseError> {
    let sources: Vec<_> = sources.iter().map(|file| file.as_fd()).collect();
    images::load(&daemon.socket(), load, &sources, PATIENCE).map(drop)
}

pub(crate) fn refused<T: std::fmt::Debug>(asked: Result<T, LeaseError>) -> Refusal {
    match asked {
        Err(LeaseError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn bytes_of(daemon: &Daemon, image: &str) -> Vec<u8> {
    let (file, facts) = images::get(&daemon.socket(), name(image)).unwrap();
    let image = Image::check(file).unwrap();
    assert_eq!(image.bytes() as u64, facts.bytes);
    image.map().unwrap().to_vec()
}

/// `hugekit`, with arguments of which the first are those of the command.
pub(crate) fn run(daemon: &Daemon, command: &[&str], more: &[&str]) -> Output {
    let mut hugekit = program();
    hugekit.args(command).arg("--socket").arg(daemon.socket()).args(more).output().unwrap()
}

fn done(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn failed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The note of a file that its page cache can have on huge pages.
const ALSO_SHARED: &str = "note: programs can also share ";

fn page_cache(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = |name: &str| {
        written(folder.path(), name, &memory()).sync_all().unwrap();
        folder.path().join(name).to_str().unwrap().to_owned()
    };
    let noted = |name: &str, more: &[&str]| {
        let output = run(&daemon, &["image", "load", "--name", name], more);
        done(&output);
        let noted = String::from_utf8_lossy(&output.stderr).into_owned();
        noted.lines().filter(|line| line.starts_with(ALSO_SHARED)).map(str::to_owned).collect()
    };
    let one = file("memory.bin");
    let lines: Vec<String> = noted("one", &[&one]);
    let command = format!(": hugekit warm {one}");
    assert!(lines.iter().all(|line| line.ends_with(&command)), "{lines:?}");
    let mut warm = program();
    let warmed = warm.args(["warm", &one]).output().unwrap();
    let can = match String::from_utf8_lossy(&warmed.stdout) {
        _ if warmed.status.success() => Some(true),
        said if said.contains("makes no huge pages") => Some(false),
        _ => None,
    };
    assert!(can.is_none_or(|can| can == (lines.len() == 1)), "{lines:?}: {warmed:?}");
    // Not the bytes of that file, or none that has a name.
    chain(folder.path());
    assert!(noted("part", &["--range", "0:2MiB:0", &one]).is_empty());
    assert!(noted("delta", &[folder.path().join("0.delta").to_str().unwrap()]).is_empty());
    assert!(noted("chain", &[&one, folder.path().join("1.delta").to_str().unwrap()]).is_empty());
    let unnamed = tempfile::tempfile_in(folder.path()).unwrap();
    (&unnamed).write_all(&memory()).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), unnamed.as_raw_fd());
    assert!(noted("unnamed", &[&path]).is_empty());
    if can != Some(true) {
        skip("the page cache has no huge pages of this file");
    }
}

fn by_path(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let (folder, bytes) = (tempfile::tempdir().unwrap(), memory());
    let path = folder.path().join("memory.bin");
    fs::write(&path, &bytes).unwrap();
    let load =
        |image: &str| run(&daemon, &["image", "load", "--name", image], &[path.to_str().unwrap()]);
    let loaded = load("web");
    let said = done(&loaded);
    assert!(said.contains("web: 5.0MiB") && said.contains("on huge pages"), "{said}");
    let noted = String::from_utf8_lossy(&loaded.stderr);
    assert!(noted.is_empty() || noted.starts_with(ALSO_SHARED), "{noted}");
    let writer = File::options().append(true).open(&path).unwrap();
    let noted = load("written");
    drop(writer);
    done(&noted);
    assert!(String::from_utf8_lossy(&noted.stderr).contains("open for writing"), "{noted:?}");
    let lease = |script: &str| {
        run(&daemon, &["lease", "--image", "web"], &["--", "sh", "-c", script]).stdout
    };
    assert!(lease("cat {}") == bytes);
    assert!(lease("cat $HUGEKIT_LEASE_PATH") == bytes);
    let link = String::from_utf8(lease("readlink {}; stat -Lc %a {}")).unwrap();
    assert!(link.starts_with("/memfd:hugekit:web") && link.trim().ends_with("666"), "{link}");
    // A VMM may open it for writing, and nothing can be written.
    let opened = "exec 9<>{} && echo opened; (echo x >&9) 2>/dev/null && echo written";
    assert_eq!(lease(opened), b"opened\n");
    // QEMU maps a file where no huge page can begin, unless it is told.
    let object = |more: &str| {
        let object = format!("memory-backend-file,id=m,size=5M,mem-path={{}},share=off{more}");
        let output = run(&daemon, &["lease", "--image", "web"], &["--", "true", &object]);
        String::from_utf8(output.stderr).unwrap()
    };
    let (_, facts) = images::get(&daemon.socket(), name("web")).unwrap();
    assert_eq!(object("").contains("add align=2M"), facts.huge > 0);
    assert!(!object(",align=2M").contains("align=2M"));
    assert!(failed(&load("web")).contains("an image of that name already"));
    let unknown = run(&daemon, &["lease", "--image", "other"], &["--", "true"]);
    assert!(failed(&unknown).contains("no image of that name"));
    let usage = run(&daemon, &["image", "load", "--name", "../x"], &[path.to_str().unwrap()]);
    assert_eq!(usage.status.code(), Some(2));
}

/// Three states of a chain, as files, and their last bytes.
fn chain(folder: &Path) -> (Vec<File>, Vec<u8>, Vec<StateId>) {
    let mut state = memory();
    let mut chain = Chain::new(state.len() as u64);
    let (mut files, mut ids) = (Vec::new(), Vec::new());
    for nth in 0..3_usize {
        let path = folder.join(format!("{nth}.delta"));
        let file = File::create_new(&path).unwrap();
        let mut saving = chain.save(&file).unwrap();
        saving.write_all(&state).unwrap();
        ids.push(saving.finish().unwrap().state);
        files.push(File::open(path).unwrap());
        if nth < 2 {
            state[nth << 20..(nth << 20) + 9000].fill(nth as u8);
            state[4 << 20..].fill(0);
        }
    }
    (files, state, ids)
}

fn chains(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let folder = tempfile::tempdir().unwrap();
    let (deltas, state, ids) = chain(folder.path());
    load(&daemon, &load_of("chain"), &deltas.iter().collect::<Vec<_>>()).unwrap();
    assert!(bytes_of(&daemon, "chain") == state);
    let raw = written(folder.path(), "memory.bin", &memory());
    let from_raw = Load { state: Some(ids[0].to_bytes()), ..load_of("raw") };
    load(&daemon, &from_raw, &[&raw, &deltas[1], &deltas[2]]).unwrap();
    assert!(bytes_of(&daemon, "raw") == state);
    // Without a name, it is what the first delta begins with.
    load(&daemon, &load_of("unnamed"), &[&raw, &deltas[1], &deltas[2]]).unwrap();
    assert!(bytes_of(&daemon, "unnamed") == state);
    // The command does so, and prints for what it took the file.
    let paths = ["memory.bin", "1.delta", "2.delta"].map(|name| folder.path().join(name));
    let paths = paths.each_ref().map(|path| path.to_str().unwrap());
    let output = run(&daemon, &["image", "load", "--name", "command"], &paths);
    done(&output);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(&format!("taken for {}", ids[0])), "{said}");
    assert!(bytes_of(&daemon, "command") == state);
    let verified = |nth: usize| {
        let (name, id) = (format!("verified-{nth}"), ids[nth].to_string());
        run(&daemon, &["image", "load", "--name", &name, "--state", &id], &paths)
    };
    assert!(!String::from_utf8_lossy(&verified(0).stderr).contains("taken for"));
    assert!(failed(&verified(1)).contains("another state"));
    // What a full delta comes after does not matter.
    load(&daemon, &load_of("full"), &[&raw, &deltas[0]]).unwrap();
    assert!(bytes_of(&daemon, "full") == memory());
}

fn wrong_chains(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let folder = tempfile::tempdir().unwrap();
    let (deltas, _, ids) = chain(folder.path());
    let loaded = |sources: &[&File]| match refused(load(&daemon, &load_of("x"), sources)) {
        Refusal::NotLoaded(why) => why,
        other => panic!("{other}"),
    };
    let other = NotLoaded::OtherState { nth: 1 };
    assert_eq!(loaded(&[&deltas[0], &deltas[2]]), other);
    let raw = written(folder.path(), "memory.bin", &memory());
    // A raw memory file may be any state of its length, and what follows on the first delta only one.
    assert_eq!(loaded(&[&raw, &deltas[2], &deltas[1]]), NotLoaded::OtherState { nth: 2 });
    let state = Load { state: Some(ids[1].to_bytes()), ..load_of("x") };
    let refusal = refused(load(&daemon, &state, &[&raw, &deltas[1]]));
    assert_eq!(refusal, Refusal::NotLoaded(other));
    assert_eq!(loaded(&[&deltas[1]]), NotLoaded::OtherState { nth: 0 });
    assert_eq!(loaded(&[&deltas[0], &raw]), NotLoaded::Delta { nth: 1 });
    let mut damaged = fs::read(folder.path().join("1.delta")).unwrap();
    damaged[100] ^= 1;
    let damaged = written(folder.path(), "damaged", &damaged);
    assert_eq!(loaded(&[&deltas[0], &damaged]), NotLoaded::Delta { nth: 1 });
    let short = written(folder.path(), "short", &[7; 4096]);
    let image = 4096;
    let delta = memory().len() as u64;
    let length = NotLoaded::OtherLength { nth: 1, delta, image };
    assert_eq!(loaded(&[&short, &deltas[0]]), length);
    assert_eq!(images::list(&daemon.socket()).unwrap(), []);
    // The command names the file.
    let paths = ["0.delta", "2.delta"].map(|name| folder.path().join(name));
    let [full, later] = paths.each_ref().map(|path| path.to_str().unwrap());
    let said = failed(&run(&daemon, &["image", "load", "--name", "x"], &[full, later]));
    assert!(said.contains(&format!("{later}: ")) && said.contains("remedy: "), "{said}");
}

fn dropped(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let (folder, bytes) = (tempfile::tempdir().unwrap(), memory());
    let file = written(folder.path(), "memory.bin", &bytes);
    load(&daemon, &load_of("web"), &[&file]).unwrap();
    let (image, _) = images::get(&daemon.socket(), name("web")).unwrap();
    let mapped = Image::check(image).unwrap().map().unwrap();
    images::drop(&daemon.socket(), name("web")).unwrap();
    assert_eq!(refused(images::get(&daemon.socket(), name("web"))), Refusal::NoImage);
    assert_eq!(refused(images::drop(&daemon.socket(), name("web"))), Refusal::NoImage);
    let rows = images::list(&daemon.socket()).unwrap();
    assert!(rows.len() == 1 && rows[0].is_dropped, "{rows:?}");
    // Its name is free, and the old one stays what it was.
    let other = written(folder.path(), "other.bin", &[7; 4096]);
    load(&daemon, &load_of("web"), &[&other]).unwrap();
    assert!(*mapped == bytes[..]);
    assert!(bytes_of(&daemon, "web") == [7; 4096]);
    drop(daemon);
    assert!(*mapped == bytes[..]);
}

fn quota(_: Backing) {
    let uid = rustix::process::geteuid().as_raw();
    let daemon = Daemon::of_images(&["--quota", &format!("{uid}=8MiB")]);
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), "memory.bin", &memory());
    let asked = |text: &str, most: u64| load(&daemon, &Load { most, ..load_of(text) }, &[&file]);
    let beyond = refused(asked("a", (8 << 20) + 1));
    assert_eq!(beyond, Refusal::OverQuota { asked: (8 << 20) + 1, used: 0, quota: 8 << 20 });
    // Less than was asked for was needed, and no more than that counts then.
    asked("a", 8 << 20).unwrap();
    let rows = images::list(&daemon.socket()).unwrap();
    let used = rows[0].facts.present;
    assert!(used >= memory().len() as u64 && used <= 6 << 20, "{rows:?}");
    let quota = Refusal::OverQuota { asked: 6 << 20, used, quota: 8 << 20 };
    assert_eq!(refused(asked("b", 6 << 20)), quota);
    let (image, _) = images::get(&daemon.socket(), name("a")).unwrap();
    let mapped = Image::check(image).unwrap().map().unwrap();
    images::drop(&daemon.socket(), name("a")).unwrap();
    assert_eq!(refused(asked("b", 6 << 20)), quota);
    drop(mapped);
    asked("b", 6 << 20).unwrap();
}

fn saved(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let folder = tempfile::tempdir().unwrap();
    let sparse = File::create_new(folder.path().join("sparse")).unwrap();
    sparse.set_len(24 << 20).unwrap();
    sparse.write_all_at(&memory(), 16 << 20).unwrap();
    let sparse = File::open(folder.path().join("sparse")).unwrap();
    load(&daemon, &load_of("web"), &[&sparse]).unwrap();
    let path = folder.path().join("saved");
    done(&run(&daemon, &["image", "save", "web"], &["--output", path.to_str().unwrap()]));
    assert!(fs::read(&path).unwrap() == fs::read(folder.path().join("sparse")).unwrap());
    let found = fs::metadata(&path).unwrap();
    assert!(found.blocks() * 512 <= 8 << 20, "{} blocks", found.blocks());
    let unknown = folder.path().join("unknown");
    failed(&run(&daemon, &["image", "save", "other"], &["--output", unknown.to_str().unwrap()]));
    assert!(!unknown.exists());
}

/// A folder in a tmpfs.
pub(crate) fn in_shared_memory() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/dev/shm");
    folder.unwrap_or_else(|error| skip(format!("no folder can be made in /dev/shm: {error}")))
}

fn in_tmpfs(_: Backing) {
    let folder = in_shared_memory();
    let daemon = Daemon::of_images(&[]);
    let file = written(folder.path(), "memory.bin", &memory());
    load(&daemon, &load_of("web"), &[&file]).unwrap();
    let path = folder.path().join("vm");
    let make = || run(&daemon, &["lease", "--image", "web", "--path", path.to_str().unwrap()], &[]);
    done(&make());
    assert!(fs::read(&path).unwrap() == memory());
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o444);
    failed(&make());
}

fn listed(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(done(&run(&daemon, &["image", "list"], &[])), "no images\n");
    let file = written(folder.path(), "memory.bin", &memory());
    load(&daemon, &load_of("web"), &[&file]).unwrap();
    let (image, facts) = images::get(&daemon.socket(), name("web")).unwrap();
    let mut mapped = Image::check(image).unwrap().map().unwrap();
    mapped[..8192].fill(1);
    let text = done(&run(&daemon, &["image", "list", "--json"], &[]));
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value[0]["name"], "web");
    assert_eq!(value[0]["bytes"], memory().len());
    assert_eq!(value[0]["bytes_on_huge_pages"], facts.huge);
    let clones = value[0]["clones"].as_array().unwrap();
    let here = clones.iter().find(|clone| clone["pid"] == std::process::id()).unwrap();
    assert_eq!(here["bytes_private"], 8192.max(rustix::param::page_size()));
    let text = done(&run(&daemon, &["image", "list"], &[]));
    for part in ["web", "5.0MiB", &format!("pid {}", std::process::id()), "8KiB"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

fn without_units(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let refusal = refused(Lease::ask(&daemon.socket(), UNIT, Duration::ZERO));
    assert_eq!(refusal, Refusal::NoUnits);
    assert!(done(&run(&daemon, &["broker", "status"], &[])).contains("holds images only"));
}

/// The answer of `hugekit image` to another user.
fn as_other(daemon: &Daemon, arguments: &[&str]) -> Output {
    let hugekit = daemon.folder.path().join("hugekit");
    if !hugekit.exists() {
        fs::copy(program().get_program(), &hugekit).unwrap();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "54321", "--regid", "54321", "--clear-groups"]).arg(hugekit);
    command.args(arguments).arg("--socket").arg(daemon.socket()).output().unwrap()
}

fn users(_: Backing) {
    let daemon = Daemon::of_images(&[]).open_to_all();
    let folder = daemon.folder.path().to_owned();
    let (own, other) = (written(&folder, "own", &[1; 4096]), folder.join("other"));
    fs::write(&other, [2; 4096]).unwrap();
    let other = other.to_str().unwrap();
    done(&as_other(&daemon, &["image", "load", "--name", "web", other]));
    // Root does not get what another user calls by that name.
    assert_eq!(refused(images::get(&daemon.socket(), name("web"))), Refusal::NoImage);
    let for_all = Load { is_for_all: true, ..load_of("web") };
    load(&daemon, &for_all, &[&own]).unwrap();
    load(&daemon, &load_of("secret"), &[&own]).unwrap();
    assert_eq!(bytes_of(&daemon, "web"), [1; 4096]);
    let list = done(&as_other(&daemon, &["image", "list", "--json"]));
    let value: serde_json::Value = serde_json::from_str(&list).unwrap();
    let names: Vec<_> = value.as_array().unwrap().iter().map(|row| &row["uid"]).collect();
    assert_eq!(names, [54321, 0], "{list}");
    let saved = folder.join("saved");
    let saved = saved.to_str().unwrap();
    fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    done(&as_other(&daemon, &["image", "save", "web", "--output", saved]));
    assert_eq!(fs::read(saved).unwrap(), [2; 4096], "its own comes before that of all");
    let hidden = as_other(&daemon, &["image", "save", "secret", "--output", saved]);
    assert!(failed(&hidden).contains("no image of that name"));
    let refused = as_other(&daemon, &["image", "load", "--for-all", "--name", "x", other]);
    assert!(failed(&refused).contains("loaded and dropped by root"));
    done(&as_other(&daemon, &["image", "drop", "web"]));
    failed(&as_other(&daemon, &["image", "drop", "web"]));
    done(&as_other(&daemon, &["image", "save", "web", "--output", saved]));
    assert_eq!(fs::read(saved).unwrap(), [1; 4096]);
}

/// The process that loads has the rights of the client: its user cannot write to the broker's files, and what it opened
/// for writing only is not read.
fn rights(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), [7; 4096]).unwrap();
    let write_only = File::options().write(true).open(folder.path().join("file")).unwrap();
    let refusal = refused(load(&daemon, &load_of("x"), &[&write_only]));
    let why = |refusal| matches!(refusal, Refusal::NotLoaded(NotLoaded::Read { nth: 0, .. }));
    assert!(why(refusal), "{refusal}");
}

fn wrong_sources(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let folder = tempfile::tempdir().unwrap();
    let why = |load: &Load, sources: &[BorrowedFd<'_>]| match refused(images::load(
        &daemon.socket(),
        load,
        sources,
        PATIENCE,
    )) {
        Refusal::NotLoaded(why) => why,
        other => panic!("{other}"),
    };
    let x = load_of("x");
    assert_eq!(why(&x, &[]), NotLoaded::Nothing);
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let zero = File::open("/dev/zero").unwrap();
    let socket = connection(&daemon);
    for source in [pipe.as_fd(), zero.as_fd(), socket.as_fd()] {
        assert_eq!(why(&x, &[source]), NotLoaded::NoFile { nth: 0 });
    }
    let empty = written(folder.path(), "empty", &[]);
    assert_eq!(why(&x, &[empty.as_fd()]), NotLoaded::Nothing);
    for head in ["QEVM", "LibvirtQemudSave"] {
        let saved = [head.as_bytes(), &[0; 4096]].concat();
        let saved = written(folder.path(), "saved", &saved);
        assert_eq!(why(&x, &[saved.as_fd()]), NotLoaded::SavedVm { nth: 0 });
    }
    let path = folder.path().join("saved");
    let path = path.to_str().unwrap();
    let said = failed(&run(&daemon, &["image", "load", "--name", "x", path], &[]));
    assert!(said.contains(&format!("{path}: ")) && said.contains("saved VM of QEMU"), "{said}");
    let file = written(folder.path(), "file", &[7; 4096]);
    assert_eq!(why(&x, &[file.as_fd(), zero.as_fd()]), NotLoaded::NoFile { nth: 1 });
    let range = |from, len, to| ImageRange { from, len, to };
    for ranges in [
        vec![range(0, 4097, 0)],
        vec![range(u64::MAX, 2, 0)],
        vec![range(0, 1, u64::MAX)],
        vec![range(0, 0, 0)],
        vec![range(0, 9, 0), range(9, 9, 8)],
    ] {
        let load = Load { ranges, ..x.clone() };
        assert!(matches!(why(&load, &[file.as_fd()]), NotLoaded::Range { .. }));
    }
    let far = Load { ranges: vec![range(0, 9, 1 << 62)], ..x.clone() };
    assert!(matches!(why(&far, &[file.as_fd()]), NotLoaded::Kernel { .. }));
    // More descriptors than a load may have: none of them is used.
    let many = vec![file.as_fd(); MOST_SOURCES + 2];
    let listener = connection(&daemon);
    send(&listener, &x, &many);
    assert!(matches!(hear(&listener), Some(Answer::Refused(Refusal::NotLoaded(_)))));
    assert_eq!(images::list(&daemon.socket()).unwrap(), []);
}

pub(crate) fn send(socket: &OwnedFd, load: &Load, files: &[BorrowedFd<'_>]) {
    let message = Request::Load(Box::new(load.clone())).to_message();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut carried = SendAncillaryBuffer::new(&mut space);
    assert!(carried.push(SendAncillaryMessage::ScmRights(files)));
    let flags = SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(&message)], &mut carried, flags).unwrap();
}

fn too_large(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), "file", &memory());
    let asked = |most: u64| refused(load(&daemon, &Load { most, ..load_of("x") }, &[&file]));
    for most in [u64::MAX, 1 << 62, 1 << 50] {
        match asked(most) {
            Refusal::NoMemory { asked, free, .. } => assert!(asked == most && free < most),
            other => panic!("{other}"),
        }
    }
    // It says less than there is.
    assert_eq!(asked(4096), Refusal::NotLoaded(NotLoaded::TooLarge { most: 4096 }));
    assert_eq!(images::list(&daemon.socket()).unwrap(), []);
}

fn goes(_: Backing) {
    let uid = rustix::process::geteuid().as_raw();
    let daemon = Daemon::of_images(&["--quota", &format!("{uid}=64MiB")]);
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), "file", &memory());
    for _ in 0..20 {
        send(&connection(&daemon), &load_of("web"), &[file.as_fd()]);
    }
    // What was loaded before the broker saw that its client was gone is held.
    let since = std::time::Instant::now();
    loop {
        // Requests are heard in the order in which they come.
        images::list(&daemon.socket()).unwrap();
        if daemon.fillers().is_empty() {
            break;
        }
        assert!(since.elapsed() < PATIENCE);
    }
    let _ = images::drop(&daemon.socket(), name("web"));
    load(&daemon, &load_of("web"), &[&file]).unwrap();
    assert!(bytes_of(&daemon, "web") == memory());
    // The broker closes its descriptor of an image that it does not keep after it has answered.
    let kept = || daemon.descriptors().iter().filter(|link| link.contains("hugekit:web")).count();
    assert!(happens(|| kept() == 1), "{}", kept());
}

fn positions(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let folder = tempfile::tempdir().unwrap();
    load(&daemon, &load_of("web"), &[&written(folder.path(), "file", &memory())]).unwrap();
    let get = || File::from(images::get(&daemon.socket(), name("web")).unwrap().0);
    let (mut one, mut other) = (get(), get());
    std::io::Seek::seek(&mut one, std::io::SeekFrom::Start(4096)).unwrap();
    assert_eq!(std::io::Seek::stream_position(&mut other).unwrap(), 0);
    assert!(other.write_all(&[1]).is_err() && one.write_at(&[1], 0).is_err());
}

fn progress(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let folder = tempfile::tempdir().unwrap();
    let bytes = memory();
    let file = written(folder.path(), "file", &bytes);
    let mut told = Vec::new();
    let mut load = |load: &Load| {
        let mut tell = |done, total| told.push((done, total));
        let (socket, sources) = (daemon.socket(), [file.as_fd()]);
        images::load_telling(&socket, load, &sources, PATIENCE, &mut tell).unwrap();
        std::mem::take(&mut told)
    };
    assert_eq!(load(&load_of("silent")), []);
    let told = load(&Load { tells_progress: true, ..load_of("told") });
    assert!(!told.is_empty() && told.is_sorted(), "{told:?}");
    let total = bytes.len() as u64;
    assert!(told.iter().all(|&(done, of)| done > 0 && done <= total && of == total), "{told:?}");
}

/// Each message of a full queue would be lost, and the answer with them.
fn unread_progress(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), "file", &memory());
    let client = connection(&daemon);
    send(&client, &Load { tells_progress: true, ..load_of("web") }, &[file.as_fd()]);
    let since = std::time::Instant::now();
    while images::list(&daemon.socket()).unwrap().is_empty() {
        assert!(since.elapsed() < PATIENCE);
    }
    assert!(matches!(hear(&client), Some(Answer::Loading { .. })));
    loop {
        match hear(&client) {
            Some(Answer::Loading { .. }) => {}
            Some(Answer::Loaded(_)) => break,
            other => panic!("{other:?}"),
        }
    }
}

/// `script` of util-linux has a terminal.
fn progress_on_a_terminal(_: Backing) {
    let daemon = Daemon::of_images(&[]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memory.bin");
    fs::write(&path, memory()).unwrap();
    let (socket, path) = (daemon.socket(), path.to_str().unwrap().to_owned());
    let quiet = run(&daemon, &["image", "load", "--name", "quiet"], &[&path]);
    done(&quiet);
    assert!(!String::from_utf8_lossy(&quiet.stderr).contains(" left"), "{quiet:?}");
    let hugekit = program().get_program().to_owned();
    let line = format!(
        "{} image load --name shown --socket {} {path}",
        hugekit.to_str().unwrap(),
        socket.display()
    );
    let mut script = Command::new("script");
    let script = script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    let Ok(shown) = script.env("TERM", "xterm").stdin(Stdio::null()).output() else {
        skip("no program `script` (util-linux)");
    };
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success() && text.contains(" left"), "{shown:?}");
    assert!(text.contains("shown: 5.0MiB"), "{text}");
}
