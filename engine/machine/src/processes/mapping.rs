//! Mappings of a process: `/proc/PID/maps` and `/proc/PID/smaps`.

use std::io::{self, BufRead};
use std::ops::Range;

/// The line with which `/proc/PID/maps` and `smaps` begin a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingLine<'a> {
    /// The addresses of the mapping, at least one page.
    pub addresses: Range<u64>,
    /// True if the mapping may be read now.
    pub is_readable: bool,
    /// True if only this process sees its writes.
    pub is_private: bool,
    /// The major and minor number of its file's device; 0 if it has no file.
    pub device: (u32, u32),
    /// The inode number of its file; 0 if it has no file.
    pub inode: u64,
    /// The file, a name of the kernel or of the program in brackets, or empty.
    pub name: &'a [u8],
}

impl<'a> MappingLine<'a> {
    /// Parses `START-END PERMISSIONS OFFSET DEVICE INODE [NAME]`. `None` for any other line.
    #[must_use]
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let (start, end) = text()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let addresses = address(start)?..address(end)?;
        let permissions = text()?.as_bytes();
        let (is_readable, is_private) =
            (*permissions.first()? == b'r', *permissions.get(3)? == b'p');
        let (_offset, device, inode) = (text()?, text()?, text()?.parse().ok()?);
        let number = |text| u32::from_str_radix(text, 16).ok();
        let (major, minor) = device.split_once(':').unwrap_or((device, "0"));
        let device = (number(major)?, number(minor)?);
        let name = fields.next().unwrap_or_default().trim_ascii_start();
        let line = Self { addresses, is_readable, is_private, device, inode, name };
        (!line.addresses.is_empty()).then_some(line)
    }
}

/// A mapping of a process, with the numbers of `/proc/PID/smaps` in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The addresses of the mapping.
    pub addresses: Range<u64>,
    /// True if only this process sees its writes.
    pub is_private: bool,
    /// The major and minor number of its file's device; 0 if it has no file.
    pub device: (u32, u32),
    /// The inode number of its file; 0 if it has no file. Mappings of hugetlbfs and of shared
    /// memory always have one.
    pub inode: u64,
    /// True if the kernel made it (`[vdso]`, `[vvar]`, `[vsyscall]`).
    pub is_kernels: bool,
    /// Bytes of a page of the mapping.
    pub page: u64,
    /// Bytes in memory.
    pub resident: u64,
    /// Bytes that are private copies, or that belong to no file.
    pub anonymous: u64,
    /// Anonymous bytes on huge pages.
    pub huge: u64,
    /// Bytes of a file or shared memory that are mapped by huge pages.
    pub file_huge: u64,
    /// Bytes in memory that another process has, too.
    pub shared: u64,
    /// Bytes that are swapped out.
    pub swapped: u64,
    /// Bytes that the process has freed lazily (`MADV_FREE`). The kernel frees them when it needs
    /// memory.
    pub lazily_freed: u64,
    /// Flags of two letters (`VmFlags`), see proc(5).
    pub flags: Vec<[u8; 2]>,
}

impl Mapping {
    /// Returns true if the mapping has one of these flags.
    #[must_use]
    pub fn has(&self, flags: &[&[u8; 2]]) -> bool {
        flags.iter().any(|flag| self.flags.contains(flag))
    }

    fn of(line: &MappingLine<'_>) -> Self {
        let kernels = [&b"[vdso"[..], b"[vvar", b"[vsyscall", b"[uprobes"];
        let is_kernels = kernels.iter().any(|start| line.name.starts_with(start));
        let MappingLine { ref addresses, is_private, device, inode, .. } = *line;
        let addresses = addresses.clone();
        Self { addresses, is_private, device, inode, is_kernels, ..Self::default() }
    }

    /// Parses `KEY: VALUE kB`, or `VmFlags: aa bb`.
    fn add(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { return };
        let (key, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let figure = match key {
            b"KernelPageSize" => &mut self.page,
            b"Rss" => &mut self.resident,
            b"Anonymous" => &mut self.anonymous,
            b"AnonHugePages" => &mut self.huge,
            b"ShmemPmdMapped" | b"FilePmdMapped" => &mut self.file_huge,
            b"Shared_Clean" | b"Shared_Dirty" => &mut self.shared,
            b"Swap" => &mut self.swapped,
            b"LazyFree" => &mut self.lazily_freed,
            b"VmFlags" => {
                let words = value.split(|&byte| byte == b' ');
                self.flags = words.filter_map(|word| word.try_into().ok()).collect();
                return;
            }
            _ => return,
        };
        let number = value.strip_suffix(b" kB").and_then(|text| std::str::from_utf8(text).ok());
        let kibibytes: u64 = number.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        *figure = figure.saturating_add(kibibytes.saturating_mul(1024));
    }
}

/// Calls `take` for each mapping in `/proc/PID/smaps`. A malformed line costs one mapping, or one
/// number of it.
///
/// # Errors
/// An error if the file cannot be read: the process has ended, or this process may not inspect it.
pub fn each_mapping(mut smaps: impl BufRead, mut take: impl FnMut(&Mapping)) -> io::Result<()> {
    let (mut line, mut mapping) = (Vec::new(), None::<Mapping>);
    loop {
        line.clear();
        let is_over = smaps.read_until(b'\n', &mut line)? == 0;
        // Keys begin with a capital letter, addresses with a digit or a small one.
        if is_over || !line[0].is_ascii_uppercase() {
            mapping.iter().for_each(&mut take);
            mapping = MappingLine::parse(line.trim_ascii_end()).map(|line| Mapping::of(&line));
        } else if let Some(mapping) = &mut mapping {
            mapping.add(line.trim_ascii_end());
        }
        if is_over {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Vec<Mapping> {
        let mut all = Vec::new();
        each_mapping(text, |mapping| all.push(mapping.clone())).unwrap();
        all
    }

    #[test]
    fn mappings_of_any_name_are_read() {
        let text = b"\
00400000-00600000 rw-p 00000000 00:00 0                          [heap]
Size:               2048 kB
KernelPageSize:        4 kB
Rss:                1036 kB
Anonymous:          1024 kB
AnonHugePages:       512 kB
Shared_Clean:          4 kB
Shared_Dirty:          8 kB
LazyFree:             20 kB
Swap:                 16 kB
THPeligible:    1
VmFlags: rd wr mr mw me ac lo
7f00-8f00 r--s 00001000 fe:01 1234 /tmp/\xff\xfe Anonymous: 7 kB (deleted)
Anonymous:             0 kB
ShmemPmdMapped:        4 kB
FilePmdMapped:         8 kB
nonsense
Anonymous:            99 kB
c000-d000 r-xp 00000000 00:00 0 [vdso]
VmFlags: rd ex";
        let found = all(text);
        assert_eq!(found.len(), 3);
        let heap = Mapping {
            addresses: 0x40_0000..0x60_0000,
            is_private: true,
            page: 4096,
            resident: 1036 << 10,
            anonymous: 1 << 20,
            huge: 512 << 10,
            shared: 12 << 10,
            swapped: 16 << 10,
            lazily_freed: 20 << 10,
            flags: found[0].flags.clone(),
            ..Mapping::default()
        };
        assert_eq!(found[0], heap);
        assert!(heap.has(&[b"lo"]) && heap.has(&[b"zz", b"rd"]) && !heap.has(&[b"ht"]));
        assert_eq!((found[1].inode, found[1].is_private, found[1].anonymous), (1234, false, 0));
        assert_eq!((found[1].device, found[1].file_huge), ((0xfe, 1), 12 << 10));
        assert!(found[2].is_kernels && all(b"").is_empty());
    }
}
