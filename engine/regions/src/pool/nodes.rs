//! The NUMA nodes of a pool's memory.

use super::PoolError;
use hugekit_machine::CpuSet;
use hugekit_sys::mapping::SharedMapping;
use hugekit_sys::mempolicy::{self, Mode};

/// The NUMA nodes that provide a pool's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodePolicy {
    /// The nodes of the memory policy of the populating thread. `numactl` sets such a policy, for
    /// example.
    #[default]
    Process,
    /// The node of the CPU that populates the memory.
    Local,
    /// Only these nodes. Populating fails if they have no memory left.
    Bind(Vec<u32>),
    /// These nodes in turn, page by page.
    Interleave(Vec<u32>),
    /// This node, and other nodes if it has no memory left.
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
