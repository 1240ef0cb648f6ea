//! Processes that map an image, and how much of it is theirs alone: from `/proc/PID/maps` and `/proc/PID/smaps`.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::Path;

use hugekit_machine::Root;

use crate::error::ImageError;

/// The numbers by which the kernel names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Of the file system.
    pub device: u64,
    /// Of the file.
    pub inode: u64,
}

impl Identity {
    pub(crate) fn of(file: impl AsFd) -> Result<Self, ImageError> {
        let found = rustix::fs::fstat(file).map_err(ImageError::of("fstat"))?;
        Ok(Self { device: found.st_dev, inode: found.st_ino })
    }

    /// As fields 4 and 5 of a mapping's line.
    fn fields(self) -> (String, String) {
        let (major, minor) = (rustix::fs::major(self.device), rustix::fs::minor(self.device));
        (format!("{major:02x}:{minor:02x}"), self.inode.to_string())
    }
}

/// A process that maps an image. All sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clone {
    /// The process.
    pub pid: u32,
    /// Bytes that it has in its page tables and shares with the image.
    pub shared: u64,
    /// Bytes that it has written to, which are its own.
    pub private: u64,
    /// Bytes that are mapped by huge pages.
    pub huge: u64,
}

/// The processes that map an image, in ascending order, of those that this process may look at; and how many others
/// there are that it may not.
///
/// # Errors
/// `/proc` cannot be read.
pub fn clones(root: &Root, image: Identity) -> Result<(Vec<Clone>, usize), ImageError> {
    let (mut found, mut hidden) = (Vec::new(), 0);
    let entries = fs::read_dir(root.path("/proc"));
    let entries = entries.map_err(|source| ImageError::Kernel { call: "readdir", source })?;
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        match look(&entry.path(), pid, image) {
            Ok(clone) => found.extend(clone),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => hidden += 1,
            // It has ended meanwhile.
            Err(_) => {}
        }
    }
    found.sort_unstable_by_key(|clone| clone.pid);
    Ok((found, hidden))
}

fn look(process: &Path, pid: u32, image: Identity) -> std::io::Result<Option<Clone>> {
    // The first file costs much less than the second.
    let maps = fs::read(process.join("maps"))?;
    let is_mapped = String::from_utf8_lossy(&maps).lines().any(|line| is_of(line, image));
    if !is_mapped {
        return Ok(None);
    }
    let smaps = fs::read(process.join("smaps"))?;
    Ok(Some(Clone { pid, ..sum(&String::from_utf8_lossy(&smaps), image) }))
}

/// Whether a line begins the description of a mapping of the image: `START-END PERMISSIONS OFFSET DEVICE INODE`.
fn is_of(line: &str, image: Identity) -> bool {
    let (device, inode) = image.fields();
    let mut fields = line.split_ascii_whitespace().skip(3);
    fields.next() == Some(&device) && fields.next() == Some(&inode)
}

/// What a process has of the image.
fn sum(smaps: &str, image: Identity) -> Clone {
    let mut clone = Clone::default();
    let (mut is_counted, mut resident) = (false, 0);
    for line in smaps.lines() {
        let Some((name, value)) = line.split_once(':').filter(|(name, _)| !name.contains(' '))
        else {
            is_counted = is_of(line, image);
            continue;
        };
        let kilobytes = value.trim().trim_end_matches(" kB").parse::<u64>();
        let Some(bytes) = kilobytes.ok().map(|count| count << 10).filter(|_| is_counted) else {
            continue;
        };
        match name {
            "Rss" => resident += bytes,
            "Anonymous" => clone.private += bytes,
            "ShmemPmdMapped" | "FilePmdMapped" => clone.huge += bytes,
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

    #[test]
    fn what_a_process_has_of_an_image_is_summed_over_its_mappings() {
        let image = Identity { device: rustix::fs::makedev(0, 1), inode: 77 };
        let clone = sum(SMAPS, image);
        let (private, shared) = (12 << 10, (6148 - 12) << 10);
        assert_eq!(clone, Clone { pid: 0, shared, private, huge: 4 << 20 });
        let other = Identity { inode: 79, ..image };
        assert_eq!(sum(SMAPS, other), Clone::default());
    }

    #[test]
    fn processes_are_found_that_map_the_image() {
        let folder = tempfile::tempdir().unwrap();
        for (pid, maps) in [("7", SMAPS), ("8", ""), ("self", SMAPS)] {
            let process = folder.path().join("proc").join(pid);
            fs::create_dir_all(&process).unwrap();
            fs::write(process.join("maps"), maps).unwrap();
            fs::write(process.join("smaps"), maps).unwrap();
        }
        let image = Identity { device: rustix::fs::makedev(0, 1), inode: 77 };
        let (found, hidden) = clones(&Root::at(folder.path()), image).unwrap();
        assert_eq!(found.iter().map(|clone| clone.pid).collect::<Vec<_>>(), [7]);
        assert_eq!(hidden, 0);
    }
}
