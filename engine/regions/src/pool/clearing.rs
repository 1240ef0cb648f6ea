//! The moment at which the memory of an earlier owner is cleared.

/// The moment at which dirty memory is cleared for its next owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Clearing {
    /// Before the allocation returns, by several threads. Every access then works as for ordinary
    /// memory, including accesses by system calls, devices and guests.
    #[default]
    OnAllocation,
    /// At the first access to each folio, by hugekit. The bytes near the accessed address stay in
    /// the cache. Folios without an access are never cleared, and the allocation of a region costs
    /// microseconds. Needs userfaultfd(2).
    OnFault,
}
