//! Which node holds which part of a range.

use std::ops::Range;

use crate::sys::memory;

/// Parts of a range by the node that holds them. What no part names belongs to no node: any
/// thread takes it, wherever it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMap {
    parts: Vec<(Range<usize>, u32)>,
}

/// Parts that are no map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeMapError {
    /// There is not a single part.
    #[error("a node map needs at least one part")]
    Empty,
    /// A part is empty, or begins before its predecessor ends.
    #[error(
        "part {}..{} of the node map is empty or begins before offset {from}",
        part.start, part.end
    )]
    Disordered {
        /// The part.
        part: Range<usize>,
        /// Where it may begin at the earliest.
        from: usize,
    },
}

impl NodeMap {
    /// A map of these parts: offsets in bytes, ascending, disjoint, none empty.
    ///
    /// # Errors
    /// [`NodeMapError`] if there are none, or they are not like that.
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

    /// Asks the kernel for the node of one page in every `step` bytes, and takes it for that of
    /// all of them. Pages that are not present count as `absent`'s, or as nobody's. `None` where
    /// the kernel does not answer, or knows none of them.
    pub(crate) fn of_memory(
        start: *const u8,
        len: usize,
        step: usize,
        absent: Option<u32>,
    ) -> Option<Self> {
        let offsets: Vec<usize> = (0..len).step_by(step).collect();
        let addresses: Vec<_> = offsets.iter().map(|&offset| start.wrapping_add(offset)).collect();
        let nodes = memory::nodes_of(&addresses).ok()?;
        let part = |(offset, node): (usize, Option<u32>)| {
            Some((offset..offset.saturating_add(step).min(len), node.or(absent)?))
        };
        Self::new(merged(offsets.into_iter().zip(nodes).filter_map(part))).ok()
    }

    /// The parts of `0..len` in order, those of no node included.
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

/// Neighbours on the same node become one part.
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

    /// A vector of one range, spelled so that nobody takes it for the range's elements.
    fn part(bytes: Range<usize>, node: u32) -> (Range<usize>, u32) {
        (bytes, node)
    }

    #[test]
    fn what_no_part_names_belongs_to_nobody_and_what_is_too_long_is_cut() {
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
    fn parts_that_are_no_map_are_refused() {
        assert_eq!(NodeMap::new([]), Err(NodeMapError::Empty));
        let disordered = |part, from| Err(NodeMapError::Disordered { part, from });
        assert_eq!(NodeMap::new([part(0..10, 0), part(9..20, 1)]), disordered(9..20, 10));
        assert_eq!(NodeMap::new([part(5..5, 0)]), disordered(5..5, 0));
    }

    #[test]
    fn neighbours_on_one_node_become_one_part() {
        let parts = [part(0..1, 0), part(1..2, 0), part(2..3, 1), part(4..5, 1)];
        assert_eq!(merged(parts.into_iter()), [(0..2, 0), (2..3, 1), (4..5, 1)]);
    }

    #[test]
    fn memory_just_written_is_on_one_of_this_machines_nodes() {
        let bytes = vec![1_u8; 3 * 4096 + 5];
        let Some(map) = NodeMap::of_memory(bytes.as_ptr(), bytes.len(), 4096, None) else {
            return; // A sandbox without move_pages(2).
        };
        assert!(map.cover(bytes.len()).iter().all(|(_, node)| node.is_some()));
    }
}
