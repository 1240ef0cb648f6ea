//! XFS in a file of the disk, whose page cache differs from that of the disk's own file system.
//!
//! Nobody else sees it: as soon as it is mounted, its mount has no place in the tree any more, and the file no name. Both go
//! with the last descriptor, also if the lab is killed.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hugekit_machine::size::{GIB, Size};
use hugekit_programs::Unpacked;

/// Bytes for the file system's own data. Smaller ones are refused when they are made.
const OWN: u64 = GIB as u64 / 2;

/// A mounted file system, with its root open.
#[derive(Debug)]
pub(in crate::experiments) struct Xfs {
    root: File,
}

impl Xfs {
    /// Makes one below a folder, with room for this many bytes. The error is the reason why there is none.
    pub(in crate::experiments) fn make(folder: &Path, room: u64) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root mounts file systems".to_owned());
        }
        let free = super::free_bytes(folder).map_err(|error| error.to_string())?;
        if free < room + OWN {
            let size = |bytes| Size(usize::try_from(bytes).unwrap_or(usize::MAX));
            let (needed, free) = (size(room + OWN), size(free));
            return Err(format!("the disk has too little room: {needed} needed, {free} free"));
        }
        let place = tempfile::tempdir_in(folder).map_err(|error| error.to_string())?;
        let image = place.path().join("image");
        let made = File::create(&image).and_then(|file| file.set_len(room + OWN));
        made.map_err(|error| error.to_string())?;
        make_file_system(&image)?;
        let point = place.path().join("mount");
        fs::create_dir(&point).map_err(|error| error.to_string())?;
        // Reads of the file system come from the disk, and not from a second cache.
        let device = run(
            Command::new("losetup").args(["--direct-io=on", "--find", "--show"]).arg(&image),
            "losetup",
        )?;
        let device = Device(device.trim().to_owned());
        run(Command::new("mount").args(["-t", "xfs", &device.0]).arg(&point), "mount")?;
        let root = File::open(&point);
        run(Command::new("umount").arg("--lazy").arg(&point), "umount")?;
        root.map(|root| Self { root }).map_err(|error| error.to_string())
    }

    /// Its root, by a path that children of this process can open, too.
    pub(in crate::experiments) fn folder(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.root.as_raw_fd()).into()
    }
}

/// A block device of a file. When it is dropped, it goes with the last mount of it.
struct Device(String);

impl Drop for Device {
    fn drop(&mut self) {
        let _ = run(Command::new("losetup").args(["--detach", &self.0]), "losetup");
    }
}

/// By the machine's program, or by one that `cargo xtask fetch` has unpacked where cargo has built this one.
fn make_file_system(image: &Path) -> Result<(), String> {
    let own = std::env::current_exe().unwrap_or_default();
    let target = own.ancestors().find(|folder| folder.ends_with("target"));
    let unpacked = Unpacked::new(target.unwrap_or(Path::new("/")).join("file-systems/root"));
    let program = unpacked.of_administrator("mkfs.xfs");
    let program = program.ok_or("no mkfs.xfs (apt-get install xfsprogs)")?;
    run(unpacked.command(program.as_os_str()).arg("-q").arg(image), "mkfs.xfs").map(drop)
}

/// The output of a program, or the reason why it has failed.
fn run(command: &mut Command, name: &str) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).env("LC_ALL", "C").output();
    let output = output.map_err(|error| format!("{name}: {error}"))?;
    let text = |bytes: &[u8]| hugekit_machine::plain(String::from_utf8_lossy(bytes).trim());
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("{name}: {}", text(&output.stderr))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use hugekit_machine::size::MIB;

    use super::*;

    fn devices() -> String {
        run(&mut Command::new("losetup"), "losetup").unwrap()
    }

    #[test]
    fn files_are_written_and_nothing_stays_behind() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR").to_owned() + "/../target");
        let folder = folder.unwrap();
        let xfs = match Xfs::make(folder.path(), 64 * MIB as u64) {
            Ok(xfs) => xfs,
            Err(reason) => {
                assert!(reason.contains("root") || reason.contains("mkfs.xfs"), "{reason}");
                return hugekit_testing::trials::skipped(reason);
            }
        };
        assert!(folder.path().read_dir().unwrap().next().is_none());
        let path = xfs.folder().join("file");
        fs::write(&path, vec![7; 4 * MIB]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), vec![7; 4 * MIB]);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let place = folder.path().canonicalize().unwrap();
        let place = place.to_str().unwrap();
        assert!(!mounts.contains(place) && devices().contains(place), "{mounts} {}", devices());
        drop(xfs);
        // The kernel ends a mount after the descriptor is closed.
        let until = Instant::now() + Duration::from_secs(60);
        while devices().contains(place) {
            assert!(Instant::now() < until, "{}", devices());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn disk_without_room_is_the_reason() {
        if rustix::process::geteuid().is_root() {
            let reason = Xfs::make(&std::env::temp_dir(), 1 << 60).unwrap_err();
            assert!(reason.starts_with("the disk has too little room: "), "{reason}");
        }
    }
}
