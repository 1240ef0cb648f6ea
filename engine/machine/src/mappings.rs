//! The mappings of this process, and their special uses.

use std::fmt;
use std::ops::Range;

use super::processes::MappingLine;
use super::{Error, Root};

const MAPS: &str = "/proc/self/maps";
const SMAPS: &str = "/proc/self/smaps";
const KSM: &str = "/proc/self/ksm_stat";

/// A mapping of this process, from `/proc/self/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedRange {
    /// The addresses of the mapping.
    pub addresses: Range<usize>,
    /// True if the mapping may be read now.
    pub is_readable: bool,
    /// True if other processes that map the same memory see writes to the mapping.
    pub is_shared: bool,
    /// The inode number of the file; 0 if there is none.
    pub inode: u64,
    /// The file, a name of the kernel or of the program in brackets, or an empty text.
    pub name: String,
}

impl fmt::Display for MappedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.addresses;
        let name = if self.name.is_empty() { "anonymous" } else { &self.name };
        write!(f, "{start:#x}..{end:#x} ({name})")
    }
}

impl MappedRange {
    fn parse(line: &str) -> Option<Self> {
        let MappingLine { addresses, is_readable, is_private, inode, name, .. } =
            MappingLine::parse(line.as_bytes())?;
        let address = |address| usize::try_from(address).ok();
        Some(Self {
            addresses: address(addresses.start)?..address(addresses.end)?,
            is_readable,
            is_shared: !is_private,
            inode,
            name: String::from_utf8_lossy(name).into_owned(),
        })
    }
}

/// Returns every mapping of this process, ascending. Mappings that other threads make meanwhile may
/// be missing.
///
/// # Errors
/// [`Error`] if `/proc/self/maps` cannot be read or understood.
pub fn read(root: &Root) -> Result<Vec<MappedRange>, Error> {
    read_some(root, |_| true)
}

/// Like [`read`], but returns only the mappings whose addresses `is_wanted` accepts. No memory is
/// allocated for the others, because a process may have very many mappings.
///
/// # Errors
/// The errors of [`read`], and an error if there is too little memory for the wanted mappings.
pub fn read_some(
    root: &Root,
    is_wanted: impl Fn(&Range<usize>) -> bool,
) -> Result<Vec<MappedRange>, Error> {
    let mut found: Vec<MappedRange> = Vec::new();
    root.each_line(MAPS, |line| {
        let malformed = || Error::malformed(root.path(MAPS), "a mapping in every line", line);
        let mapping = MappedRange::parse(line).ok_or_else(malformed)?;
        if is_wanted(&mapping.addresses) {
            let short = |_| Error::out_of_memory(root.path(MAPS));
            found.try_reserve(1).map_err(short)?;
            found.push(mapping);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Returns the first addresses of the mappings that overlap `addresses` and whose pages the kernel
/// may merge with equal pages (KSM). Since Linux 6.15, a process without such mappings finds this
/// out quickly; before, the check lasts milliseconds.
///
/// # Errors
/// [`Error`] if `/proc/self/smaps` cannot be read.
pub fn mergeable(root: &Root, addresses: &Range<usize>) -> Result<Vec<usize>, Error> {
    let ksm = root.read_if_present(KSM)?.unwrap_or_default();
    if ksm.lines().any(|line| line == "ksm_mergeable: no") {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    each_line_about(root, addresses, |mapping, line| {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            found.extend(flags.split(' ').any(|flag| flag == "mg").then_some(mapping));
        }
    })?;
    Ok(found)
}

/// Returns true if a mapping that overlaps `addresses` is on transparent huge pages.
///
/// # Errors
/// [`Error`] if `/proc/self/smaps` cannot be read.
pub fn probe_huge_pages(root: &Root, addresses: &Range<usize>) -> Result<bool, Error> {
    let mut have = false;
    each_line_about(root, addresses, |_, line| {
        let bytes = line.strip_prefix("AnonHugePages:");
        have |= bytes.is_some_and(|bytes| bytes.trim() != "0 kB");
    })?;
    Ok(have)
}

/// Calls `each` with the lines of `/proc/self/smaps` about mappings that overlap `addresses`, and their first addresses.
/// Nothing in a kernel without it.
fn each_line_about(
    root: &Root,
    addresses: &Range<usize>,
    mut tell: impl FnMut(usize, &str),
) -> Result<(), Error> {
    let mut of = None;
    let read = root.each_line(SMAPS, |line| {
        if let Some(mapping) = MappedRange::parse(line) {
            let Range { start, end } = mapping.addresses;
            of = (start < addresses.end && addresses.start < end).then_some(start);
        } else if let Some(mapping) = of {
            tell(mapping, line);
        }
        Ok(())
    });
    match read {
        Err(error) if error.is_not_found() => Ok(()),
        read => read,
    }
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Synthetic;
    use super::*;

    const LINES: &str = "\
55d0-55e0 rw-p 00000000 00:00 0                          [heap]
7f00-7f20 r--p 00001000 fe:01 1234                       /usr/lib/a file (deleted)
7f20-8000 ---s 00000000 00:00 0 ";

    #[test]
    fn mappings_of_any_line_are_taken_apart() {
        let machine = Synthetic::new();
        machine.file(MAPS, LINES);
        let maps = read(&machine.root()).unwrap();
        assert_eq!(maps.len(), 3);
        assert_eq!((&maps[0].addresses, maps[0].name.as_str()), (&(0x55d0..0x55e0), "[heap]"));
        assert_eq!((maps[1].inode, maps[1].name.as_str()), (1234, "/usr/lib/a file (deleted)"));
        assert!(maps[1].is_readable && !maps[1].is_shared);
        assert!(!maps[2].is_readable && maps[2].is_shared && maps[2].name.is_empty());
        assert_eq!(maps[2].to_string(), "0x7f20..0x8000 (anonymous)");
        for wrong in
            ["nonsense", "8000-7f00 rw-p 00000000 00:00 0", "7f00-7f00 rw-p 00000000 00:00 0"]
        {
            machine.file(MAPS, wrong);
            assert!(matches!(read(&machine.root()), Err(Error::Malformed { .. })), "{wrong}");
        }
    }

    #[test]
    fn mappings_of_files_whose_names_are_not_utf_8_are_read() {
        let machine = Synthetic::new();
        let line =
            b"7f00-7f20 r--p 00001000 fe:01 1234 /tmp/\xff\xfe (deleted)\n7f20-8000 rw-p 0 0 0";
        machine.bytes(MAPS, line);
        let maps = read(&machine.root()).unwrap();
        assert_eq!((maps.len(), maps[0].inode), (2, 1234));
        assert!(maps[0].name.starts_with("/tmp/") && maps[0].name.ends_with(" (deleted)"));
        machine.bytes("/proc/self/status", b"Name:\t\xff\xfe\nUid:\t1\n");
        assert!(machine.root().read("/proc/self/status").unwrap().contains("Uid:"));
    }

    #[test]
    fn mappings_that_may_be_merged_are_found() {
        let machine = Synthetic::new();
        let smaps: String = LINES
            .lines()
            .map(|line| format!("{line}\nSize: 4 kB\nVmFlags: rd wr mg ac \n"))
            .collect();
        machine.file(SMAPS, &smaps);
        assert_eq!(mergeable(&machine.root(), &(0x55df..0x7f01)).unwrap(), [0x55d0, 0x7f00]);
        machine.file(SMAPS, smaps.replace("mg", "me"));
        assert!(mergeable(&machine.root(), &(0..0x9000)).unwrap().is_empty());
        machine.file(SMAPS, &smaps);
        let on_huge_pages =
            smaps.replace("mg", "hg").replacen("Size: ", "AnonHugePages:     204", 1);
        machine.file(SMAPS, &on_huge_pages);
        assert!(probe_huge_pages(&machine.root(), &(0x55df..0x7f01)).unwrap());
        assert!(!probe_huge_pages(&machine.root(), &(0x7f00..0x7f01)).unwrap());
        machine.file(SMAPS, on_huge_pages.replace("2044 kB", "0 kB"));
        assert!(!probe_huge_pages(&machine.root(), &(0x55df..0x7f01)).unwrap());
        machine.file(SMAPS, &smaps);
        machine.file(KSM, "ksm_rmap_items 0\nksm_mergeable: no");
        assert!(mergeable(&machine.root(), &(0..0x9000)).unwrap().is_empty());
    }
}
