//! File systems that can be warmed, and the message for the others: each is made in a file and mounted, as root.
//!
//! `cargo xtask fetch file-systems` unpacks the programs that make them.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use hugekit_programs::Unpacked;
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_testing::fuse::{Call, Mounted, Reply};
use hugekit_testing::trials::{Checks, skip, trials};
use hugekit_warm::{WarmError, WarmMode, WarmOptions, WarmReport, Warmer, WhySmall, warm};

const UNITS: usize = 6;
const BYTES: usize = UNITS * HUGE_PAGE_BYTES + 4097;

const EACH: Checks = hugekit_testing::checks![
    ext4_is_warmed,
    ext4_that_journals_data_is_named,
    ext4_with_encryption_is_named,
    ext4_with_verity_is_named,
    xfs_is_warmed,
    xfs_copy_that_shares_its_blocks_has_a_cache_of_its_own,
    erofs_is_warmed,
    erofs_with_compression_is_warmed,
    overlay_is_warmed_as_the_file_system_below_it,
    tmpfs_is_collapsed_or_named,
    btrfs_is_named,
    squashfs_is_named,
    fuse_is_named,
    file_that_cannot_be_read_is_an_error_with_the_place,
];

fn main() {
    let is_root = rustix::process::geteuid().is_root();
    let lacking = (!is_root).then(|| "only root mounts file systems".to_owned());
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials(EACH, lacking)).exit();
}

/// What the kernel of a file system does.
enum Expected {
    /// Huge folios, from this release of Linux on. Older ones may have them, too.
    HugeSince(u32, u32),
    /// None, up to this release.
    NamedBefore(u32, u32),
}

fn release() -> (u32, u32) {
    let name = rustix::system::uname();
    let mut numbers = name.release().to_str().unwrap().split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().unwrap().parse().unwrap();
    (number(), number())
}

fn bytes() -> Vec<u8> {
    (0..BYTES).map(|at| (at / 4096 % 251) as u8 + 1).collect()
}

/// Warms a file of these bytes, and checks the report. It is printed: guests of the fleet have other kernels.
fn check(path: &Path, name: &str, expected: Expected) {
    let report = warm(path).unwrap();
    println!("{name}: {report}");
    assert!(fs::read(path).unwrap() == bytes(), "other bytes");
    let why = report.left.as_ref().map(|left| &left.why);
    match (why, expected) {
        (None, Expected::HugeSince(..)) => {}
        (None, Expected::NamedBefore(major, minor)) => {
            assert!(release() >= (major, minor), "{name} has huge folios: {report}");
        }
        (Some(WhySmall::Fragmented { .. }), _) => skip("memory is fragmented"),
        (Some(WhySmall::FileSystem { name: named }), expected) => {
            assert_eq!(named, name);
            if let Expected::HugeSince(major, minor) = expected {
                assert!(release() < (major, minor), "{report}");
            }
            check_message(&report, name);
        }
        (Some(_), _) => panic!("{report}"),
    }
}

/// The line that a user sees has the name, and what can be done.
fn check_message(report: &WarmReport, name: &str) {
    let line = report.to_string();
    assert!(line.contains(&format!(": {name} makes no huge pages")), "{line}");
    assert!(line.contains("(remedy: ") && line.contains("hugekit image load"), "{line}");
}

/// A file system that is unmounted with this value.
struct Mount {
    folder: tempfile::TempDir,
}

impl Mount {
    fn new(arguments: &[&str], source: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        let output = mount.args(arguments).arg(source).arg(folder.path()).output();
        match output {
            Ok(output) if output.status.success() => Self { folder },
            Ok(output) => skip(String::from_utf8_lossy(&output.stderr).trim()),
            Err(error) => skip(format!("mount: {error}")),
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("file")
    }

    /// Writes the file, by pieces that no file system has huge folios for.
    fn write(&self) -> PathBuf {
        write(&self.file());
        self.file()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.folder.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{:?}", self.folder);
    }
}

fn write(path: &Path) {
    let mut file = File::create(path).unwrap();
    bytes().chunks(4096).for_each(|piece| file.write_all(piece).unwrap());
    file.sync_all().unwrap();
}

/// A folder beside the other results of the build: a file in it is on a disk, unless the guest of a fleet has none.
fn folder() -> tempfile::TempDir {
    fs::create_dir_all(env!("CARGO_TARGET_TMPDIR")).unwrap();
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// An empty file in a folder, on which a program makes a file system.
fn image(folder: &Path, program: &str, arguments: &[&str]) -> PathBuf {
    let image = folder.join("image");
    File::create(&image).unwrap().set_len(512 << 20).unwrap();
    run(program, arguments, &[&image]);
    image
}

/// Runs a program of the machine, or an unpacked one.
fn run(program: &str, arguments: &[&str], paths: &[&Path]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/file-systems/root");
    let unpacked = Unpacked::new(root);
    let Some(found) = unpacked.of_administrator(program) else {
        skip(format!("{program} is not here: cargo xtask fetch file-systems"));
    };
    let output = unpacked.command(found.as_os_str()).args(arguments).args(paths).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn on_ext4(features: &[&str], options: &str, check: impl FnOnce(&Mount)) {
    let folder = folder();
    let image = image(folder.path(), "mkfs.ext4", &[&["-q"], features].concat());
    check(&Mount::new(&["-t", "ext4", "-o", options], &image));
}

fn ext4(features: &[&str], options: &str, expected: Expected) {
    on_ext4(features, options, |mount| check(&mount.write(), "ext4", expected));
}

fn ext4_is_warmed() {
    ext4(&[], "loop", Expected::HugeSince(6, 16));
}

fn ext4_that_journals_data_is_named() {
    ext4(&[], "loop,data=journal", Expected::NamedBefore(7, 2));
}

/// No file of it need be encrypted.
fn ext4_with_encryption_is_named() {
    ext4(&["-O", "encrypt"], "loop", Expected::NamedBefore(7, 2));
}

fn ext4_with_verity_is_named() {
    ext4(&["-O", "verity"], "loop", Expected::NamedBefore(7, 2));
}

fn on_xfs(check: impl FnOnce(&Mount)) {
    let folder = folder();
    let image = image(folder.path(), "mkfs.xfs", &["-q"]);
    check(&Mount::new(&["-t", "xfs", "-o", "loop"], &image));
}

fn xfs_is_warmed() {
    on_xfs(|mount| check(&mount.write(), "xfs", Expected::HugeSince(5, 18)));
}

fn xfs_copy_that_shares_its_blocks_has_a_cache_of_its_own() {
    on_xfs(|mount| {
        let (path, copy) = (mount.write(), mount.folder.path().join("copy"));
        if !warm(&path).unwrap().is_warm() {
            skip("memory is fragmented");
        }
        rustix::fs::ioctl_ficlone(File::create(&copy).unwrap(), File::open(&path).unwrap())
            .unwrap();
        let options = WarmOptions { mode: WarmMode::Check, ..WarmOptions::default() };
        let found = Warmer::new(options).run(&copy).unwrap().report;
        assert_eq!((found.huge(), found.units()), (0, UNITS as u64));
        check(&copy, "xfs", Expected::HugeSince(5, 18));
    });
}

/// Of a file system that is made from a folder.
fn read_only(program: &str, kind: &str, arguments: &[&str], expected: Expected) {
    let (folder, content) = (folder(), folder());
    write(&content.path().join("file"));
    let image = folder.path().join("image");
    let paths: [&Path; 2] =
        if kind == "erofs" { [&image, content.path()] } else { [content.path(), &image] };
    run(program, arguments, &paths);
    let mount = Mount::new(&["-t", kind, "-o", "loop,ro"], &image);
    check(&mount.file(), kind, expected);
}

fn erofs_is_warmed() {
    read_only("mkfs.erofs", "erofs", &["--quiet"], Expected::HugeSince(6, 12));
}

fn erofs_with_compression_is_warmed() {
    read_only("mkfs.erofs", "erofs", &["--quiet", "-zlz4"], Expected::HugeSince(6, 18));
}

fn squashfs_is_named() {
    read_only("mksquashfs", "squashfs", &[], Expected::NamedBefore(7, 2));
}

fn btrfs_is_named() {
    let folder = folder();
    let image = image(folder.path(), "mkfs.btrfs", &["-q"]);
    let mount = Mount::new(&["-t", "btrfs", "-o", "loop"], &image);
    check(&mount.write(), "btrfs", Expected::NamedBefore(7, 2));
}

fn overlay_is_warmed_as_the_file_system_below_it() {
    on_ext4(&[], "loop", |below| check_overlay(below.folder.path()));
}

fn check_overlay(folder: &Path) {
    let below = |name: &str| {
        let path = folder.join(name);
        fs::create_dir(&path).unwrap();
        path.display().to_string()
    };
    let (lower, upper, work) = (below("lower"), below("upper"), below("work"));
    write(&Path::new(&lower).join("file"));
    let expected = warm(Path::new(&lower).join("file")).unwrap();
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let mount = Mount::new(&["-t", "overlay", "-o", &options], "none".as_ref());
    let there = warm(mount.file()).unwrap();
    assert_eq!((there.already_huge, there.units()), (expected.huge(), expected.units()));
    // A file that is not written back yet: the pages are those of a file of the file system below.
    let own = mount.folder.path().join("own");
    bytes().chunks(4096).fold(File::create(&own).unwrap(), |mut file, piece| {
        file.write_all(piece).unwrap();
        file
    });
    check(&own, "overlay", Expected::HugeSince(6, 16));
}

fn tmpfs_is_collapsed_or_named() {
    let mount = Mount::new(&["-t", "tmpfs", "-o", "size=64m,huge=never"], "none".as_ref());
    check(&mount.write(), "tmpfs", Expected::HugeSince(u32::MAX, 0));
}

/// A file of FUSE whose reads the page cache keeps. Reads of any byte from `bad` on fail.
fn served(path: &Path, bad: u64) -> Mounted {
    let bytes = bytes();
    let answer = move |call| match call {
        Call::Read { offset, len } if offset + len as u64 > bad => Reply::Error(5),
        Call::Read { offset, len } => {
            let start = bytes.len().min(offset as usize);
            Reply::Bytes(bytes[start..bytes.len().min(start + len)].to_vec())
        }
        Call::Flush => Reply::Error(38),
    };
    let mounted = Mounted::cached_at(path, BYTES as u64, answer);
    mounted.unwrap_or_else(|| skip("FUSE is not available"))
}

fn fuse_is_named() {
    let folder = folder();
    let served = served(&folder.path().join("served"), u64::MAX);
    check(served.path(), "fuse", Expected::NamedBefore(7, 4));
}

fn file_that_cannot_be_read_is_an_error_with_the_place() {
    let folder = folder();
    let bad = 3 * HUGE_PAGE_BYTES as u64 + 4096;
    let served = served(&folder.path().join("served"), bad);
    match warm(served.path()).unwrap_err() {
        WarmError::Read { at, source } => {
            assert_eq!(source.raw_os_error(), Some(5));
            // The kernel asks for several pages at once.
            assert!((bad - (128 << 10)..=bad).contains(&at), "{at}");
        }
        other => panic!("{other}"),
    }
}
