//! Roots to try things in: an empty one, and the smallest that Debian calls a system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::Place;
use crate::debian::{Debian, Piece};

static DEBOOTSTRAP: Piece = Piece {
    name: "debootstrap",
    remedy: "apt-get install debootstrap",
    packages: &["debootstrap"],
    arm64_packages: &[],
};

/// In a namespace of its own, so that nothing stays mounted; what follows is the root, then the program.
const ENTER: &str =
    "mount --rbind /proc \"$0/proc\" && mount --rbind /sys \"$0/sys\" && exec chroot \"$0\" \"$@\"";

/// A folder that programs take for `/`, with what the kernel says below /proc and /sys.
pub(super) struct Root {
    folder: PathBuf,
}

impl Root {
    /// One with nothing but these programs, which get their file names as names.
    pub(super) fn empty(place: &Place, programs: &[&Path]) -> Result<Self> {
        let root = Self { folder: place.tools.scratch("empty") };
        let _ = fs::remove_dir_all(&root.folder);
        for folder in ["proc", "sys"] {
            fs::create_dir_all(root.folder.join(folder))?;
        }
        for program in programs {
            root.add(program, Path::new("/"))?;
        }
        Ok(root)
    }

    /// A Debian of the machine's own release, with Python and nothing else that is not essential. The error is why there
    /// is none.
    pub(super) fn debian(place: &Place) -> Result<Self> {
        if let Some(obstacle) = obstacle() {
            bail!(obstacle);
        }
        let kept = place.tools.scratch("debian-root");
        if !kept.join("usr/bin/python3").exists() {
            bootstrap(place, &kept)?;
        }
        let folder = place.tools.scratch("debian-tried");
        let _ = fs::remove_dir_all(&folder);
        crate::succeed(Command::new("cp").arg("--archive").args([&kept, &folder]))?;
        Ok(Self { folder })
    }

    /// Of the root, as the rest of the machine sees it.
    pub(super) fn folder(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Copies a file into a folder of the root.
    pub(super) fn add(&self, file: &Path, to: &Path) -> Result<()> {
        let folder = self.folder.join(to.strip_prefix("/").unwrap_or(to));
        fs::create_dir_all(&folder)?;
        let name = file.file_name().context("a file has a name")?;
        fs::copy(file, folder.join(name))
            .with_context(|| format!("cannot copy {}", file.display()))?;
        Ok(())
    }

    /// The output of a program that succeeds in there, with no variables but these few.
    pub(super) fn run(&self, program: &[&str]) -> Result<String> {
        let mut command = enter();
        command.args(["sh", "-c", ENTER]).arg(&self.folder).args(program);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        let said = command.output().context("cannot start unshare")?;
        let output = String::from_utf8_lossy(&said.stdout).into_owned();
        let errors = String::from_utf8_lossy(&said.stderr);
        ensure!(
            said.status.success(),
            "{} in {}: {}\n{output}{errors}",
            program.join(" "),
            self.folder.display(),
            said.status
        );
        Ok(output)
    }
}

/// A command in mounts of its own, and as its own root where this process is not root.
fn enter() -> Command {
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
}

/// Why nothing can be tried in a root here.
pub(super) fn obstacle() -> Option<&'static str> {
    let permitted = enter().arg("true").output().is_ok_and(|ran| ran.status.success());
    (!permitted).then_some("this process may not mount (root can)")
}

fn is_root() -> bool {
    // SAFETY: reads a number.
    #[allow(unsafe_code)]
    let user = unsafe { libc::geteuid() };
    user == 0
}

/// Has debootstrap, unpacked, make a system from where this machine gets its packages.
fn bootstrap(place: &Place, folder: &Path) -> Result<()> {
    ensure!(is_root(), "debootstrap needs root");
    let debian = Debian::new("dist", place.tools.scratch("debootstrap"));
    let program = debian.root().join("usr/sbin/debootstrap");
    if !program.exists() {
        debian.fetch(&[&DEBOOTSTRAP])?;
    }
    let partial = folder.with_extension("partial");
    let _ = fs::remove_dir_all(&partial);
    let mut make = Command::new("sh");
    make.arg(program).args(["--variant=minbase", "--include=python3,python3-venv"]);
    make.args([&release()?]).arg(&partial).arg(debian.archive()?);
    make.env("DEBOOTSTRAP_DIR", debian.root().join("usr/share/debootstrap"));
    crate::environment::run(&mut make)?;
    Ok(fs::rename(partial, folder)?)
}

/// The name of the machine's Debian, such as `bookworm`.
fn release() -> Result<String> {
    let about = fs::read_to_string("/etc/os-release")?;
    let name = about.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.context("this machine is no Debian")?.trim_matches('"').to_owned())
}
