//! When memory is cleared that was another owner's.

/// When dirty memory is cleared for its next owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Clearing {
    /// Before it is allocated, by several threads. Every access then works as for ordinary memory,
    /// including those of system calls, devices and guests.
    #[default]
    OnAllocation,
    /// Folio by folio at the first touch, by hugekit. The bytes near the touched address stay in
    /// the cache. Folios that are never touched are never cleared, and a region is allocated in
    /// microseconds. Needs userfaultfd(2).
    OnFault,
}
