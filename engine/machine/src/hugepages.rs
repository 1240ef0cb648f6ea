//! The kernel's pools of huge pages, one pool per size.

use std::fmt;

use super::topology::online_nodes;
use super::{Error, Memory, Root};
use crate::size::Size;
use hugekit_sys::Remedy;

const POOLS: &str = "/sys/kernel/mm/hugepages";

/// The pool of huge pages of one size. Counts are pages of that size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugePagePool {
    /// Size of one page in bytes.
    pub page_size: u64,
    /// Pages in the pool, surplus pages included.
    pub total: u64,
    /// Pages that are not in use. Some of them may be promised.
    pub free: u64,
    /// Free pages promised to mappings that have not touched them yet.
    pub reserved: u64,
    /// Pages that the kernel has added from ordinary memory to the pages of the administrator.
    pub surplus: u64,
    /// The highest number of surplus pages that the kernel may allocate.
    pub overcommit: u64,
    /// The same pool node by node.
    pub nodes: Vec<NodePool>,
}

/// The part of a pool that lies on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePool {
    /// The number of the node.
    pub node: u32,
    /// Pages on the node.
    pub total: u64,
    /// Free pages among these.
    pub free: u64,
    /// Surplus pages among these.
    pub surplus: u64,
}

impl HugePagePool {
    /// Returns the number of free pages that are not promised to a process.
    pub fn unpromised(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }

    /// Returns the number of pages that the kernel may still add from ordinary memory, if it finds
    /// contiguous memory.
    pub fn may_grow_by(&self) -> u64 {
        self.overcommit.saturating_sub(self.surplus)
    }
}

/// A shortage of huge pages: too few are reserved, or other processes use them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Shortage {
    /// Bytes of a page.
    pub page_size: usize,
    /// Pages that were requested.
    pub wanted: u64,
    /// Pages that the machine has.
    pub total: u64,
    /// Pages among these that are not in use.
    pub free: u64,
    /// Free pages that are promised to mappings that have not touched them yet.
    pub promised: u64,
    /// Pages for which the machine has spare memory; `None` if this is unknown.
    pub spare: Option<u64>,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { page_size, wanted, total, free, promised, .. } = *self;
        let pages = if wanted == 1 { "page" } else { "pages" };
        write!(f, "needs {wanted} huge {pages} of {}, and ", Size(page_size).exact())?;
        match (total, free, promised) {
            (0, ..) => write!(f, "none is reserved")?,
            (_, 0, _) => write!(f, "all {total} that are reserved are in use")?,
            (_, _, 0) => write!(f, "{free} of the {total} that are reserved are free")?,
            _ => write!(
                f,
                "{free} of the {total} that are reserved are free, {promised} of these promised to other programs"
            )?,
        }
        Remedy(Some(self.remedy())).fmt(f)
    }
}

impl Shortage {
    /// Returns the shortage of this many pages, if the pool has too few and may not grow.
    #[must_use]
    pub fn of(root: &Root, pool: &HugePagePool, wanted: u64) -> Option<Self> {
        let spare = || Memory::read(root).ok().map(|memory| memory.spare() / pool.page_size);
        (pool.unpromised() + pool.may_grow_by() < wanted).then(|| Self {
            page_size: usize::try_from(pool.page_size).unwrap_or(usize::MAX),
            wanted,
            total: pool.total,
            free: pool.free,
            promised: pool.reserved,
            spare: spare(),
        })
    }

    /// Returns a step by which an administrator can provide the missing pages.
    #[must_use]
    pub fn remedy(&self) -> String {
        let missing = self.wanted.saturating_sub(self.free.saturating_sub(self.promised));
        remedy(self.page_size as u64, self.total, missing, self.spare)
    }
}

/// Returns the command that reserves `missing` more pages of a size. The machine has `total` of
/// these pages. If the machine cannot spare the memory, returns this fact, and the number of pages
/// that it can spare. `spare` is this number ([`Memory::spare`](super::Memory::spare)), if it is
/// known.
pub fn remedy(page_size: u64, total: u64, missing: u64, spare: Option<u64>) -> String {
    let kib = page_size >> 10;
    match spare {
        Some(spare) if missing <= spare => {
            format!("echo {} > {POOLS}/hugepages-{kib}kB/nr_hugepages", total + missing)
        }
        Some(spare) => format!(
            "this machine cannot spare {missing} more huge pages of {kib} kB, at most {spare}: an eighth of its \
             memory is left to everything else; ask for less"
        ),
        None => format!(
            "{missing} more huge pages of {kib} kB must be reserved, if the machine has the memory: how much it \
             has could not be read"
        ),
    }
}

/// Returns the bytes of a transparent huge page; `None` if the kernel does not have them.
///
/// # Errors
/// [`Error`] if the file cannot be read.
pub fn transparent_size(root: &Root) -> Result<Option<u64>, Error> {
    let size = root.read_if_present("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")?;
    Ok(size.and_then(|size| size.trim().parse().ok()))
}

/// Reads the pools, smallest pages first.
///
/// # Errors
/// [`Error`] if a file or the directory cannot be read or understood. A kernel without hugetlb has
/// no directory.
pub fn read(root: &Root) -> Result<Vec<HugePagePool>, Error> {
    let names = root.names(POOLS)?;
    let mut sizes: Vec<u64> = names.iter().filter_map(|name| size_of(name)).collect();
    sizes.sort_unstable();
    sizes.into_iter().map(|page_size| read_size(root, page_size)).collect()
}

/// Returns the page size in bytes from the name of a directory such as `hugepages-2048kB`, also for
/// transparent huge pages.
pub fn size_of(name: &str) -> Option<u64> {
    let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    kib.parse::<u64>().ok()?.checked_mul(1024)
}

/// Reads the pool of pages of one size.
///
/// # Errors
/// The errors of [`read`]. A kernel without pages of that size has no such files.
pub fn read_size(root: &Root, page_size: u64) -> Result<HugePagePool, Error> {
    let number = |name| root.read_number(format!("{POOLS}/hugepages-{}kB/{name}", page_size >> 10));
    let nodes = online_nodes(root)?.unwrap_or_default();
    let nodes: Result<Vec<_>, _> =
        nodes.iter().map(|node| on_node(root, page_size, node)).collect();
    Ok(HugePagePool {
        page_size,
        total: number("nr_hugepages")?,
        free: number("free_hugepages")?,
        reserved: number("resv_hugepages")?,
        surplus: number("surplus_hugepages")?,
        overcommit: number("nr_overcommit_hugepages")?,
        nodes: nodes?.into_iter().flatten().collect(),
    })
}

/// Reads the pool of a node. `None` for a node without memory, which has no pools.
fn on_node(root: &Root, page_size: u64, node: u32) -> Result<Option<NodePool>, Error> {
    let kib = page_size >> 10;
    let directory = format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB");
    if !root.exists(&directory) {
        return Ok(None);
    }
    let number = |name| root.read_number(format!("{directory}/{name}"));
    Ok(Some(NodePool {
        node,
        total: number("nr_hugepages")?,
        free: number("free_hugepages")?,
        surplus: number("surplus_hugepages")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Synthetic;
    use super::*;

    #[test]
    fn shortage_says_how_many_there_are_as_a_person_would() {
        let says = |wanted, total, free, promised| {
            let page_size = 1 << 30;
            let shortage = Shortage { page_size, wanted, total, free, promised, spare: None };
            hugekit_sys::error_chain(&shortage).to_string()
        };
        assert_eq!(says(1, 0, 0, 0), "needs 1 huge page of 1 GiB, and none is reserved");
        let in_use = "needs 4 huge pages of 1 GiB, and all 3 that are reserved are in use";
        assert_eq!(says(4, 3, 0, 0), in_use);
        let some = "needs 4 huge pages of 1 GiB, and 2 of the 3 that are reserved are free";
        assert_eq!(says(4, 3, 2, 0), some);
        let promised = format!("{some}, 1 of these promised to other programs");
        assert_eq!(says(4, 3, 2, 1), promised);
    }

    fn with_pool(machine: &Synthetic, kib: u64, counts: [&str; 5]) {
        let names = [
            "nr_hugepages",
            "free_hugepages",
            "resv_hugepages",
            "surplus_hugepages",
            "nr_overcommit_hugepages",
        ];
        let files: Vec<_> = names.into_iter().zip(counts).collect();
        machine.files(&format!("{POOLS}/hugepages-{kib}kB"), &files);
    }

    fn with_node(machine: &Synthetic, node: u32, kib: u64, counts: [&str; 3]) {
        let names = ["nr_hugepages", "free_hugepages", "surplus_hugepages"];
        let files: Vec<_> = names.into_iter().zip(counts).collect();
        let directory = format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB");
        machine.files(&directory, &files);
    }

    #[test]
    fn pools_of_two_sizes_on_two_nodes_are_read() {
        let machine = Synthetic::new();
        machine.file("/sys/devices/system/node/online", "0-2");
        with_pool(&machine, 1 << 20, ["1", "1", "0", "0", "0"]);
        with_pool(&machine, 2048, ["512", "500", "12", "2", "8"]);
        with_node(&machine, 0, 2048, ["256", "250", "2"]);
        with_node(&machine, 2, 2048, ["256", "250", "0"]);
        with_node(&machine, 0, 1 << 20, ["1", "1", "0"]);
        let pools = read(&machine.root()).unwrap();
        assert_eq!(pools.iter().map(|pool| pool.page_size).collect::<Vec<_>>(), [2 << 20, 1 << 30]);
        assert_eq!((pools[0].unpromised(), pools[0].may_grow_by()), (488, 6));
        let nodes: Vec<_> = pools[0].nodes.iter().map(|pool| (pool.node, pool.surplus)).collect();
        assert_eq!(nodes, [(0, 2), (2, 0)]);
    }

    #[test]
    fn remedy_beyond_spare_memory_asks_for_no_more() {
        let said = |missing, spare| remedy(2 << 20, 100, missing, spare);
        let command = "echo 600 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        assert_eq!(said(500, Some(500)), command);
        let refused = said(501, Some(500));
        assert!(refused.contains("cannot spare 501 more huge pages of 2048 kB, at most 500"));
        for words in [refused, said(1, Some(0)), said(1, None)] {
            assert!(!words.contains("echo"), "{words}");
        }
    }

    #[test]
    fn pools_without_numa_are_read() {
        let machine = Synthetic::new();
        with_pool(&machine, 2048, ["1", "1", "0", "0", "0"]);
        assert_eq!(read(&machine.root()).unwrap()[0].nodes, []);
    }

    #[test]
    fn pools_without_hugetlb_are_none() {
        assert!(read(&Synthetic::new().root()).unwrap_err().is_not_found());
    }

    #[test]
    fn pools_of_garbage_are_an_error_that_names_it() {
        let machine = Synthetic::new();
        with_pool(&machine, 2048, ["1", "-", "0", "0", "0"]);
        let message = read(&machine.root()).unwrap_err().to_string();
        assert!(message.contains("free_hugepages: expected a number, found \"-\""), "{message}");
    }
}
