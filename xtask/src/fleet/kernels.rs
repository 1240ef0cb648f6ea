//! Kernels as Debian packages them, unpacked below `target/fleet/kernels` and never installed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::debian::{Debian, Suite};

/// A package of a kernel: the one that depends on the newest of its suite.
#[derive(Debug)]
pub(super) struct Kernel {
    /// How its release begins.
    pub(super) release: &'static str,
    pub(super) suite: &'static str,
    pub(super) package: &'static str,
    pub(super) architecture: Architecture,
    pub(super) page_kib: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    X86_64,
    Aarch64,
}

/// Before shared memory could be write-protected by userfaultfd (5.19) and minor faults of it (5.14).
pub(super) static LINUX_5_10: Kernel = x86_64("5.10", "bullseye");
/// Before `PAGEMAP_SCAN` (6.7).
pub(super) static LINUX_6_1: Kernel = x86_64("6.1", "bookworm");
/// Before huge pages were cleared in ranges (7.0).
pub(super) static LINUX_6_12: Kernel = x86_64("6.12", "trixie");
/// The newest that is packaged for a released Debian: its version follows the archive.
pub(super) static NEWEST: Kernel = x86_64("", "trixie-backports");
pub(super) static AARCH64_4K: Kernel = aarch64("trixie", "linux-image-cloud-arm64", 4);
pub(super) static AARCH64_16K: Kernel = aarch64("trixie", "linux-image-arm64-16k", 16);
/// As Debian would call it. It has not packaged one yet; the day it does, its row runs.
pub(super) static AARCH64_64K: Kernel = aarch64("trixie", "linux-image-arm64-64k", 64);

/// That of virtual machines: small, and what these guests need is built in.
const fn x86_64(release: &'static str, suite: &'static str) -> Kernel {
    let package = "linux-image-cloud-amd64";
    Kernel { release, suite, package, architecture: Architecture::X86_64, page_kib: 4 }
}

const fn aarch64(suite: &'static str, package: &'static str, page_kib: usize) -> Kernel {
    Kernel { release: "6.12", suite, package, architecture: Architecture::Aarch64, page_kib }
}

impl Kernel {
    pub(super) fn is_here(&self) -> bool {
        found(self.debian().root()).is_some()
    }

    fn debian(&self) -> Debian {
        let folder = format!("{}-{}", self.suite, self.package);
        Debian::new("fleet", crate::target_dir("fleet/kernels").join(folder))
    }

    /// The compressed kernel, fetched if it is not here yet.
    pub(super) fn image(&self) -> Result<PathBuf> {
        let debian = self.debian();
        if found(debian.root()).is_none() {
            let foreign = self.architecture == Architecture::Aarch64;
            let suite = Suite { name: self.suite, arm64: foreign };
            debian.fetch_from(&suite, &[self.package], is_kernel)?;
        }
        found(debian.root()).with_context(|| format!("{} has no vmlinuz", self.package))
    }
}

/// The package that the kernel itself is in: that of its name and version, and from 7 on the binary of it. Modules are
/// packaged apart then, and none is needed.
fn is_kernel(package: &str) -> bool {
    ["linux-image-", "linux-binary-"].iter().any(|prefix| {
        package
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// The kernel in what was unpacked: in `boot`, or from 7 on beside its modules.
fn found(root: &Path) -> Option<PathBuf> {
    let below = |folder: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let is_image = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("vmlinuz")) && path.is_file()
    };
    let beside_modules =
        below("usr/lib/modules").into_iter().map(|release| release.join("vmlinuz"));
    below("boot").into_iter().chain(beside_modules).find(is_image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_of_a_release_is_a_kernel_and_its_modules_are_not() {
        for (package, is) in [
            ("linux-image-6.1.0-50-cloud-amd64", true),
            ("linux-binary-7.3.4+deb13-cloud-amd64", true),
            ("linux-modules-7.3.4+deb13-cloud-amd64", false),
            ("linux-image-cloud-amd64", false),
            ("initramfs-tools", false),
        ] {
            assert_eq!(is_kernel(package), is, "{package}");
        }
    }

    #[test]
    fn a_kernel_is_found_in_either_place() {
        for folder in ["boot", "usr/lib/modules/7.3.4"] {
            let root = tempfile::tempdir().unwrap();
            assert_eq!(found(root.path()), None);
            let folder = root.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("config"), "").unwrap();
            fs::write(folder.join("vmlinuz"), "").unwrap();
            assert_eq!(found(root.path()), Some(folder.join("vmlinuz")));
        }
    }
}
