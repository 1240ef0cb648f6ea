//! Processes that map an image, and how much of it is theirs alone: from `/proc/PID/maps` and `/proc/PID/smaps`.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::Path;

use hugekit_machine::Root;

use crate::error::ImageError;

/// The numbers by which the kernel names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// The device of the file system.
    pub device: u64,
    /// The inode of the file.
    pub inode: u64,
}

impl FileIdentity {
    pub(crate) fn of(file: impl AsFd) -> Result<Self, ImageError> {
        let found = rustix::fs::fstat(file).map_err(ImageError::of("fstat"))?;
        Ok(Self { device: found.st_dev, inode: found.st_ino })
    }

    /// Parses the first line of a mapping's description: `START-END PERMISSIONS OFFSET DEVICE INODE`. `None` for any
    /// other line.
    fn of_line(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let (major, minor) = fields.next()?.split_once(':')?;
        let number = |text| u32::from_str_radix(text, 16).ok();
        let device = rustix::fs::makedev(number(major)?, number(minor)?);
        Some(Self { device, inode: fields.next()?.parse().ok()? })
    }
}

/// A process that maps an image. All sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageClone {
    /// The image.
    pub image: FileIdentity,
    /// The process.
    pub pid: u32,
    /// Bytes that it has in its page tables and shares with the image.
    pub shared: u64,
    /// Bytes that it has written to, which are its own.
    pub private: u64,
    /// Bytes that are mapped by huge pages.
    pub huge: u64,
}

/// The processes that map some of these images, in ascending order, of those that this process may look at; and how many
/// others there are that it may not.
///
/// # Errors
/// `/proc` cannot be read.
pub fn clones(
    root: &Root,
    images: &[FileIdentity],
) -> Result<(Vec<ImageClone>, usize), ImageError> {
    let (mut found, mut hidden) = (Vec::new(), 0);
    let entries = fs::read_dir(root.path("/proc"));
    let entries = entries.map_err(|source| ImageError::Kernel { call: "readdir", source })?;
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        match look(&entry.path(), pid, images) {
            Ok(clones) => found.extend(clones),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => hidden += 1,
            // It has ended meanwhile.
            Err(_) => {}
        }
    }
    found.sort_unstable_by_key(|clone| clone.pid);
    Ok((found, hidden))
}

fn look(process: &Path, pid: u32, images: &[FileIdentity]) -> std::io::Result<Vec<ImageClone>> {
    // The first file costs much less than the second.
    let maps = fs::read(process.join("maps"))?;
    let maps = String::from_utf8_lossy(&maps);
    let mapped: Vec<_> = maps.lines().filter_map(FileIdentity::of_line).collect();
    if !images.iter().any(|image| mapped.contains(image)) {
        return Ok(Vec::new());
    }
    let smaps = fs::read(process.join("smaps"))?;
    let smaps = String::from_utf8_lossy(&smaps);
    let clones = images.iter().filter(|image| mapped.contains(image));
    Ok(clones.map(|&image| sum(&smaps, image, pid)).collect())
}

/// Returns the memory of an image that a process has.
fn sum(smaps: &str, image: FileIdentity, pid: u32) -> ImageClone {
    let mut clone = ImageClone { image, pid, shared: 0, private: 0, huge: 0 };
    let (mut is_counted, mut resident) = (false, 0);
    for line in smaps.lines() {
        if let Some(of) = FileIdentity::of_line(line) {
            is_counted = of == image;
            continue;
        }
        let Some((name, value)) = line.split_once(':').filter(|_| is_counted) else { continue };
        let Ok(kilobytes) = value.trim().trim_end_matches(" kB").parse::<u64>() else { continue };
        match name {
            "Rss" => resident += kilobytes << 10,
            "Anonymous" => clone.private += kilobytes << 10,
            "ShmemPmdMapped" | "FilePmdMapped" => clone.huge += kilobytes << 10,
            _ => {}
        }
    }
    clone.shared = resident.saturating_sub(clone.private);
    clone
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0040000000 rw-p 00000000 00:01 77      /memfd:hugekit:web (deleted)
Size:            1048576 kB
Rss:                6144 kB
Anonymous:            12 kB
ShmemPmdMapped:     4096 kB
THPeligible:           1
VmFlags: rd wr mr mw me sd
7f0080000000-7f0080001000 rw-p 00000000 00:01 78      /memfd:a: 00:01 77
Rss:                   4 kB
Anonymous:             4 kB
7f0090000000-7f0090001000 r--p 00000000 00:01 77      /memfd:hugekit:web (deleted)
Rss:                   4 kB
Anonymous:             0 kB
";

    fn web() -> FileIdentity {
        FileIdentity { device: rustix::fs::makedev(0, 1), inode: 77 }
    }

    #[test]
    fn what_a_process_has_of_an_image_is_summed_over_its_mappings() {
        let (private, shared, image) = (12 << 10, (6148 - 12) << 10, web());
        let clone = ImageClone { image, pid: 7, shared, private, huge: 4 << 20 };
        assert_eq!(sum(SMAPS, image, 7), clone);
        let image = FileIdentity { inode: 79, ..image };
        assert_eq!(
            sum(SMAPS, image, 7),
            ImageClone { image, shared: 0, private: 0, huge: 0, ..clone }
        );
    }

    #[test]
    fn processes_are_found_that_map_an_image() {
        let folder = tempfile::tempdir().unwrap();
        for (pid, maps) in [("7", SMAPS), ("8", ""), ("self", SMAPS)] {
            let process = folder.path().join("proc").join(pid);
            fs::create_dir_all(&process).unwrap();
            fs::write(process.join("maps"), maps).unwrap();
            fs::write(process.join("smaps"), maps).unwrap();
        }
        let other = FileIdentity { inode: 78, ..web() };
        let gone = FileIdentity { inode: 5, ..web() };
        let (found, hidden) = clones(&Root::at(folder.path()), &[web(), gone, other]).unwrap();
        let found: Vec<_> = found.iter().map(|clone| (clone.pid, clone.image)).collect();
        assert_eq!(found, [(7, web()), (7, other)]);
        assert_eq!(hidden, 0);
    }
}
