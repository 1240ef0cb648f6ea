//! The memory of a process that a userfaultfd serves, by `/proc/PID/smaps`.

use std::fs;
use std::io;
use std::ops::Range;

/// `VmFlags` of memory whose first accesses a userfaultfd serves.
const SERVED: &str = "um";

/// Of memory that a checkpoint protects. It is complete, and needs no pager.
const PROTECTED: &str = "uw";

/// A run of addresses without a gap. The kernel may have merged several regions of a VMM into one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) addresses: Range<u64>,
    /// Bytes of its pages.
    pub(crate) page: u64,
}

impl Mapping {
    pub(crate) fn len(&self) -> u64 {
        self.addresses.end - self.addresses.start
    }
}

/// Ascending, apart from each other or with other pages.
pub(crate) fn served(pid: i32) -> io::Result<Vec<Mapping>> {
    // Names of files in there may be any bytes.
    fs::read(format!("/proc/{pid}/smaps")).map(|text| parse(&String::from_utf8_lossy(&text)))
}

fn parse(smaps: &str) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
    let mut current = Mapping { addresses: 0..0, page: 0 };
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |wanted| flags.split_ascii_whitespace().any(|flag| flag == wanted);
            if has(SERVED) && !has(PROTECTED) {
                append(&mut found, current.clone());
            }
        } else if let Some(size) = line.strip_prefix("KernelPageSize:") {
            let kib = size.trim().trim_end_matches("kB").trim().parse::<u64>();
            current.page = kib.unwrap_or(0) << 10;
        } else if let Some(addresses) = addresses_of(line) {
            current.addresses = addresses;
        }
    }
    found
}

fn append(found: &mut Vec<Mapping>, next: Mapping) {
    match found.last_mut() {
        Some(last) if last.addresses.end == next.addresses.start && last.page == next.page => {
            last.addresses.end = next.addresses.end;
        }
        _ => found.push(next),
    }
}

/// Of the line that a mapping begins with.
fn addresses_of(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \nSize: 2048 kB\nKernelPageSize:        4 kB\n\
VmFlags: rd wr mr mw me ac sd um \n\
7f0000200000-7f0000300000 rw-p 00000000 00:00 0 \nKernelPageSize:        4 kB\n\
VmFlags: rd wr mr mw me ac sd um hg \n\
7f0000300000-7f0000400000 rw-p 00000000 00:00 0    [anon: um]\nKernelPageSize:        4 kB\n\
VmFlags: rd wr mr mw me ac sd um uw \n\
7f0000400000-7f0000800000 rw-p 00000000 00:11 7    /anon_hugepage (deleted)\n\
KernelPageSize:     2048 kB\nVmFlags: rd wr mr mw me de ht um sd \n";

    #[test]
    fn served_memory_is_found_and_joined() {
        let small = Mapping { addresses: 0x7f00_0000_0000..0x7f00_0030_0000, page: 4096 };
        let huge = Mapping { addresses: 0x7f00_0040_0000..0x7f00_0080_0000, page: 2 << 20 };
        assert_eq!(parse(SMAPS), [small, huge]);
    }
}
