//! What a guest boots into: an archive that the kernel unpacks into memory, with busybox, the script, the programs
//! and the libraries that these are linked to.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use cpio::newc::{Builder, ModeFileType, trailer};

/// An archive in the format of initramfs, as it grows.
#[derive(Debug)]
pub(super) struct Image {
    bytes: Vec<u8>,
    /// Folders and files that are there, without the leading slash.
    names: BTreeSet<String>,
}

impl Image {
    /// With the device that the first process speaks to before it has mounted anything.
    pub(super) fn new() -> Result<Self> {
        let mut image = Self { bytes: Vec::new(), names: BTreeSet::new() };
        image.folder("dev")?;
        let console =
            Builder::new("dev/console").mode(0o600).set_mode_file_type(ModeFileType::Char);
        image.entry(console.rdev_major(5).rdev_minor(1), &[])?;
        image.folder("etc")?;
        Ok(image)
    }

    /// A program's file, and the libraries that it is linked to, where it looks for them.
    pub(super) fn program(&mut self, at: &str, file: &Path) -> Result<()> {
        self.file(at, &without_debug(file)?)?;
        for library in libraries(file)? {
            let at = library.to_str().context("a library's name is text")?;
            self.file(at, &fs::read(&library)?)?;
        }
        Ok(())
    }

    /// A file that may be executed, if none of that name is there yet.
    pub(super) fn file(&mut self, at: &str, bytes: &[u8]) -> Result<()> {
        let name = at.trim_start_matches('/');
        if let Some((folder, _)) = name.rsplit_once('/') {
            self.folder(folder)?;
        }
        if self.names.insert(name.to_owned()) {
            let builder = Builder::new(name).mode(0o755).set_mode_file_type(ModeFileType::Regular);
            self.entry(builder, bytes)?;
        }
        Ok(())
    }

    fn folder(&mut self, name: &str) -> Result<()> {
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.folder(parent)?;
        }
        if self.names.insert(name.to_owned()) {
            let builder =
                Builder::new(name).mode(0o755).set_mode_file_type(ModeFileType::Directory);
            self.entry(builder, &[])?;
        }
        Ok(())
    }

    fn entry(&mut self, builder: Builder, bytes: &[u8]) -> Result<()> {
        // An inode of its own: files of several names and one inode are links.
        let inode = u32::try_from(self.names.len())? + 1;
        let mut writer =
            builder.ino(inode).nlink(1).write(&mut self.bytes, u32::try_from(bytes.len())?);
        writer.write_all(bytes)?;
        writer.finish()?;
        Ok(())
    }

    pub(super) fn store(mut self, path: &Path) -> Result<()> {
        trailer(&mut self.bytes)?;
        fs::write(path, self.bytes).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// A program's bytes, without what only debuggers read where binutils can leave that out: the archive is unpacked into
/// half of a guest's memory at most.
fn without_debug(program: &Path) -> Result<Vec<u8>> {
    let stripped = tempfile::NamedTempFile::new()?;
    let mut strip = Command::new("strip");
    strip.arg("--strip-debug").arg("-o").arg(stripped.path()).arg(program);
    let is_done = strip.output().is_ok_and(|output| output.status.success());
    let file = if is_done { stripped.path() } else { program };
    fs::read(file).with_context(|| format!("no {}", file.display()))
}

/// What the dynamic linker would load, itself included; none for a program that is linked statically.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot start ldd")?;
    Ok(paths(&String::from_utf8(output.stdout)?))
}

/// The paths in `name => /path (address)` and `/path (address)`.
fn paths(printed: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let line = line.split_once(" => ").map_or(line, |(_, path)| path).trim();
        let path = line.split(" (").next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    printed.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_of_what_ldd_prints() {
        let printed = "\tlinux-vdso.so.1 (0x7f)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        assert_eq!(
            paths(printed),
            ["/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from)
        );
        assert!(paths("\tstatically linked\n").is_empty());
    }

    #[test]
    fn archive_has_each_file_once_and_its_folders_before_it() {
        let mut image = Image::new().unwrap();
        for _ in 0..2 {
            image.file("/lib/x/y", b"bytes").unwrap();
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        image.store(file.path()).unwrap();
        let mut reader = fs::File::open(file.path()).unwrap();
        let mut names = Vec::new();
        loop {
            let entry = cpio::newc::Reader::new(reader).unwrap();
            if entry.entry().is_trailer() {
                break;
            }
            names.push(entry.entry().name().to_owned());
            reader = entry.finish().unwrap();
        }
        assert_eq!(names, ["dev", "dev/console", "etc", "lib", "lib/x", "lib/x/y"]);
    }
}
