//! `hugekit qemu`, which programs such as libvirt start in the place of QEMU.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use hugekit::pool::Backing;
use hugekit_programs::firmware;
use hugekit_testing::trials::skip;
use rustix::process::Signal;

use super::daemon::{Daemon, PATIENCE, program, socket};
use super::qemu::emulator;
use super::{Check, UNIT};

pub(crate) const CHECKS: &[Check] = &[
    ("qemu_gets_leases_in_the_place_of_its_objects", leased),
    ("qemu_gets_leases_for_both_nodes_or_none", two_nodes),
    ("qemu_without_a_lease_starts_exactly_as_asked", as_asked),
    ("qemu_gets_a_probe_byte_for_byte_and_the_broker_none", probe),
    ("qemu_with_memory_that_stays_is_one_line_for_each_object", left),
    ("qemu_gets_a_lease_or_a_line_however_its_memory_is_spelled", spelled),
    ("qemu_starts_while_the_broker_stands_still", stopped),
    ("the_script_hugekit_qemu_finds_the_command_and_the_emulator", script),
    ("the_script_hugekit_qemu_names_the_places_without_an_emulator", no_emulator),
    ("rules_for_apparmor_name_the_command", apparmor),
    ("qemu_that_may_not_open_its_lease_starts_exactly_as_asked", unopenable),
];

pub(crate) const CHECKS_OF_QEMU: &[Check] = &[("a_guest_of_hugekit_qemu_runs_in_its_lease", guest)];

/// A stand-in for QEMU: prints its arguments, and the first bytes of memory that it is given. It writes to the memory, so
/// that a lease that is given to two emulators is seen.
const EMULATOR: &str = r#"#!/bin/sh
for argument; do printf '%s\n' "$argument"; done
for argument; do
    case $argument in */proc/self/fd/*) ;; *) continue ;; esac
    number=${argument##*/proc/self/fd/}
    number=${number%%[!0-9]*}
    head -c 4 "/proc/$$/fd/$number" | od -An -tx1
    stat -Lc '%s bytes' "/proc/$$/fd/$number"
    printf used 1<>"/proc/$$/fd/$number"
done
"#;

fn stand_in(folder: &Path) -> PathBuf {
    let path = folder.join("emulator");
    std::fs::write(&path, EMULATOR).unwrap();
    make_executable(&path);
    path
}

fn make_executable(path: &Path) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(path, mode).unwrap();
}

/// The command with this broker and an emulator.
fn wrapped(socket: &Path, emulator: &Path, arguments: &[OsString]) -> Output {
    let mut qemu = program();
    qemu.args(["qemu", "--wait", "0", "--socket"]).arg(socket).arg("--").arg(emulator);
    qemu.args(arguments).output().unwrap()
}

fn object(kind: &str, id: &str) -> [OsString; 2] {
    ["-object".into(), format!("memory-backend-{kind},id={id},size={UNIT},share=on").into()]
}

/// Arguments of a guest of two nodes.
fn two_objects() -> Vec<OsString> {
    let numa = |id: &str| ["-numa".into(), format!("node,memdev={id}").into()];
    [object("memfd", "a"), numa("a"), object("ram", "b"), numa("b")].concat()
}

fn one_object() -> Vec<OsString> {
    let machine = ["-machine".into(), "q35,memory-backend=a".into()];
    [machine, object("memfd", "a")].concat()
}

/// Every argument on a line.
fn lines(arguments: &[OsString]) -> Vec<u8> {
    arguments.iter().flat_map(|a| [a.clone().into_vec(), b"\n".to_vec()].concat()).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn leased(_: Backing) {
    let daemon = Daemon::new(Backing::Base, 1, &[]);
    let emulator = stand_in(daemon.folder.path());
    for _ in 0..2 {
        daemon.until(|status| status.ready == 1);
        let output = wrapped(&daemon.socket(), &emulator, &one_object());
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let said = text(&output.stdout);
        let object =
            format!("memory-backend-file,id=a,size={UNIT},share=on,mem-path=/proc/self/fd/");
        assert!(said.contains(&object), "{said}");
        assert!(said.ends_with(&format!("00 00 00 00\n{UNIT} bytes\n")), "{said}");
        daemon.until(|status| status.leases == 0);
    }
    assert_eq!(daemon.until(|_| true).given, 2);
}

fn two_nodes(_: Backing) {
    let daemon = Daemon::new(Backing::Base, 2, &[]);
    let emulator = stand_in(daemon.folder.path());
    let said = text(&wrapped(&daemon.socket(), &emulator, &two_objects()).stdout);
    assert_eq!(said.matches("00 00 00 00\n").count(), 2, "{said}");
    let quota = format!("*={}", UNIT * 3 / 2);
    let daemon = Daemon::new(Backing::Base, 2, &["--quota", &quota]);
    let output = wrapped(&daemon.socket(), &emulator, &two_objects());
    assert_eq!(output.stdout, lines(&two_objects()));
    assert!(text(&output.stderr).contains("no lease of 4MiB for b"), "{output:?}");
    let status = daemon.until(|status| status.leases == 0);
    assert_eq!(status.given, 1);
}

fn as_asked(_: Backing) {
    let daemon = Daemon::new(Backing::Base, 1, &[]);
    let emulator = stand_in(daemon.folder.path());
    let none = socket(&daemon.folder.path().join("none"));
    let sized = |size: &str| -> Vec<OsString> {
        let resized = |a: OsString| text(&a.into_vec()).replace(&UNIT.to_string(), size).into();
        one_object().into_iter().map(resized).collect()
    };
    for (socket, arguments, reason) in [
        (none, one_object(), "--unit 4MiB --socket"),
        (daemon.socket(), sized("1G"), "1 GiB were asked for"),
    ] {
        let output = wrapped(&socket, &emulator, &arguments);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, lines(&arguments));
        let said = text(&output.stderr);
        assert!(
            said.contains(reason) && said.contains("; QEMU starts as asked. Remedy: "),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let output = wrapped(&daemon.socket(), Path::new("/nonexistent/qemu"), &one_object());
    assert!(text(&output.stderr).contains("cannot start /nonexistent/qemu"), "{output:?}");
    daemon.until(|status| status.leases == 0 && status.ready == 1);
    // More than any machine has: what the broker holds returns for it.
    let output = wrapped(&daemon.socket(), &emulator, &sized("1024T"));
    assert_eq!(output.stdout, lines(&sized("1024T")));
    assert!(text(&output.stderr).contains("; the broker gives 4MiB back; QEMU"), "{output:?}");
    assert_eq!(daemon.until(|_| true).ready, 0);
}

fn probe(_: Backing) {
    let printed = program().args(["qemu", "--script"]).output().unwrap();
    let installed = concat!(env!("CARGO_MANIFEST_DIR"), "/installed/hugekit-qemu");
    assert_eq!(printed.stdout, std::fs::read(installed).unwrap());
    let daemon = Daemon::new(Backing::Base, 1, &[]);
    let emulator = stand_in(daemon.folder.path());
    let mut arguments: Vec<OsString> =
        ["-S", "-no-user-config", "-machine", "none,accel=kvm:tcg"].map(OsString::from).to_vec();
    arguments.extend(["--".into(), "".into(), OsString::from_vec(b"\xff {} {fd}".to_vec())]);
    let version = [one_object(), vec!["-version".into()]].concat();
    for arguments in [arguments, version] {
        let output = wrapped(&daemon.socket(), &emulator, &arguments);
        assert_eq!((output.stdout, output.stderr), (lines(&arguments), vec![]));
    }
    assert_eq!(daemon.until(|_| true).given, 0);
}

fn left(_: Backing) {
    let daemon = Daemon::new(Backing::Base, 1, &[]);
    let emulator = stand_in(daemon.folder.path());
    let private = |arguments: Vec<OsString>| -> Vec<OsString> {
        let off = |a: OsString| text(&a.into_vec()).replace("share=on", "share=off").into();
        arguments.into_iter().map(off).collect()
    };
    for (arguments, names) in
        [(private(one_object()), &["a"][..]), (private(two_objects()), &["a", "b"])]
    {
        let output = wrapped(&daemon.socket(), &emulator, &arguments);
        assert_eq!(output.stdout, lines(&arguments));
        let said = text(&output.stderr);
        let begins: Vec<_> = names.iter().map(|name| format!("no lease for {name}: ")).collect();
        assert_eq!(said.lines().count(), names.len(), "{said}");
        assert!(said.lines().zip(&begins).all(|(line, begin)| line.starts_with(begin)), "{said}");
    }
    assert_eq!(daemon.until(|_| true).given, 0);
}

/// Sizes in hexadecimal, and objects that are described elsewhere.
fn spelled(_: Backing) {
    let daemon = Daemon::new(Backing::Base, 1, &[]);
    let emulator = stand_in(daemon.folder.path());
    let hexadecimal: Vec<OsString> = one_object()
        .into_iter()
        .map(|a| text(&a.into_vec()).replace(&UNIT.to_string(), &format!("{UNIT:#x}")).into())
        .collect();
    let output = wrapped(&daemon.socket(), &emulator, &hexadecimal);
    assert!(output.stderr.is_empty(), "{output:?}");
    assert!(text(&output.stdout).ends_with(&format!("00 00 00 00\n{UNIT} bytes\n")), "{output:?}");
    let file = daemon.folder.path().join("qemu.conf");
    let object =
        format!("[object \"mem0\"]\nqom-type = \"memory-backend-memfd\"\nsize = \"{UNIT}\"\n");
    std::fs::write(&file, object + "[numa]\nmemdev = \"mem0\"\n").unwrap();
    let arguments: Vec<OsString> = vec!["-readconfig".into(), file.into()];
    let output = wrapped(&daemon.socket(), &emulator, &arguments);
    assert_eq!(output.stdout, lines(&arguments));
    let said = text(&output.stderr);
    assert!(said.starts_with("no lease for mem0: a file of -readconfig"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(daemon.until(|_| true).given, 1);
}

fn stopped(_: Backing) {
    let daemon = Daemon::new(Backing::Base, 1, &[]);
    let emulator = stand_in(daemon.folder.path());
    daemon.signal(Signal::STOP);
    let output = wrapped(&daemon.socket(), &emulator, &one_object());
    daemon.signal(Signal::CONT);
    assert_eq!(output.stdout, lines(&one_object()));
    assert!(text(&output.stderr).contains("has not answered for 1s"), "{output:?}");
}

fn script(_: Backing) {
    let daemon = Daemon::new(Backing::Base, 1, &[]);
    let folder = daemon.folder.path();
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("installed/hugekit-qemu");
    std::fs::copy(installed, folder.join("hugekit-qemu")).unwrap();
    symlink(program().get_program(), folder.join("hugekit")).unwrap();
    let starts = |script: &Path| {
        daemon.until(|status| status.ready == 1);
        let mut script = Command::new(script);
        script.env("HUGEKIT_QEMU", stand_in(folder)).env("HUGEKIT_QEMU_WAIT", "0");
        let output = script.env("HUGEKIT_QEMU_SOCKET", daemon.socket()).args(one_object()).output();
        let said = text(&output.unwrap().stdout);
        assert!(said.ends_with(&format!("00 00 00 00\n{UNIT} bytes\n")), "{said}");
    };
    starts(&folder.join("hugekit-qemu"));
    // By a link in another folder, and by one whose folder has the command, as the script's has not.
    let [links, scripts] = ["links", "scripts"].map(|name| folder.join(name));
    std::fs::create_dir(&links).unwrap();
    symlink("../hugekit-qemu", links.join("emulator")).unwrap();
    starts(&links.join("emulator"));
    std::fs::create_dir(&scripts).unwrap();
    std::fs::copy(folder.join("hugekit-qemu"), scripts.join("script")).unwrap();
    symlink("scripts/script", folder.join("link")).unwrap();
    starts(&folder.join("link"));
    // Beside no command, so the first of the folders in PATH has to have it.
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let run = |path: &str| {
        let mut script = Command::new(scripts.join("script"));
        script.env("HUGEKIT_QEMU", stand_in(folder)).env("PATH", path).arg("-version");
        script.output().unwrap()
    };
    assert_eq!(run(&path).status.code(), Some(0));
    std::fs::remove_file(folder.join("hugekit")).unwrap();
    let output = run("/usr/bin:/bin");
    if output.status.code() != Some(0) {
        assert!(text(&output.stderr).contains("no command hugekit beside"), "{output:?}");
    }
}

fn no_emulator(_: Backing) {
    let usual = format!("/usr/bin/qemu-system-{}", std::env::consts::ARCH);
    let places = [&usual, "/usr/libexec/qemu-kvm", "/usr/bin/kvm"];
    if places.iter().any(|path| Path::new(path).exists()) {
        skip("this machine has an emulator");
    }
    let folder = tempfile::tempdir().unwrap();
    symlink(program().get_program(), folder.path().join("hugekit")).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("installed/hugekit-qemu");
    let output = Command::new(installed).env("PATH", path).env_remove("HUGEKIT_QEMU").output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    for part in places.into_iter().chain(["remedy: set HUGEKIT_QEMU"]) {
        assert!(said.contains(part), "{said}");
    }
}

/// The rules for AppArmor have the paths of this command.
fn apparmor(_: Backing) {
    let printed = text(&program().args(["qemu", "--apparmor"]).output().unwrap().stdout);
    let command = PathBuf::from(program().get_program());
    assert!(printed.contains(&format!("\n{} ix,\n", command.display())), "{printed}");
}

/// A security profile or the owner's rights forbid QEMU what the broker has given: here the descriptor is all that there
/// is, as a file system of processes is missing.
fn unopenable(_: Backing) {
    let daemon = Daemon::new(Backing::Base, 1, &[]);
    let emulator = stand_in(daemon.folder.path());
    let script = "umount -l /proc && exec \"$0\" \"$@\"";
    let mut apart = Command::new("unshare");
    apart.args(["--mount", "sh", "-c", script]).arg(program().get_program());
    apart.args(["qemu", "--wait", "0", "--socket"]).arg(daemon.socket()).arg("--");
    let output = apart.arg(emulator).args(one_object()).output().unwrap();
    let said = text(&output.stderr);
    if ["unshare: ", "umount: "].iter().any(|refusal| said.contains(refusal)) {
        skip(format!("the file system of processes cannot be hidden: {said}"));
    }
    assert_eq!(output.stdout, lines(&one_object()), "{said}");
    assert!(said.contains("may not open its lease: "), "{said}");
    assert!(said.contains("Remedy: permit what `hugekit qemu --apparmor` prints"), "{said}");
    daemon.until(|status| status.leases == 0);
}

fn guest(backing: Backing) {
    let daemon = Daemon::new(backing, 1, &[]);
    let (rom, said) = (daemon.folder.path().join("rom"), daemon.folder.path().join("said"));
    let (image, byte) = firmware();
    std::fs::write(&rom, image).unwrap();
    let mut qemu = program();
    qemu.args(["qemu", "--socket"]).arg(daemon.socket()).arg("--");
    emulator().unwrap().pass_to(&mut qemu);
    qemu.args(["-accel", "tcg", "-nodefaults", "-display", "none", "-m", "4M"]);
    qemu.arg("-bios").arg(&rom).arg("-debugcon").arg(format!("file:{}", said.display()));
    qemu.args(["-machine", "pc,memory-backend=pc.ram", "-object"]);
    qemu.arg(r#"{"qom-type":"memory-backend-ram","id":"pc.ram","size":4194304,"prealloc":true}"#);
    let mut qemu = qemu.stdin(Stdio::null()).spawn().unwrap();
    let since = std::time::Instant::now();
    while std::fs::read(&said).unwrap_or_default() != [byte] {
        assert!(qemu.try_wait().unwrap().is_none(), "QEMU ended");
        assert!(since.elapsed() < PATIENCE, "the guest says nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", qemu.id())).unwrap();
    assert!(maps.contains("hugekit:lease"), "{maps}");
    qemu.kill().unwrap();
    qemu.wait().unwrap();
    daemon.until(|status| status.leases == 0);
}
