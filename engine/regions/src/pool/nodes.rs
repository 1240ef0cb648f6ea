//! Which nodes a pool's memory comes from.

use super::PoolError;
use hugekit_machine::CpuSet;
use hugekit_sys::mapping::SharedMapping;
use hugekit_sys::mempolicy::{self, Mode};

/// The NUMA nodes that a pool's memory comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodePolicy {
    /// The memory policy of the thread that populates the memory, for example of `numactl`.
    #[default]
    Process,
    /// The node of the CPU that populates the memory.
    Local,
    /// Only these nodes. It is an error if they have no memory left.
    Bind(Vec<u32>),
    /// These nodes in turn, page by page.
    Interleave(Vec<u32>),
    /// This node, and others if it has no memory left.
    Preferred(u32),
}

impl NodePolicy {
    /// Returns the number of nodes that get pages in turn.
    pub(super) fn turns(&self) -> usize {
        match self {
            Self::Interleave(nodes) => nodes.iter().copied().collect::<CpuSet>().len().max(1),
            _ => 1,
        }
    }

    pub(super) fn apply(&self, alias: &SharedMapping) -> Result<(), PoolError> {
        let set = |nodes: &[u32]| -> CpuSet { nodes.iter().copied().collect() };
        let (mode, nodes) = match self {
            Self::Process => return Ok(()),
            Self::Local => (Mode::Local, CpuSet::default()),
            Self::Bind(nodes) => (Mode::Bind, set(nodes)),
            Self::Interleave(nodes) => (Mode::Interleave, set(nodes)),
            Self::Preferred(node) => (Mode::Preferred, set(&[*node])),
        };
        mempolicy::bind(alias, mode, &nodes).map_err(|errno| PoolError::NodePolicy(errno.into()))
    }
}
