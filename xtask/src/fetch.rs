//! Packages of Debian's archive, unpacked below `target/` and never installed: apt downloads and verifies them as always,
//! but with lists of its own, so that this machine gets neither packages nor a foreign architecture.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use hugekit_programs::Unpacked;
use serde::Deserialize;

use crate::run::{may_install, output, succeed, target_dir};

/// Debian signs each suite with these keys.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A script that starts an unpacked program begins with this.
const STARTER: &str = "#!/bin/sh\nhere=$(dirname \"$(readlink -f \"$0\")\")\nroot=$here/root\n";

/// Packages that are unpacked together: a row of packages.toml.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Package {
    /// Below `target/`.
    pub(crate) folder: String,
    pub(crate) programs: Vec<String>,
    pub(crate) packages: Vec<String>,
    pub(crate) arm64: Vec<String>,
    /// A suite that this machine need not install from.
    pub(crate) suite: Option<String>,
    pub(crate) wanted: Vec<String>,
    pub(crate) starter: Option<String>,
    pub(crate) remedy: Option<String>,
}

/// Unpacks those that are missing. Whether all are there.
pub(crate) fn all(names: &[String]) -> Result<bool> {
    let mut all = true;
    for name in names {
        let fetched = Package::named(name).and_then(|package| match package.is_here() {
            true => Ok(()),
            false => package.fetch(),
        });
        if let Err(error) = fetched {
            eprintln!("{name}: {error:#}");
            all = false;
        }
    }
    Ok(all)
}

impl Package {
    pub(crate) fn named(name: &str) -> Result<Self> {
        let mut table: BTreeMap<String, Self> =
            toml::from_str(include_str!("../packages.toml")).context("packages.toml")?;
        table.remove(name).with_context(|| format!("packages.toml has no {name}"))
    }

    pub(crate) fn dir(&self) -> PathBuf {
        target_dir(&self.folder)
    }

    pub(crate) fn unpacked(&self) -> Unpacked {
        Unpacked::new(self.dir().join("root"))
    }

    /// A path in the folder that would be `/` if the packages were installed.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir().join("root").join(name)
    }

    /// Returns true if the programs are on this machine, or unpacked.
    pub(crate) fn is_here(&self) -> bool {
        let unpacked = self.unpacked();
        let mut programs = self.programs.iter();
        unpacked.root().is_dir()
            || !self.programs.is_empty() && programs.all(|name| unpacked.answers(Path::new(name)))
    }

    /// The folders of the unpacked libraries.
    pub(crate) fn libraries(&self) -> [PathBuf; 2] {
        ["usr/lib", "lib"]
            .map(|lib| self.path(&format!("{lib}/{}-linux-gnu", std::env::consts::ARCH)))
    }

    /// The program of that name which `suits`: the machine's, else the unpacked one.
    pub(crate) fn either(&self, name: &str, suits: fn(&Path, &Self) -> bool) -> Option<PathBuf> {
        let either = [PathBuf::from(name), self.unpacked().path(name)];
        either.into_iter().find(|program| suits(program, self))
    }

    /// The output of a program that finds the unpacked libraries, if it succeeds.
    pub(crate) fn said(&self, program: &Path, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new(program);
        self.unpacked().lend_libraries(&mut command);
        Some(crate::run::said(command.args(arguments))?.trim().to_owned())
    }

    /// Returns the missing programs, and a remedy.
    pub(crate) fn lack(&self) -> String {
        let names = [&self.packages[..], &self.arm64[..]].concat().join(" ");
        match &self.remedy {
            Some(remedy) => format!("no {names} ({remedy})"),
            None => format!("no {names} (apt-get install {names})"),
        }
    }

    /// Unpacks the packages if they are missing and may be fetched; the error names those that are missing.
    pub(crate) fn have(&self, is_there: impl Fn() -> bool) -> Result<()> {
        if !is_there() {
            ensure!(may_install(), self.lack());
            self.fetch().with_context(|| self.lack())?;
            ensure!(is_there(), self.lack());
        }
        Ok(())
    }

    /// Downloads the packages and unpacks them, all or nothing.
    pub(crate) fn fetch(&self) -> Result<()> {
        eprintln!(
            "fetching {} {} into {}",
            self.packages.join(" "),
            self.arm64.join(" "),
            self.dir().display()
        );
        let debs = crate::run::fresh(self.dir())?.join("debs");
        fs::create_dir_all(debs.join("partial"))?;
        let apt = Apt::new(self.suite.as_deref(), !self.arm64.is_empty(), debs.clone())?;
        let arm64 = self.arm64.iter().map(|name| format!("{name}:arm64"));
        let mut names: Vec<String> = arm64.collect();
        if self.suite.is_some() {
            names.extend_from_slice(&self.packages);
            names = apt.with_wanted(&names, &self.wanted)?;
        } else if !self.packages.is_empty() {
            // Packages that this machine has are downloaded, too, but not their dependencies.
            let install = ["install", "--reinstall", "-yd", "--no-install-recommends"];
            output(apt.command("apt-get").args(install).args(&self.packages))?;
        }
        if !names.is_empty() {
            output(apt.command("apt-get").arg("download").args(names))?;
        }
        self.unpack(&debs)?;
        if let Some(starter) = &self.starter {
            let script =
                self.dir().join(self.programs.first().context("a starter starts a program")?);
            fs::write(&script, format!("{STARTER}{starter}"))?;
            fs::set_permissions(&script, Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    fn unpack(&self, debs: &Path) -> Result<()> {
        let partial = self.dir().join("partial");
        for package in fs::read_dir(debs)? {
            let package = package?.path();
            if package.extension().is_some_and(|extension| extension == "deb") {
                succeed(Command::new("dpkg-deb").arg("--extract").args([&package, &partial]))?;
            }
        }
        fs::rename(&partial, self.dir().join("root"))?;
        Ok(fs::remove_dir_all(debs)?)
    }
}

/// Debian's archive, from where this machine gets its packages: the mirror that it can reach.
pub(crate) fn archive() -> Result<String> {
    let debs = target_dir("apt/debs");
    fs::create_dir_all(&debs)?;
    Apt::new(None, false, debs)?.archive()
}

/// apt with lists of its own, kept for the next package. It reads which packages are installed, in order not to download
/// them again, and changes none of them.
struct Apt {
    folder: PathBuf,
    debs: PathBuf,
    is_foreign: bool,
}

impl Apt {
    /// For this machine's suite or another one; arm64 only if a foreign package is needed, because not each mirror has it.
    fn new(suite: Option<&str>, is_foreign: bool, debs: PathBuf) -> Result<Self> {
        let name = format!("{}{}", suite.unwrap_or("own"), if is_foreign { "-arm64" } else { "" });
        let apt = Self { folder: target_dir("apt").join(name), debs, is_foreign };
        fs::create_dir_all(apt.folder.join("lists/partial"))?;
        if let Some(suite) = suite {
            let archive = archive()?;
            fs::write(apt.sources(), format!("deb [signed-by={KEYS}] {archive} {suite} main\n"))?;
        }
        output(apt.command("apt-get").arg("update"))?;
        Ok(apt)
    }

    fn sources(&self) -> PathBuf {
        self.folder.join("sources.list")
    }

    /// The machine's locks are left alone, so that neither root is needed nor any installation disturbed.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let mut set = |name: &str, value: &Path| {
            command.arg("-o").arg(format!("{name}={}", value.display()));
        };
        set("Debug::NoLocking", Path::new("1"));
        set("Acquire::Retries", Path::new("2"));
        set("Dir::State", &self.folder);
        set("Dir::State::status", Path::new("/var/lib/dpkg/status"));
        set("Dir::Cache", &self.folder);
        set("Dir::Cache::archives", &self.debs);
        if self.sources().exists() {
            set("Dir::Etc::sourcelist", &self.sources());
            set("Dir::Etc::sourceparts", Path::new("/dev/null"));
        }
        if self.is_foreign {
            set("APT::Architectures::", Path::new("arm64"));
        }
        command.arg("-qq").current_dir(&self.debs).env("LC_ALL", "C");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    fn archive(&self) -> Result<String> {
        let mut targets = self.command("apt-get");
        let debian = ["Origin: Debian", "Label: Debian", "Component: main"];
        let mirrors =
            output(targets.args(["indextargets", "--format", "$(REPO_URI)"]).args(debian))?;
        Ok(mirrors.lines().next().context("apt has no source that is Debian's archive")?.to_owned())
    }

    /// Returns these packages, and those of the wanted packages that they depend on.
    fn with_wanted(&self, names: &[String], wanted: &[String]) -> Result<Vec<String>> {
        let mut depends = self.command("apt-cache");
        depends.args([
            "depends",
            "--recurse",
            "--important",
            "-o",
            "APT::Cache::ShowOnlyFirstOr=true",
        ]);
        let printed = output(depends.args(names))?;
        // Each package begins a line; what it depends on is indented.
        let is_wanted = |name: &&str| wanted.iter().any(|wanted| name.starts_with(wanted));
        let all = printed.lines().filter(is_wanted).map(str::to_owned).chain(names.to_owned());
        Ok(all.collect::<BTreeSet<_>>().into_iter().collect())
    }
}
