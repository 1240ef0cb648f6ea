//! Debian packages: the command with its manual and services, the shared library, and what programs are compiled with.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::roots::Root;
use super::tools::{PROFILE, Tools, crate_folder};
use super::{Place, Tried, VERSION, binary, libraries};
use crate::install::Install;

/// As deep as the folder that Debian gives to libraries of an architecture, whose name cargo-deb knows.
const LIBDIR: &str = "lib/multiarch";

/// In the folder of its architecture, so that those of several may be installed.
const BESIDE_OTHERS: [&str; 2] = ["--multiarch", "same"];

pub(super) fn make(place: &Place) -> Result<Tried> {
    let built = place.tools.build_portably("hugekit-c")?;
    lay_out(place, &built)?;
    let command = package(place, "hugekit-cli", "hugekit", &[])?;
    let library = package(place, "hugekit-c", "libhugekit0", &BESIDE_OTHERS)?;
    let variant = [&BESIDE_OTHERS[..], &["--variant", "dev"]].concat();
    let development = package(place, "hugekit-c", "libhugekit-dev", &variant)?;
    let how = try_out(place, &[&command, &library, &development])?;
    Ok(Tried::Works(format!("hugekit, libhugekit0, libhugekit-dev; {how}")))
}

/// Puts everything where the manifests of the packages look for it.
fn lay_out(place: &Place, built: &Path) -> Result<()> {
    let folder = built.join("debian");
    let _ = fs::remove_dir_all(&folder);
    let install = Install::below(folder.clone(), LIBDIR);
    install.libraries(built)?;
    install.descriptions()?;
    let program = binary::build(place)?;
    install.command(program.parent().context("a program is in a folder")?)?;
    compress(&folder.join("share/man/man1"))?;
    services(&folder.join("systemd"))
}

/// As Debian has its manual.
fn compress(pages: &Path) -> Result<()> {
    let pages = fs::read_dir(pages)?.collect::<std::io::Result<Vec<_>>>()?;
    let mut gzip = Command::new("gzip");
    crate::succeed(gzip.args(["-9", "--no-name"]).args(pages.iter().map(fs::DirEntry::path)))
}

/// As they are for people who install by hand, but for the place of the command.
fn services(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for unit in fs::read_dir(crate_folder("hugekit-cli").join("systemd"))? {
        let unit = unit?;
        let text = fs::read_to_string(unit.path())?.replace("/usr/local/bin/", "/usr/bin/");
        fs::write(folder.join(unit.file_name()), text)?;
    }
    Ok(())
}

fn package(place: &Place, of: &str, name: &str, more: &[&str]) -> Result<PathBuf> {
    let mut cargo = place.tools.cargo_deb()?;
    cargo.args(["--quiet", "--no-build", "--no-strip", "--package", of, "--profile", PROFILE]);
    cargo.args(["--target", &Tools::target()]).args(more).arg("--output").arg(&place.dir);
    crate::succeed(cargo.env("CARGO_TARGET_DIR", place.tools.portable()))?;
    find(&place.dir, &format!("{name}_{VERSION}"))
}

fn find(folder: &Path, beginning: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    let found = entries.iter().find(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with(beginning) && name.ends_with(".deb"))
    });
    Ok(found.with_context(|| format!("cargo-deb left no {beginning}"))?.path())
}

/// Installs them in a system that has nothing of what they need but the C library, and removes them.
fn try_out(place: &Place, packages: &[&Path; 3]) -> Result<String> {
    let root = match Root::debian(place) {
        Ok(root) => root,
        Err(error) => return Ok(format!("not tried: {error:#}")),
    };
    for package in packages {
        root.add(package, Path::new("/packages"))?;
    }
    let [command, library, development] = packages.map(inside);
    root.run(&["dpkg", "--install", &command, &library])?;
    let findings = root.run(&["hugekit", "doctor"])?;
    ensure!(findings.contains("transparent huge pages"), "doctor says\n{findings}");
    let known = root.run(&["ldconfig", "--print-cache"])?;
    ensure!(known.contains("libhugekit.so.0"), "the dynamic linker does not know the library");
    root.run(&[
        "python3",
        "-c",
        "import ctypes; ctypes.CDLL('libhugekit.so.0').hugekit_last_errno()",
    ])?;
    // A compiler in there would be most of the system: this machine's takes what is installed there.
    root.run(&["dpkg", "--install", "--force-depends", &development])?;
    if libraries::missing_compiler().is_none() {
        let folder = place.tools.scratch("debs");
        fs::create_dir_all(&folder)?;
        let pkgconfig = root.folder(&format!("usr/lib/{ARCH}-linux-gnu/pkgconfig"));
        root.add(&libraries::compile(&folder, &pkgconfig, &[])?, Path::new("/usr/local/bin"))?;
        let version = root.run(&["alone"])?;
        ensure!(version.trim() == VERSION, "the program says {version}");
    }
    root.run(&["dpkg", "--verify"])?;
    root.run(&["dpkg", "--purge", "libhugekit-dev", "libhugekit0", "hugekit"])?;
    Ok("installed, used and removed in a bare system".to_owned())
}

/// The path of a package in the root.
fn inside(package: &Path) -> String {
    format!("/packages/{}", package.file_name().unwrap_or_default().display())
}
