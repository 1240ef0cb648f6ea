//! Preparing a guest: its kernel, its emulator, and the archive that it boots into.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use hugekit_programs::Unpacked;
use serde_json::Value;

use super::guest::{Guest, Kernel, Run};
use super::{modules, nested};
use crate::fetch::Package;
use crate::run::{self, fresh, target_dir};

/// The files that a guest is booted from: `target/fleet/NAME`, a kernel and an emulator.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) folder: PathBuf,
    pub(super) kernel: PathBuf,
    pub(super) qemu: Package,
}

/// The path of each program that cargo has built, by package, target and whether it is a test.
#[derive(Debug, Default)]
pub(super) struct Built(BTreeMap<(String, String, bool), PathBuf>);

/// The programs of x86-64 and of aarch64, built once.
#[derive(Debug, Default)]
pub(super) struct Programs([Option<Built>; 2]);

/// The emulator of a kernel's architecture.
pub(super) fn qemu(kernel: &Kernel) -> Result<Package> {
    Package::named(if kernel.arm { "qemu-system-aarch64" } else { "qemu-system-x86_64" })
}

fn busybox(arm: bool) -> Result<Package> {
    Package::named(if arm { "busybox-aarch64" } else { "busybox-x86_64" })
}

impl Programs {
    /// Makes the archive of a guest, and fetches its missing files. The error is the reason why it cannot be booted
    /// here.
    pub(super) fn prepare(&mut self, guest: &Guest) -> Result<Files> {
        let folder = fresh(target_dir("fleet").join(&guest.name))?;
        let (package, qemu) = (guest.kernel.package(), qemu(&guest.kernel)?);
        let busyboxes = [busybox(guest.kernel.arm)?, busybox(cfg!(target_arch = "aarch64"))?];
        for package in [&package, &qemu, &busyboxes[0], &busyboxes[1]] {
            if !package.is_here() {
                package.fetch()?;
            }
        }
        let kernel = found(&package.path(""))
            .with_context(|| format!("{} has no vmlinuz", package.folder))?;
        let stage = fresh(folder.join("image"))?;
        write(&stage, "/init", include_bytes!("init.sh"))?;
        fs::write(folder.join("guest.sh"), guest.script())?;
        write(&stage, "/guest.sh", guest.script().as_bytes())?;
        write(&stage, "/bin/busybox", &fs::read(busyboxes[0].path("bin/busybox"))?)?;
        if guest.runs.iter().any(|run| run.becomes(guest).is_some()) {
            add_program(&stage, "/xtask", &std::env::current_exe()?, None)?;
        }
        let busybox = busyboxes[1].path("bin/busybox");
        let modules = guest.modules();
        if !modules.is_empty() {
            modules::add(&stage, &package.path(""), &busybox, &modules)?;
        }
        if guest.nested {
            nested::add(&stage, &kernel, &busybox)?;
        }
        if guest.file_systems {
            add_file_systems(&stage)?;
        }
        let built = self.built(guest)?;
        let files: BTreeMap<_, _> = guest.runs.iter().map(|run| (run.file(), run)).collect();
        for (file, run) in files {
            add_program(&stage, &file, built.path(run)?, None)?;
        }
        archive(&busybox, &stage, &folder.join("initramfs"))?;
        fs::remove_dir_all(stage)?;
        Ok(Files { folder, kernel, qemu })
    }

    /// All that guests of this kind run. Those that run nothing but commands get them as users do, optimised.
    pub(super) fn built(&mut self, guest: &Guest) -> Result<&Built> {
        let arm = guest.kernel.arm;
        let cell = &mut self.0[usize::from(arm)];
        if let Some(built) = cell {
            return Ok(built);
        }
        ensure!(arm || cfg!(target_arch = "x86_64"), "this machine is not x86-64");
        let messages = if arm {
            crate::aarch64::build_tests(&["hugekit", "hugekit-cli", "hugekit-lab", "hugekit-soak"])?
        } else {
            let mut cargo = run::cargo(match guest.runs.iter().all(Run::is_command) {
                true => &["build", "--release", "--bin", "hugekit", "--bin", "hugekit-lab"],
                // The packages of `cargo test`, so that these are the files that it has made.
                false => &["test", "--no-run"],
            });
            cargo.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
            run::output(&mut cargo)?
        };
        Ok(cell.insert(Built::read(&messages)?))
    }
}

impl Built {
    /// Reads what cargo prints of its artifacts, one in each line.
    fn read(messages: &str) -> Result<Self> {
        let mut built = BTreeMap::new();
        for line in messages.lines() {
            let message: Value = serde_json::from_str(line)?;
            let Some(executable) = message["executable"].as_str() else { continue };
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let package = text(&message["package_id"]);
            // `path+file:///…/engine/hugekit#0.1.0`, or `…#hugekit@0.1.0`.
            let (path, version) = package.rsplit_once('#').unwrap_or((&package, ""));
            let folder = path.rsplit('/').next().unwrap_or_default();
            let package = version.split_once('@').map_or(folder, |(name, _)| name).to_owned();
            let is_test = message["profile"]["test"].as_bool().unwrap_or_default();
            built.insert((package, text(&message["target"]["name"]), is_test), executable.into());
        }
        Ok(Self(built))
    }

    /// The file of a program of the table: see fleet.toml.
    pub(super) fn path(&self, run: &Run) -> Result<&PathBuf> {
        let name = run.program.as_str();
        let units = name.strip_suffix(".units").map(|of| of.replace('-', "_"));
        let is = |(package, target, is_test): &&(String, String, bool)| match name {
            "doctor" => package == "hugekit-cli" && target == "hugekit" && !is_test,
            "lab" => target == "hugekit-lab" && !is_test,
            "soak" => target == "hugekit-soak" && !is_test,
            test => {
                let (of, test) = test.split_once('/').unwrap_or((package, test));
                package == of && target == units.as_deref().unwrap_or(test) && *is_test
            }
        };
        let found = self.0.keys().find(is).map(|key| &self.0[key]);
        found.with_context(|| format!("cargo has built no {name}"))
    }
}

pub(super) fn write(stage: &Path, at: &str, bytes: &[u8]) -> Result<()> {
    let file = stage.join(at.trim_start_matches('/'));
    fs::create_dir_all(file.parent().context("a file is in a folder")?)?;
    fs::write(&file, bytes).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(fs::set_permissions(&file, Permissions::from_mode(0o755))?)
}

/// Adds a program and the libraries that it is linked to, as if an unpacked one were installed. Without what only debuggers
/// read, if binutils can leave that out: the archive is unpacked into half of a guest's memory at most.
fn add_program(stage: &Path, at: &str, program: &Path, of: Option<&Unpacked>) -> Result<()> {
    write(stage, at, &fs::read(program)?)?;
    let copy = stage.join(at.trim_start_matches('/'));
    let _ = Command::new("strip").arg("--strip-debug").arg(&copy).stderr(Stdio::null()).status();
    let mut ldd = Command::new("ldd");
    of.iter().for_each(|unpacked| unpacked.lend_libraries(&mut ldd));
    let linked = run::said(ldd.arg(program)).unwrap_or_default();
    for library in libraries(&linked) {
        let below = of.and_then(|unpacked| Path::new(library).strip_prefix(unpacked.root()).ok());
        let at = below.and_then(Path::to_str).unwrap_or(library);
        write(stage, at, &fs::read(library)?)?;
    }
    Ok(())
}

/// Adds the programs that make file systems, which packages.toml names, where the tests look for them.
fn add_file_systems(stage: &Path) -> Result<()> {
    let package = Package::named("file-systems")?;
    if !package.is_here() {
        package.fetch()?;
    }
    let unpacked = package.unpacked();
    for name in ["mkfs.ext4", "mkfs.xfs", "mkfs.erofs", "mkfs.btrfs", "mksquashfs"] {
        let program = unpacked.of_administrator(name).with_context(|| package.lack())?;
        let own = unpacked.has(&program).then_some(&unpacked);
        add_program(stage, &format!("/usr/sbin/{name}"), &program, own)?;
    }
    Ok(())
}

/// The paths in `name => /path (address)` and `/path (address)`; none of a program that is linked statically.
fn libraries(printed: &str) -> BTreeSet<&str> {
    let path = |line| str::split(line, " (").next()?.rsplit(" => ").next().map(str::trim);
    printed.lines().filter_map(path).filter(|path| path.starts_with('/')).collect()
}

/// Packs a folder as the kernel unpacks it into memory at boot.
pub(super) fn archive(busybox: &Path, stage: &Path, to: &Path) -> Result<()> {
    let script = r#""$0" find . | "$0" cpio -o -H newc -R 0:0"#;
    let mut pack = Command::new("sh");
    pack.args(["-c", script]).arg(busybox).current_dir(stage).stdout(File::create(to)?);
    let packed = pack.stderr(Stdio::null()).status().context("cannot start sh")?;
    ensure!(packed.success(), "cannot pack {}", stage.display());
    Ok(())
}

/// The kernel in the unpacked package: in `boot`, or from 7 on beside its modules.
fn found(root: &Path) -> Option<PathBuf> {
    let below = |folder: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let is_image = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("vmlinuz")) && path.is_file()
    };
    let beside_modules = below("usr/lib/modules").into_iter().map(|folder| folder.join("vmlinuz"));
    below("boot").into_iter().chain(beside_modules).find(is_image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_of_what_ldd_prints() {
        let printed = "\tlinux-vdso.so.1 (0x7f)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n\t/lib64/ld.so (0x7f)\n";
        assert!(libraries(printed).into_iter().eq(["/lib/libc.so.6", "/lib64/ld.so"]));
        assert!(libraries("\tstatically linked\n").is_empty());
    }

    #[test]
    fn programs_are_found_in_what_cargo_prints() {
        let line = |package: &str, target: &str, test: bool, file: &str| {
            format!(
                "{{\"package_id\":\"{package}\",\"target\":{{\"name\":\"{target}\"}},\
                 \"profile\":{{\"test\":{test}}},\"executable\":\"{file}\"}}\n"
            )
        };
        let messages = [
            line("path+file:///r/engine/hugekit#0.1.0", "pool", true, "/t/pool"),
            line("path+file:///r/tools/cli#0.1.0", "hugekit", true, "/t/cli-tests"),
            line("path+file:///r/x#hugekit-cli@0.1.0", "hugekit", false, "/t/cli"),
            line("path+file:///r/hugekit-bulk#0.1.0", "hugekit_bulk", true, "/t/bulk"),
        ];
        let built = Built::read(&messages.concat()).unwrap();
        let path =
            |run: &str| built.path(&Run::from(run.to_owned())).map(|path| path.to_str().unwrap());
        assert_eq!(path("pool any_steps").unwrap(), "/t/pool");
        assert_eq!(path("doctor").unwrap(), "/t/cli");
        assert_eq!(path("hugekit-bulk.units").unwrap(), "/t/bulk");
        assert!(path("units").is_err());
    }
}
