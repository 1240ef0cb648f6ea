//! When memory is cleared that was another owner's.

/// When what is dirty is cleared for the user that is given it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Clearing {
    /// Before it is allocated, in parallel. Every access is a plain one then, that of a system call,
    /// a device or a guest included.
    #[default]
    OnAllocation,
    /// Folio by folio when it is touched for the first time, by hugekit, near the address that was
    /// touched last and cached. What is not touched is never cleared, and a region is allocated in
    /// microseconds. Needs userfaultfd(2).
    OnFault,
}
