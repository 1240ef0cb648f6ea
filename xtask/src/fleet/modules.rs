//! Modules of a guest's kernel, which its first process loads.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::boot::write;

/// The modules of an unpacked kernel.
struct Modules<'a> {
    files: BTreeMap<String, PathBuf>,
    /// Paths of the modules that are part of the kernel, one in each line. Debian packages no such list from 7 on.
    builtin: Option<String>,
    busybox: &'a Path,
}

/// A module that is to be loaded.
struct Module {
    name: String,
    bytes: Vec<u8>,
}

/// Adds modules of the unpacked kernel, and those that they need, to `/modules`. The file `order` there names them in the
/// order in which they are loaded.
pub(super) fn add(stage: &Path, package: &Path, busybox: &Path, wanted: &[&str]) -> Result<()> {
    let modules = Modules::of(package, busybox)?;
    let mut order = Vec::new();
    wanted.iter().try_for_each(|name| modules.collect(name, &mut order))?;
    for Module { name, bytes } in &order {
        write(stage, &format!("/modules/{name}.ko"), bytes)?;
    }
    let names: String = order.iter().map(|module| format!("{}\n", module.name)).collect();
    write(stage, "/modules/order", names.as_bytes())
}

impl<'a> Modules<'a> {
    fn of(package: &Path, busybox: &'a Path) -> Result<Self> {
        let folder = ["lib/modules", "usr/lib/modules"].iter().find_map(|folder| {
            let of_kernels = fs::read_dir(package.join(folder)).ok()?.flatten();
            of_kernels.map(|entry| entry.path()).find(|path| path.join("kernel").is_dir())
        });
        let folder = folder.context("the kernel's packages have no modules")?;
        let builtin = fs::read_to_string(folder.join("modules.builtin")).ok();
        let mut files = BTreeMap::new();
        find(&folder.join("kernel"), &mut files)?;
        Ok(Self { files, builtin, busybox })
    }

    /// Adds a module behind those that it needs, unless it is there, or part of the kernel.
    fn collect(&self, name: &str, order: &mut Vec<Module>) -> Result<()> {
        let name = name.replace('-', "_");
        if order.iter().any(|module| module.name == name) {
            return Ok(());
        }
        let Some(file) = self.files.get(&name) else {
            let mut builtin = self.builtin.iter().flat_map(|all| all.lines()).filter_map(name_of);
            let is_there = self.builtin.is_none() || builtin.any(|one| one == name);
            ensure!(is_there, "the kernel has no {name}");
            return Ok(());
        };
        let bytes = self.read(file)?;
        needed_by(&bytes).iter().try_for_each(|needed| self.collect(needed, order))?;
        order.push(Module { name, bytes });
        Ok(())
    }

    fn read(&self, file: &Path) -> Result<Vec<u8>> {
        if file.extension() != Some(OsStr::new("xz")) {
            return fs::read(file).with_context(|| format!("cannot read {}", file.display()));
        }
        let output = Command::new(self.busybox).args(["xz", "-d", "-c"]).arg(file).output()?;
        ensure!(output.status.success(), "cannot decompress {}", file.display());
        Ok(output.stdout)
    }
}

/// The name by which the kernel knows a module, of its path.
fn name_of(path: &str) -> Option<String> {
    let (name, _) = path.rsplit('/').next()?.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

fn find(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => find(&path, files)?,
            false => files.extend(path.to_str().and_then(name_of).map(|name| (name, path.clone()))),
        }
    }
    Ok(())
}

/// The modules that a module names: text in its section `.modinfo`, which ends with a zero.
fn needed_by(bytes: &[u8]) -> Vec<String> {
    const FIELD: &[u8] = b"\0depends=";
    let at = bytes.windows(FIELD.len()).position(|window| window == FIELD);
    let field = at.map_or(&[][..], |at| &bytes[at + FIELD.len()..]);
    let value = field.split(|&byte| byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(modules: &[(&str, &str)], builtin: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let of_kernel = "usr/lib/modules/6.1.0-cloud";
        for (path, needs) in modules {
            let bytes = format!("\x7fELF\0license=GPL\0depends={needs}\0name=x\0");
            write(folder.path(), &format!("{of_kernel}/kernel/{path}"), bytes.as_bytes()).unwrap();
        }
        write(folder.path(), &format!("{of_kernel}/modules.builtin"), builtin.as_bytes()).unwrap();
        folder
    }

    #[test]
    fn modules_are_loaded_behind_those_that_they_need() {
        let kernel = package(
            &[
                ("fs/xfs/xfs.ko", "libcrc32c,lz4-x,ext4"),
                ("lib/libcrc32c.ko", ""),
                ("lib/lz4-x.ko", "libcrc32c"),
                ("fs/other.ko", "xfs"),
            ],
            "kernel/fs/ext4/ext4.ko\n",
        );
        let stage = tempfile::tempdir().unwrap();
        let add = |wanted: &[&str]| add(stage.path(), kernel.path(), Path::new("busybox"), wanted);
        add(&["lz4_x", "xfs", "ext4"]).unwrap();
        let read = |name: &str| fs::read_to_string(stage.path().join("modules").join(name));
        assert_eq!(read("order").unwrap(), "libcrc32c\nlz4_x\nxfs\n");
        assert!(read("xfs.ko").unwrap().contains("lz4-x") && read("other.ko").is_err());
        let error = add(&["nothing"]).unwrap_err();
        assert_eq!(error.to_string(), "the kernel has no nothing");
        let list = kernel.path().join("usr/lib/modules/6.1.0-cloud/modules.builtin");
        fs::remove_file(list).unwrap();
        add(&["nothing"]).unwrap();
    }

    #[test]
    fn package_without_modules_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = add(folder.path(), folder.path(), Path::new("busybox"), &["xfs"]).unwrap_err();
        assert_eq!(error.to_string(), "the kernel's packages have no modules");
    }
}
