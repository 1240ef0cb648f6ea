//! Memory of a process whose faults a userfaultfd handles.

use std::io;
use std::ops::Range;

use hugekit_machine::processes::Mapping;

use crate::vmm::mappings::{is_protected, is_served, mappings_of};

/// A run of addresses without a gap. The kernel may have merged several regions of a VMM into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) addresses: Range<u64>,
    /// Bytes of a page.
    pub(crate) page: u64,
}

impl Served {
    /// Returns the runs, ascending. Between two runs there is a gap, or they have different pages.
    /// Memory that a checkpoint protects is complete, and is not included.
    pub(crate) fn of_process(pid: i32) -> io::Result<Vec<Self>> {
        mappings_of(pid).map(Self::among)
    }

    fn among(mappings: Vec<Mapping>) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        for Mapping { addresses, page, .. } in
            mappings.into_iter().filter(|mapping| is_served(mapping) && !is_protected(mapping))
        {
            match found.last_mut() {
                Some(last) if last.addresses.end == addresses.start && last.page == page => {
                    last.addresses.end = addresses.end;
                }
                _ => found.push(Self { addresses, page }),
            }
        }
        found
    }

    pub(crate) fn len(&self) -> u64 {
        self.addresses.end - self.addresses.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmm::mappings::mappings_in;

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
        let small = Served { addresses: 0x7f00_0000_0000..0x7f00_0030_0000, page: 4096 };
        let huge = Served { addresses: 0x7f00_0040_0000..0x7f00_0080_0000, page: 2 << 20 };
        assert_eq!(Served::among(mappings_in(SMAPS.as_bytes()).unwrap()), [small, huge]);
    }
}
