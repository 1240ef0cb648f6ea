//! What the guests share: programs that are built once, the emulators, and whether KVM boots a guest here.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::frames::Report;
use super::image::Image;
use super::init;
use super::kernels::Architecture;
use super::machine::Machine;
use super::programs::Built;
use super::qemu::{Accelerator, Files, Qemu};
use crate::debian::{Debian, Piece};

static BUSYBOX: Piece = Piece {
    name: "busybox",
    remedy: "apt-get install busybox-static",
    packages: &["busybox-static"],
    arm64_packages: &[],
};

/// That of an aarch64 guest.
static ARM64_BUSYBOX: Piece =
    Piece { packages: &[], arm64_packages: &["busybox-static:arm64"], ..BUSYBOX };

/// How often an emulated guest is booted at most.
const BOOTS: usize = 3;

#[derive(Debug)]
pub(super) struct Bench {
    /// What the user asks for; KVM as far as it works, unless said.
    accelerator: Option<Accelerator>,
    x86_64: OnceCell<Built>,
    aarch64: OnceCell<Built>,
    /// Whether KVM has booted a guest here.
    kvm: OnceCell<bool>,
}

impl Bench {
    pub(super) fn new(accelerator: Option<Accelerator>) -> Self {
        let (x86_64, aarch64, kvm) = Default::default();
        Self { accelerator, x86_64, aarch64, kvm }
    }

    /// Makes the image of a guest, and fetches what is missing for it. The error is why it cannot be booted here.
    pub(super) fn prepare(&self, machine: &Machine) -> Result<Files> {
        let folder = crate::target_dir("fleet").join(machine.name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let kernel = machine.kernel.image()?;
        let qemu = Qemu::find(machine.kernel.architecture)?;
        let files = Files { folder, kernel, qemu };
        let script = init::script(machine);
        fs::write(files.path("init"), &script)?;
        let mut image = Image::new()?;
        image.file("/init", script.as_bytes())?;
        image.file("/bin/busybox", &fs::read(busybox(machine.kernel.architecture)?)?)?;
        if machine.runs.iter().any(|run| machine.runner(run.program).is_some()) {
            image.program("/xtask", &std::env::current_exe()?)?;
        }
        let built = self.built(machine.kernel.architecture)?;
        let programs: BTreeSet<_> = machine.runs.iter().map(|run| run.program).collect();
        for program in programs {
            image.program(&program.file(), built.path(program)?)?;
        }
        image.store(&files.path("initramfs"))?;
        Ok(files)
    }

    fn built(&self, architecture: Architecture) -> Result<&Built> {
        let (cell, build): (_, fn() -> Result<Built>) = match architecture {
            Architecture::X86_64 => (&self.x86_64, Built::for_this_machine),
            Architecture::Aarch64 => (&self.aarch64, Built::for_aarch64),
        };
        if architecture == Architecture::X86_64 && !cfg!(target_arch = "x86_64") {
            bail!("this machine is not x86-64, and builds no programs for it");
        }
        if let Some(built) = cell.get() {
            return Ok(built);
        }
        let built = build()?;
        Ok(cell.get_or_init(|| built))
    }

    /// On KVM if it boots this guest, else emulated, which is said once.
    pub(super) fn boot(&self, machine: &Machine, files: &Files) -> Result<Report> {
        match self.accelerator {
            Some(accelerator) => files.qemu.run(machine, accelerator, files),
            None if !self.may_have_kvm(machine) => files.qemu.run(machine, Accelerator::Tcg, files),
            None => {
                let report = files.qemu.run(machine, Accelerator::Kvm, files)?;
                let boots = report.release.is_some();
                self.kvm.get_or_init(|| boots);
                if boots {
                    return Ok(report);
                }
                println!("  KVM has not brought up the guest here: all are emulated");
                emulated(machine, files)
            }
        }
    }

    /// Whether KVM has worked, or may still turn out to.
    fn may_have_kvm(&self, machine: &Machine) -> bool {
        let same = match machine.kernel.architecture {
            Architecture::X86_64 => cfg!(target_arch = "x86_64"),
            Architecture::Aarch64 => false,
        };
        let opens = || File::options().read(true).write(true).open("/dev/kvm").is_ok();
        same && *self.kvm.get().unwrap_or(&true) && opens()
    }
}

/// Boots a guest emulated, again if its kernel has died before it ran anything: kernels patch their own instructions while
/// they boot, and other CPUs that QEMU emulates in parallel may execute one that is half patched.
fn emulated(machine: &Machine, files: &Files) -> Result<Report> {
    for _ in 1..BOOTS {
        let report = files.qemu.run(machine, Accelerator::Tcg, files)?;
        if report.release.is_some() {
            return Ok(report);
        }
        println!("  its kernel has not come up, emulated: once more");
    }
    files.qemu.run(machine, Accelerator::Tcg, files)
}

/// Why a guest cannot be booted without fetching something, and what would help.
pub(super) fn lacking(machine: &Machine) -> Option<String> {
    let lacks_kernel = (!machine.kernel.is_here()).then(|| {
        format!(
            "no kernel {} ({} of {})",
            machine.kernel.release, machine.kernel.package, machine.kernel.suite
        )
    });
    lacks_kernel.or_else(|| Qemu::lacking(machine.kernel.architecture)).or_else(|| {
        let (debian, _) = busybox_of(machine.kernel.architecture);
        (!unpacked(&debian).exists()).then(|| "no busybox-static unpacked".to_owned())
    })
}

fn busybox(architecture: Architecture) -> Result<PathBuf> {
    let (debian, piece) = busybox_of(architecture);
    let path = unpacked(&debian);
    if !path.exists() {
        debian.fetch(&[piece])?;
    }
    Ok(path)
}

fn busybox_of(architecture: Architecture) -> (Debian, &'static Piece) {
    let (name, piece) = match architecture {
        Architecture::X86_64 => ("fleet/busybox", &BUSYBOX),
        Architecture::Aarch64 => ("fleet/busybox-arm64", &ARM64_BUSYBOX),
    };
    (Debian::new("fleet", crate::target_dir(name)), piece)
}

fn unpacked(debian: &Debian) -> PathBuf {
    debian.root().join(Path::new("bin/busybox"))
}
