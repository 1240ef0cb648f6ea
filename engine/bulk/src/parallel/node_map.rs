//! Maps from parts of a range to the NUMA nodes that hold them.

use std::ops::Range;
use std::ptr;

use rustix::param::page_size;

use hugekit_sys::memory;

/// The parts of a range, each with the NUMA node that holds it. Bytes without a part belong to no
/// node: any thread processes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMap {
    parts: Vec<(Range<usize>, u32)>,
}

/// An error of parts that do not make a map.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeMapError {
    /// The list of parts is empty.
    #[error("a node map needs at least one part")]
    Empty,
    /// A part is empty, or begins before the previous part ends.
    #[error(
        "part {}..{} of the node map is empty or begins before offset {from}",
        part.start, part.end
    )]
    Disordered {
        /// The part.
        part: Range<usize>,
        /// The least offset at which it may begin.
        from: usize,
    },
}

impl NodeMap {
    /// Makes a map of these parts: offsets in bytes, ascending, disjoint, none empty.
    ///
    /// # Errors
    /// [`NodeMapError::Empty`] if there are no parts. [`NodeMapError::Disordered`] if a part is
    /// empty, or begins before the previous part ends.
    pub fn new(parts: impl IntoIterator<Item = (Range<usize>, u32)>) -> Result<Self, NodeMapError> {
        let parts: Vec<_> = parts.into_iter().collect();
        let mut from = 0;
        for (part, _) in &parts {
            if part.is_empty() || part.start < from {
                return Err(NodeMapError::Disordered { part: part.clone(), from });
            }
            from = part.end;
        }
        if parts.is_empty() { Err(NodeMapError::Empty) } else { Ok(Self { parts }) }
    }

    /// Makes a map of a range of addresses, for a [`Job`](super::Job) in chunks of `step` bytes; 0
    /// counts as 1. The function asks the kernel for the nodes of some pages in every `step` bytes.
    /// If all these pages are on one node, the `step` bytes belong to that node. Pages that are not
    /// present belong to no node. Returns `None` if the kernel does not answer, or if no chunk has
    /// a node.
    ///
    /// Any address is valid: no byte is read.
    #[must_use]
    pub fn of_memory(addresses: Range<usize>, step: usize) -> Option<Self> {
        Self::of_pages(addresses, step, || None)
    }

    /// Like [`of_memory`](Self::of_memory), but pages that are not present count for the node that
    /// `absent` returns.
    pub(crate) fn of_pages(
        addresses: Range<usize>,
        step: usize,
        absent: impl FnOnce() -> Option<u32>,
    ) -> Option<Self> {
        Self::sampled(addresses.len(), step.max(1), page_size(), |offsets| {
            let at = |&offset: &usize| ptr::without_provenance(addresses.start + offset);
            let mut nodes = memory::nodes_of(&offsets.iter().map(at).collect::<Vec<_>>()).ok()?;
            if nodes.contains(&None) {
                let absent = absent();
                nodes.iter_mut().for_each(|node| *node = node.or(absent));
            }
            Some(nodes)
        })
    }

    /// Like [`of_pages`](Self::of_pages), with the nodes that `nodes_of` returns for the pages at
    /// these offsets.
    fn sampled(
        len: usize,
        step: usize,
        page: usize,
        nodes_of: impl FnOnce(&[usize]) -> Option<Vec<Option<u32>>>,
    ) -> Option<Self> {
        let pieces =
            || (0..len).step_by(step).map(|start| start..start.saturating_add(step).min(len));
        let offsets: Vec<usize> = pieces().flat_map(|piece| samples(piece, page)).collect();
        let nodes = nodes_of(&offsets)?;
        let mut rest = nodes.as_slice();
        let owned = pieces().filter_map(|piece| {
            let (of_piece, others) = rest.split_at(samples(piece.clone(), page).count());
            rest = others;
            Some((piece, agreed(of_piece)?))
        });
        Self::new(merged(owned)).ok()
    }

    /// Returns the parts of `0..len` in order, including the parts that belong to no node.
    pub(super) fn cover(&self, len: usize) -> Vec<(Range<usize>, Option<u32>)> {
        let mut cover = Vec::with_capacity(self.parts.len() + 1);
        let mut from = 0;
        for (part, node) in &self.parts {
            let part = part.start.min(len)..part.end.min(len);
            cover.push((from..part.start, None));
            from = part.end;
            cover.push((part, Some(*node)));
        }
        cover.push((from..len, None));
        cover.retain(|(part, _)| !part.is_empty());
        cover
    }
}

/// The number of pages that are sampled in each piece. With this many samples, memory that is
/// interleaved over two nodes, or three pages to one page, hardly ever looks like memory of one
/// node (one piece in 30,000, and one piece in 100). The samples cost 0.1 µs each, a hundredth of
/// clearing the smallest piece.
const SAMPLES: usize = 16;

/// Returns offsets of the pages to sample. The piece is divided into strata of equal length, and
/// each stratum has one sample at a pseudo-random offset. At regular distances all samples would
/// meet the same node if the distances were multiples of the interleaving unit: a page, a huge
/// page, or a gigabyte.
fn samples(piece: Range<usize>, page: usize) -> impl Iterator<Item = usize> {
    let pages = piece.len().div_ceil(page);
    let count = pages.min(SAMPLES);
    (0..count).map(move |index| {
        let stratum = pages * index / count..pages * (index + 1) / count;
        let chosen = stratum.start + fragmented(piece.start / page + stratum.start) % stratum.len();
        piece.start + chosen * page
    })
}

/// Returns a number without visible relation to `number` (the finaliser of `SplitMix64`).
fn fragmented(number: usize) -> usize {
    let mut mixed = (number as u64).wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((mixed ^ (mixed >> 31)) >> 1) as usize
}

/// Returns the node that all samples name.
fn agreed(samples: &[Option<u32>]) -> Option<u32> {
    let (first, others) = samples.split_first()?;
    first.filter(|_| others.iter().all(|other| other == first))
}

/// Merges neighbours on the same node into one part.
fn merged(parts: impl Iterator<Item = (Range<usize>, u32)>) -> Vec<(Range<usize>, u32)> {
    let mut merged: Vec<(Range<usize>, u32)> = Vec::new();
    for (part, node) in parts {
        match merged.last_mut() {
            Some((last, on)) if *on == node && last.end == part.start => last.end = part.end,
            _ => merged.push((part, node)),
        }
    }
    merged
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns a vector of one range. The function exists because a vector literal of a range looks
    /// like a vector of the range's elements.
    fn part(bytes: Range<usize>, node: u32) -> (Range<usize>, u32) {
        (bytes, node)
    }

    #[test]
    fn node_map_beyond_its_parts_has_no_owner_and_is_cut() {
        let map = NodeMap::new([part(10..20, 1), part(20..30, 0), part(40..90, 1)]).unwrap();
        let expected = [
            (0..10, None),
            (10..20, Some(1)),
            (20..30, Some(0)),
            (30..40, None),
            (40..50, Some(1)),
        ];
        assert_eq!(map.cover(50), expected);
        assert_eq!(map.cover(5), [(0..5, None)]);
    }

    #[test]
    fn node_map_of_parts_that_are_none_is_refused() {
        assert_eq!(NodeMap::new([]), Err(NodeMapError::Empty));
        let disordered = |part, from| Err(NodeMapError::Disordered { part, from });
        assert_eq!(NodeMap::new([part(0..10, 0), part(9..20, 1)]), disordered(9..20, 10));
        assert_eq!(NodeMap::new([part(5..5, 0)]), disordered(5..5, 0));
    }

    #[test]
    fn node_map_of_neighbours_on_one_node_is_one_part() {
        let parts = [part(0..1, 0), part(1..2, 0), part(2..3, 1), part(4..5, 1)];
        assert_eq!(merged(parts.into_iter()), [(0..2, 0), (2..3, 1), (4..5, 1)]);
    }

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    const GIB: usize = 1 << 30;

    /// Returns the map of this many bytes in these steps; `node` returns the node of an offset.
    fn map_of(len: usize, step: usize, node: impl Fn(usize) -> Option<u32>) -> Option<NodeMap> {
        NodeMap::sampled(len, step, 4 * KIB, |offsets| {
            Some(offsets.iter().map(|&offset| node(offset)).collect())
        })
    }

    /// Returns the number of bytes, of `len`, that each node owns according to the map.
    fn owned(map: Option<&NodeMap>, nodes: u32) -> Vec<usize> {
        let of = |node: u32| {
            let parts = map.into_iter().flat_map(|map| &map.parts);
            parts.filter(|(_, on)| *on == node).map(|(part, _)| part.len()).sum()
        };
        (0..nodes).map(of).collect()
    }

    /// With one sample per step, such memory looked like memory of one node, and all helpers went
    /// there.
    #[test]
    fn node_map_of_fine_interleaving_has_no_owner() {
        for (grain, step) in [(4 * KIB, 2 * MIB), (4 * KIB, 128 * MIB), (2 * MIB, 128 * MIB)] {
            for nodes in [2, 3, 4, 8_u32] {
                let node = |offset: usize| Some((offset / grain) as u32 % nodes);
                let owned = owned(map_of(16 * GIB, step, node).as_ref(), nodes);
                let most = 16 * GIB / 1000;
                assert!(owned.iter().all(|&bytes| bytes <= most), "{grain} {step}: {owned:?}");
            }
        }
    }

    #[test]
    fn node_map_of_coarse_interleaving_is_as_it_lies() {
        for (grain, step) in [(GIB, 128 * MIB), (2 * MIB, 2 * MIB), (64 * MIB, 16 * MIB)] {
            for nodes in [2, 4_u32] {
                let node = |offset: usize| Some((offset / grain) as u32 % nodes);
                let map = map_of(8 * GIB, step, node).unwrap();
                let right = |(part, on): &(Range<usize>, u32)| node(part.start) == Some(*on);
                assert!(map.parts.iter().all(right), "{grain} {step}");
                assert_eq!(
                    owned(Some(&map), nodes),
                    vec![8 * GIB / nodes as usize; nodes as usize]
                );
            }
        }
    }

    /// Three pages are on node 0 for each page on node 1: node 0 owns little, node 1 nothing.
    #[test]
    fn node_map_of_weighted_interleaving_has_no_owner() {
        for grain in [4 * KIB, 2 * MIB] {
            let node = |offset: usize| Some(u32::from((offset / grain).is_multiple_of(4)));
            let owned = owned(map_of(16 * GIB, 128 * MIB, node).as_ref(), 2);
            assert!(owned[0] <= 16 * GIB / 20 && owned[1] == 0, "{grain}: {owned:?}");
        }
    }

    #[test]
    fn node_map_of_first_touch_and_bound_memory_keeps_owners() {
        let halves = |offset: usize| Some(u32::from(offset >= 3 * GIB + 70 * MIB));
        let map = map_of(8 * GIB, 128 * MIB, halves).unwrap();
        assert_eq!(map.parts, [(0..3 * GIB, 0), (3 * GIB + 128 * MIB..8 * GIB, 1)]);
        let bound = map_of(8 * GIB + 12345, 128 * MIB, |_| Some(3)).unwrap();
        assert_eq!(bound.parts, [part(0..8 * GIB + 12345, 3)]);
        assert_eq!(map_of(GIB, 128 * MIB, |_| None), None);
    }

    #[test]
    fn node_map_of_a_short_piece_looks_at_every_page() {
        assert_eq!(
            samples(8192..8192 + 3 * 4096 + 5, 4096).collect::<Vec<_>>(),
            [8192, 8192 + 4096, 8192 + 2 * 4096, 8192 + 3 * 4096,]
        );
        assert_eq!(samples(5..5, 4096).count(), 0);
    }

    #[test]
    fn node_map_of_memory_just_written_is_one_of_the_nodes() {
        let bytes = vec![1_u8; 3 * page_size() + 5];
        if memory::nodes_of(&[bytes.as_ptr()]).is_err() {
            return; // A sandbox without move_pages(2), or an emulator.
        }
        let start = bytes.as_ptr().addr();
        let addresses = start..start + bytes.len();
        let map = NodeMap::of_memory(addresses, page_size()).unwrap();
        assert!(map.cover(bytes.len()).iter().all(|(_, node)| node.is_some()));
    }
}
