//! `/proc/PID/smaps`, mapping by mapping.

use std::io::{self, BufRead};
use std::ops::Range;

/// A mapping, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) addresses: Range<u64>,
    pub(crate) is_private: bool,
    /// The inode of its file; 0 if there is none.
    pub(crate) inode: u64,
    /// True if the kernel made it (`[vdso]`, `[vvar]`, `[vsyscall]`).
    pub(crate) is_kernels: bool,
    /// Pages that are private copies or of no file.
    pub(crate) anonymous: u64,
    /// Bytes among these on huge pages.
    pub(crate) huge: u64,
    /// Present, and present in another process too.
    pub(crate) shared: u64,
    /// Swapped out.
    pub(crate) swapped: u64,
    /// Words of two letters, see proc(5).
    flags: Vec<[u8; 2]>,
}

impl Mapping {
    pub(crate) fn has(&self, flags: &[&[u8; 2]]) -> bool {
        flags.iter().any(|flag| self.flags.contains(flag))
    }

    /// `START-END PERMISSIONS OFFSET DEVICE INODE [NAME]`.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let (start, end) = text()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let addresses = address(start)?..address(end)?;
        let is_private = text()?.as_bytes().get(3) == Some(&b'p');
        let (_offset, _device, inode) = (text()?, text()?, text()?.parse().ok()?);
        let name = fields.next().unwrap_or_default().trim_ascii_start();
        let kernels = [&b"[vdso"[..], b"[vvar", b"[vsyscall", b"[uprobes"];
        let is_kernels = kernels.iter().any(|start| name.starts_with(start));
        Some(Self { addresses, is_private, inode, is_kernels, ..Self::default() })
    }

    /// `KEY: VALUE kB`, or `VmFlags: aa bb`.
    fn add(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { return };
        let (key, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let figure = match key {
            b"Anonymous" => &mut self.anonymous,
            b"AnonHugePages" => &mut self.huge,
            b"Shared_Clean" | b"Shared_Dirty" => &mut self.shared,
            b"Swap" => &mut self.swapped,
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

/// Calls `take` for each mapping. A line that cannot be understood costs one mapping, or one figure of it.
pub(crate) fn each(mut smaps: impl BufRead, mut take: impl FnMut(&Mapping)) -> io::Result<()> {
    let (mut line, mut mapping) = (Vec::new(), None::<Mapping>);
    loop {
        line.clear();
        let is_over = smaps.read_until(b'\n', &mut line)? == 0;
        // Keys begin with a capital letter, addresses with a digit or a small one.
        if is_over || !line[0].is_ascii_uppercase() {
            mapping.iter().for_each(&mut take);
            mapping = Mapping::parse(line.trim_ascii_end());
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
        each(text, |mapping| all.push(mapping.clone())).unwrap();
        all
    }

    #[test]
    fn mappings_of_any_name_are_read() {
        let text = b"\
00400000-00600000 rw-p 00000000 00:00 0                          [heap]
Size:               2048 kB
Anonymous:          1024 kB
AnonHugePages:       512 kB
Shared_Clean:          4 kB
Shared_Dirty:          8 kB
Swap:                 16 kB
THPeligible:    1
VmFlags: rd wr mr mw me ac lo
7f00-8f00 r--s 00001000 fe:01 1234 /tmp/\xff\xfe Anonymous: 7 kB (deleted)
Anonymous:             0 kB
nonsense
Anonymous:            99 kB
c000-d000 r-xp 00000000 00:00 0 [vdso]
VmFlags: rd ex";
        let found = all(text);
        assert_eq!(found.len(), 3);
        let heap = Mapping {
            addresses: 0x40_0000..0x60_0000,
            is_private: true,
            anonymous: 1 << 20,
            huge: 512 << 10,
            shared: 12 << 10,
            swapped: 16 << 10,
            flags: found[0].flags.clone(),
            ..Mapping::default()
        };
        assert_eq!(found[0], heap);
        assert!(heap.has(&[b"lo"]) && heap.has(&[b"zz", b"rd"]) && !heap.has(&[b"ht"]));
        assert_eq!((found[1].inode, found[1].is_private, found[1].anonymous), (1234, false, 0));
        assert!(found[2].is_kernels && all(b"").is_empty());
    }
}
