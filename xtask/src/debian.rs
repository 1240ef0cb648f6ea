//! Packages from Debian's archive that are unpacked below `target/` and never installed: apt downloads
//! and verifies them as always, but with lists of its own, so that the machine gets neither packages nor
//! a foreign architecture.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use hugekit_programs::Unpacked;

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

/// A suite of Debian's archive, which need not be one that this machine installs from.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    /// Whether packages of arm64 are taken from it.
    pub(crate) arm64: bool,
}

/// The keys that Debian has signed each suite with.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Debian's packages, unpacked and not installed.
#[derive(Debug)]
pub(crate) struct Debian {
    /// The tests that need them, in messages.
    whose: &'static str,
    dir: PathBuf,
    unpacked: Unpacked,
}

impl Debian {
    pub(crate) fn new(whose: &'static str, dir: PathBuf) -> Self {
        Self { whose, unpacked: Unpacked::new(dir.join("root")), dir }
    }

    /// The folder that would be `/` if they were installed.
    pub(crate) fn root(&self) -> &Path {
        self.unpacked.root()
    }

    pub(crate) fn unpacked(&self) -> &Unpacked {
        &self.unpacked
    }

    /// The program of that name which does what is asked of it: the machine's, else the unpacked.
    pub(crate) fn either(&self, name: &str, suits: fn(&Path, &Self) -> bool) -> Option<PathBuf> {
        let either = [PathBuf::from(name), self.unpacked.path(name)];
        either.into_iter().find(|program| suits(program, self))
    }

    /// The output of a program, if it runs and succeeds.
    pub(crate) fn answer(&self, program: &Path, arguments: &[&str]) -> Option<String> {
        let output = self.command(program.as_os_str()).args(arguments).output().ok()?;
        let printed = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| printed.trim().to_owned())
    }

    /// A command whose children find the unpacked libraries, too.
    pub(crate) fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new(program);
        self.unpacked.lend_libraries(&mut command);
        command
    }

    /// Debian's archive, from where this machine gets its packages.
    pub(crate) fn archive(&self) -> Result<String> {
        let apt = Apt::new(self.dir.join("apt"))?;
        let archive = apt.archive();
        fs::remove_dir_all(&apt.dir)?;
        archive
    }

    /// Downloads the packages of `missing` and unpacks them, all or nothing.
    pub(crate) fn fetch(&self, missing: &[&Piece]) -> Result<()> {
        eprintln!("{}: fetching Debian packages into {}", self.whose, self.dir.display());
        let _ = fs::remove_dir_all(&self.dir);
        let apt = Apt::new(self.dir.join("apt"))?;
        apt.download(missing)?;
        self.unpack(&apt)
    }

    /// Downloads packages of a suite and unpacks them, all or nothing: those of that name, and of what they depend
    /// on, and that depends on, only what is `wanted`.
    pub(crate) fn fetch_from(
        &self,
        suite: &Suite,
        packages: &[&str],
        wanted: fn(&str) -> bool,
    ) -> Result<()> {
        eprintln!("{}: fetching {} of {}", self.whose, packages.join(", "), suite.name);
        let _ = fs::remove_dir_all(&self.dir);
        let apt = Apt::of_suite(self.dir.join("apt"), suite)?;
        apt.download_wanted(suite, packages, wanted)?;
        self.unpack(&apt)
    }

    fn unpack(&self, apt: &Apt) -> Result<()> {
        let partial = self.dir.join("partial");
        for package in apt.downloaded()? {
            check(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&partial))?;
        }
        fs::rename(&partial, self.root())?;
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

    /// apt that knows this suite alone.
    fn of_suite(dir: PathBuf, suite: &Suite) -> Result<Self> {
        let apt = Self::new(dir)?;
        let source = format!("deb [signed-by={KEYS}] {} {} main\n", apt.archive()?, suite.name);
        fs::write(apt.dir.join("sources.list"), source)?;
        Ok(apt)
    }

    /// Debian's archive, from where this machine is told to get it: the mirror that it can reach. Security updates,
    /// which have a label of their own, come from another one.
    fn archive(&self) -> Result<String> {
        check(self.get(false).arg("update"))?;
        let debians = ["Origin: Debian", "Label: Debian", "Component: main"];
        let mirrors =
            check(self.get(false).args(["indextargets", "--format", "$(REPO_URI)"]).args(debians))?;
        let first = mirrors.lines().next().context("apt has no source that is Debian's archive")?;
        Ok(first.to_owned())
    }

    fn download_wanted(
        &self,
        suite: &Suite,
        packages: &[&str],
        wanted: fn(&str) -> bool,
    ) -> Result<()> {
        check(self.of_sources("apt-get", suite).arg("update"))?;
        let full = |name: &str| if suite.arm64 { format!("{name}:arm64") } else { name.to_owned() };
        let mut all: Vec<String> = packages.iter().map(|&name| name.to_owned()).collect();
        let mut next = 0;
        while let Some(name) = all.get(next) {
            let said = check(self.of_sources("apt-cache", suite).args(["show", &full(name)]))
                .with_context(|| format!("{} has no {name}", suite.name))?;
            for dependency in dependencies(&said).into_iter().filter(|name| wanted(name)) {
                if !all.contains(&dependency) {
                    all.push(dependency);
                }
            }
            next += 1;
        }
        let names = all.iter().map(|name| full(name));
        check(self.of_sources("apt-get", suite).arg("download").args(names))?;
        Ok(())
    }

    fn of_sources(&self, program: &str, suite: &Suite) -> Command {
        let mut command = self.command(program, suite.arm64);
        command
            .arg(option("Dir::Etc::sourcelist", &self.dir.join("sources.list")))
            .args(["-o", "Dir::Etc::sourceparts=/dev/null"]);
        command
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
        self.command("apt-get", foreign)
    }

    fn command(&self, program: &str, foreign: bool) -> Command {
        let mut command = Command::new(program);
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

/// The first of each alternative in the `Depends:` of what `apt-cache show` prints.
fn dependencies(shown: &str) -> Vec<String> {
    let fields = shown.lines().filter_map(|line| line.strip_prefix("Depends: "));
    let alternatives = fields.flat_map(|field| field.split(", "));
    let name = |alternative: &str| alternative.split([' ', ':', '|']).next().map(str::to_owned);
    alternatives.filter_map(name).collect()
}

/// Runs a command that says something of interest only if it fails, and returns what it has printed.
fn check(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_owned();
    let output = command.output().with_context(|| format!("cannot start {program:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program:?} failed: {}", said.trim());
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_first_alternatives_without_versions() {
        let shown = "Package: linux-image-7\nDepends: linux-base (>= 4.3), dracut | initramfs-tools, x:any\n\n\
                     Package: linux-image-amd64\nDepends: linux-image-7 (= 7.3)\n";
        assert_eq!(dependencies(shown), ["linux-base", "dracut", "x", "linux-image-7"]);
    }
}
