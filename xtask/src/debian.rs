//! Packages from Debian's archive that are unpacked below `target/` and never installed: apt downloads
//! and verifies them as always, but with lists of its own, so that the machine gets neither packages nor
//! a foreign architecture.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Something that tests need: what a person would do about its absence, and Debian's packages.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) name: &'static str,
    pub(crate) remedy: &'static str,
    /// For this machine; their dependencies come with them.
    pub(crate) packages: &'static [&'static str],
    /// For arm64; without their dependencies, which are only needed there.
    pub(crate) arm64_packages: &'static [&'static str],
}

/// A missing package, and the remedy.
pub(crate) fn remedies(missing: &[&Piece]) -> String {
    let all: Vec<_> =
        missing.iter().map(|piece| format!("no {} ({})", piece.name, piece.remedy)).collect();
    all.join(", ")
}

/// Debian's packages, unpacked and not installed.
#[derive(Debug)]
pub(crate) struct Debian {
    /// The tests that need them, in messages.
    whose: &'static str,
    dir: PathBuf,
    /// The folder that would be `/` if they were installed.
    root: PathBuf,
}

impl Debian {
    pub(crate) fn new(whose: &'static str, dir: PathBuf) -> Self {
        Self { whose, root: dir.join("root"), dir }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The program of that name which does what is asked of it: the machine's, else the unpacked.
    pub(crate) fn either(&self, name: &str, suits: fn(&Path, &Self) -> bool) -> Option<PathBuf> {
        [PathBuf::from(name), self.root.join("usr/bin").join(name)]
            .into_iter()
            .find(|program| suits(program, self))
    }

    /// The output of a program, if it runs and succeeds.
    pub(crate) fn answer(&self, program: &Path, arguments: &[&str]) -> Option<String> {
        let output = self.command(program.as_os_str()).args(arguments).output().ok()?;
        let printed = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| printed.trim().to_owned())
    }

    /// A command whose children find the unpacked libraries, too.
    pub(crate) fn command(&self, program: &OsStr) -> Command {
        let unpacked = self.root.join(format!("usr/lib/{}-linux-gnu", env::consts::ARCH));
        let inherited = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let paths = [unpacked].into_iter().chain(env::split_paths(&inherited));
        let mut command = Command::new(program);
        if let Ok(paths) = env::join_paths(paths) {
            command.env("LD_LIBRARY_PATH", paths);
        }
        command
    }

    /// Downloads the packages of `missing` and unpacks them, all or nothing.
    pub(crate) fn fetch(&self, missing: &[&Piece]) -> Result<()> {
        eprintln!("{}: fetching Debian packages into {}", self.whose, self.dir.display());
        let _ = fs::remove_dir_all(&self.dir);
        let apt = Apt::new(self.dir.join("apt"))?;
        apt.download(missing)?;
        let partial = self.dir.join("partial");
        for package in apt.downloaded()? {
            check(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&partial))?;
        }
        fs::rename(&partial, &self.root)?;
        Ok(fs::remove_dir_all(&apt.dir)?)
    }
}

/// apt with lists and a cache of its own. It reads which packages are installed here, in order not
/// to download them again, and changes none of them.
#[derive(Debug)]
struct Apt {
    dir: PathBuf,
}

impl Apt {
    fn new(dir: PathBuf) -> Result<Self> {
        for needed in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(needed))?;
        }
        Ok(Self { dir })
    }

    fn download(&self, missing: &[&Piece]) -> Result<()> {
        let packages = missing.iter().flat_map(|piece| piece.packages);
        let arm64: Vec<_> = missing.iter().flat_map(|piece| piece.arm64_packages).collect();
        let foreign = !arm64.is_empty();
        check(self.get(foreign).arg("update"))?;
        check(
            self.get(foreign)
                .args(["install", "--yes", "--download-only", "--no-install-recommends"])
                .args(packages),
        )?;
        if foreign {
            check(self.get(foreign).arg("download").args(arm64))?;
        }
        Ok(())
    }

    /// `apt-get`, to be given a command. arm64 is asked for only if a `foreign` package is needed,
    /// because not every mirror has it. The machine's locks are left alone, so that neither root is
    /// needed nor any installation disturbed: nothing they guard is written here.
    fn get(&self, foreign: bool) -> Command {
        let mut command = Command::new("apt-get");
        command
            .current_dir(self.archives())
            .env("LC_ALL", "C")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .arg("-qq")
            .args(["-o", "Debug::NoLocking=1"])
            .args(["-o", "Dir::State::status=/var/lib/dpkg/status"])
            .arg(option("Dir::State", &self.dir.join("state")))
            .arg(option("Dir::Cache", &self.dir.join("cache")));
        if foreign {
            command.args(["-o", "APT::Architectures::=arm64"]);
        }
        command
    }

    fn archives(&self) -> PathBuf {
        self.dir.join("cache/archives")
    }

    fn downloaded(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(self.archives())?.collect::<std::io::Result<Vec<_>>>()?;
        let paths = entries.into_iter().map(|entry| entry.path());
        Ok(paths.filter(|path| path.extension() == Some(OsStr::new("deb"))).collect())
    }
}

fn option(name: &str, value: &Path) -> OsString {
    let mut option = OsString::from(format!("-o{name}="));
    option.push(value);
    option
}

/// Runs a command that says something only if it fails.
fn check(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_owned();
    let output = command.output().with_context(|| format!("cannot start {program:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program:?} failed: {}", said.trim());
    Ok(())
}
