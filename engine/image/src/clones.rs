//! Processes that map an image, and their private bytes, from `/proc/PID/maps` and
//! `/proc/PID/smaps`.

use std::io::{BufRead, BufReader, ErrorKind};
use std::os::fd::AsFd;

use hugekit_machine::processes::{MappingLine, ProcessFolder, each_mapping};
use hugekit_machine::{Root, processes};

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

    fn of_mapping((major, minor): (u32, u32), inode: u64) -> Self {
        Self { device: rustix::fs::makedev(major, minor), inode }
    }
}

/// A process that maps an image, with sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageClone {
    /// The file of the image.
    pub image: FileIdentity,
    /// The number of the process.
    pub pid: u32,
    /// Bytes that the process has in its page tables and shares with the image.
    pub shared: u64,
    /// Bytes that the process has written, so they are its own.
    pub private: u64,
    /// Bytes that are mapped by huge pages.
    pub huge: u64,
}

/// Returns the processes that map some of these images, in ascending order, and the number of
/// processes that this process may not inspect.
///
/// # Errors
/// [`ImageError`] if `/proc` cannot be read.
pub fn clones(
    root: &Root,
    images: &[FileIdentity],
) -> Result<(Vec<ImageClone>, usize), ImageError> {
    let (mut found, mut hidden) = (Vec::new(), 0);
    let numbers = processes::numbers(root);
    let numbers = numbers.map_err(|source| ImageError::Kernel { call: "readdir", source })?;
    for pid in numbers {
        match ProcessFolder::within(root, pid).and_then(|process| look(&process, images)) {
            Ok(clones) => found.extend(clones),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => hidden += 1,
            // It has ended meanwhile.
            Err(_) => {}
        }
    }
    found.sort_unstable_by_key(|clone| clone.pid);
    Ok((found, hidden))
}

fn look(process: &ProcessFolder, images: &[FileIdentity]) -> std::io::Result<Vec<ImageClone>> {
    // The first file costs much less than the second.
    let maps = process.read("maps")?;
    let lines = maps.split(|&byte| byte == b'\n').filter_map(MappingLine::parse);
    let mapped: Vec<_> =
        lines.map(|line| FileIdentity::of_mapping(line.device, line.inode)).collect();
    let mut clones: Vec<ImageClone> = images
        .iter()
        .filter(|image| mapped.contains(image))
        .map(|&image| ImageClone {
            image,
            pid: process.pid() as u32,
            shared: 0,
            private: 0,
            huge: 0,
        })
        .collect();
    if !clones.is_empty() {
        sum(BufReader::new(process.file("smaps")?), &mut clones)?;
    }
    Ok(clones)
}

/// Adds the memory of images that a process has.
fn sum(smaps: impl BufRead, clones: &mut [ImageClone]) -> std::io::Result<()> {
    each_mapping(smaps, |mapping| {
        let of = FileIdentity::of_mapping(mapping.device, mapping.inode);
        for clone in clones.iter_mut().filter(|clone| clone.image == of) {
            clone.private += mapping.anonymous;
            clone.shared += mapping.resident.saturating_sub(mapping.anonymous);
            clone.huge += mapping.file_huge;
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        let nothing = ImageClone { image, pid: 7, shared: 0, private: 0, huge: 0 };
        let other = ImageClone { image: FileIdentity { inode: 79, ..image }, ..nothing };
        let mut found = [nothing, other];
        sum(SMAPS.as_bytes(), &mut found).unwrap();
        assert_eq!(found, [ImageClone { shared, private, huge: 4 << 20, ..nothing }, other]);
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
