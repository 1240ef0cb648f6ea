//! Copying a table for a child, run by run.

use core::error::Error;
use core::fmt;

use crate::entry::{Change, Entry};
use crate::folio::{Folio, Folios, Piece};
use crate::layout::Format;
use crate::run::{LONG, LONG_STEP, Likeness, SHORT_STEP, write_protect_run};

/// The processes that see writes through a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mapping {
    /// Only the writer: parent and child share pages until one of them writes.
    Private,
    /// Every process that maps it.
    Shared,
}

/// The way in which a table is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fork {
    /// Whose writes are seen by whom.
    pub mapping: Mapping,
    /// True if the child keeps the protection by userfaultfd.
    pub child_keeps_uffd_wp: bool,
}

impl Fork {
    /// The difference between the child's entry and the parent's.
    #[inline]
    fn child<F: Format>(self) -> Change<F> {
        let change = match self.mapping {
            Mapping::Private => Change::write_protect(),
            Mapping::Shared => Change::NOTHING.clean(),
        };
        let old = change.without(F::LAYOUT.accessed);
        if self.child_keeps_uffd_wp { old } else { old.without(F::LAYOUT.uffd_wp) }
    }
}

/// A page could not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyError<E> {
    /// Entries before this one are copied and counted. This one and those after it are as they
    /// were, in both tables and in every count.
    pub at: usize,
    /// The reason.
    pub cause: E,
}

impl<E> fmt::Display for CopyError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the table was copied up to entry {}", self.at)
    }
}

impl<E: Error + 'static> Error for CopyError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.cause)
    }
}

/// Copies `parent` to `child`, which is empty, as `fork` does with a process's tables. `resident` is
/// the child's counter of pages it maps.
///
/// Present entries with consecutive frames of one folio are a run, whatever else differs between them:
/// each entry of the copy is made from its own original. For each run, in this order: find the run; count its
/// references; count its mappings; count its pages as resident; in a private mapping protect parent
/// and child from writes if any entry was writable; store the child's. If a private mapping's folio
/// is pinned, the references are given back, one page is copied for the child at once, and the run is
/// detected anew from the next entry.
///
/// In the child no page is accessed, in a shared mapping none is dirty. Special entries, and those
/// whose frame is in no folio, are copied one by one without counting; entries that are not present
/// are copied bit by bit.
///
/// # Errors
/// If a page had to be copied and could not be. Entries that were copied before stay.
///
/// # Panics
/// If the tables are of different lengths, or no entry can hold the frame of a copied page.
pub fn copy_table<F: Format, L: Folios>(
    parent: &mut [Entry<F>],
    child: &mut [Entry<F>],
    folios: &L,
    fork: Fork,
    resident: &mut u64,
) -> Result<(), CopyError<L::Error>> {
    assert_eq!(parent.len(), child.len(), "tables of different lengths");
    let (like, change) = (Likeness::in_frames(), fork.child());
    match fork.mapping {
        Mapping::Private => {
            Copier::<_, _, true> { folios, fork, like, change }.all(parent, child, resident)
        }
        Mapping::Shared => {
            Copier::<_, _, false> { folios, fork, like, change }.all(parent, child, resident)
        }
    }
}

/// Copies a run: what differs between its entries still differs in the copy. `any_writable` says
/// whether any of them is; only a private mapping asks. Counting is the caller's.
///
/// # Panics
/// If the runs are of different lengths.
#[inline]
pub fn copy_run<F: Format>(
    parent: &mut [Entry<F>],
    child: &mut [Entry<F>],
    fork: Fork,
    any_writable: bool,
) {
    assert_eq!(parent.len(), child.len(), "runs of different lengths");
    let protects = fork.mapping == Mapping::Private && any_writable;
    copy_entries(parent, child, fork.child(), protects);
}

#[inline]
fn copy_entries<F: Format>(
    parent: &mut [Entry<F>],
    child: &mut [Entry<F>],
    change: Change<F>,
    protects: bool,
) {
    for (child, parent) in child.iter_mut().zip(&mut *parent) {
        *child = change.apply(*parent);
    }
    if protects {
        write_protect_run(parent);
    }
}

/// Does the same as [`copy_entries`], without its loop, which would cost more than a few entries do.
#[inline]
fn copy_few<F: Format>(
    parent: &mut [Entry<F>],
    child: &mut [Entry<F>],
    change: Change<F>,
    protects: bool,
) {
    let (parents, parent) = parent.as_chunks_mut::<SHORT_STEP>();
    let (children, child) = child.as_chunks_mut::<SHORT_STEP>();
    for (parent, child) in parents.iter_mut().zip(children) {
        copy_entries(parent, child, change, protects);
    }
    for (parent, child) in parent.iter_mut().zip(child) {
        *child = change.apply(*parent);
        if protects {
            *parent = parent.write_protected();
        }
    }
}

/// The data that stays the same from run to run. Private and shared mappings are compiled apart: each is
/// then short enough for its constants to stay in registers.
struct Copier<'a, F: Format, L, const PRIVATE: bool> {
    folios: &'a L,
    fork: Fork,
    like: Likeness<F>,
    /// The difference of the child's entries.
    change: Change<F>,
}

impl<F: Format, L: Folios, const PRIVATE: bool> Copier<'_, F, L, PRIVATE> {
    fn all(
        &self,
        parent: &mut [Entry<F>],
        child: &mut [Entry<F>],
        resident: &mut u64,
    ) -> Result<(), CopyError<L::Error>> {
        let mut at = 0;
        while at < parent.len() {
            let copied = self.next(parent, child, at, resident);
            at += copied.map_err(|cause| CopyError { at, cause })?;
        }
        Ok(())
    }

    /// Copies the entry at `at`, or the run that begins there. Returns how many were copied.
    #[inline]
    fn next(
        &self,
        parent: &mut [Entry<F>],
        child: &mut [Entry<F>],
        at: usize,
        resident: &mut u64,
    ) -> Result<usize, L::Error> {
        let first = parent[at];
        if !first.is_present() {
            child[at] = first;
            return Ok(1);
        }
        let piece = if first.is_special() { None } else { self.folios.find(first.frame()) };
        match piece {
            None => self.store_one(&mut parent[at], &mut child[at]),
            Some(Piece { folio, left: 1 }) => {
                self.one(&mut parent[at], &mut child[at], folio, resident)?;
            }
            Some(Piece { folio, left }) => {
                let end = at + left.min(parent.len() - at);
                let (parent, child) = (&mut parent[at..end], &mut child[at..end]);
                return if end - at >= LONG {
                    self.many_long(parent, child, folio, resident)
                } else {
                    self.many::<SHORT_STEP>(parent, child, folio, resident)
                };
            }
        }
        Ok(1)
    }

    /// A folio of one page, or the last page of another: there is no run to look for.
    #[inline]
    fn one(
        &self,
        parent: &mut Entry<F>,
        child: &mut Entry<F>,
        folio: &Folio,
        resident: &mut u64,
    ) -> Result<(), L::Error> {
        if !self.share(folio, 1) {
            return self.copy_page(*parent, child, resident);
        }
        *resident += 1;
        self.store_one(parent, child);
        Ok(())
    }

    /// Out of line: inlined, it takes registers from the path of folios of one page.
    #[inline(never)]
    fn many_long(
        &self,
        parent: &mut [Entry<F>],
        child: &mut [Entry<F>],
        folio: &Folio,
        resident: &mut u64,
    ) -> Result<usize, L::Error> {
        self.many::<LONG_STEP>(parent, child, folio, resident)
    }

    /// The run that begins with the first entry, all of which map the same folio.
    #[inline]
    fn many<const STEP: usize>(
        &self,
        parent: &mut [Entry<F>],
        child: &mut [Entry<F>],
        folio: &Folio,
        resident: &mut u64,
    ) -> Result<usize, L::Error> {
        let run = self.like.run::<STEP>(parent);
        if !self.share(folio, run.len) {
            return self.copy_page(parent[0], &mut child[0], resident).map(|()| 1);
        }
        *resident += run.len as u64;
        let (parent, child) = (&mut parent[..run.len], &mut child[..run.len]);
        let protects = PRIVATE && run.any_writable;
        if STEP == SHORT_STEP {
            copy_few(parent, child, self.change, protects);
        } else {
            copy_entries(parent, child, self.change, protects);
        }
        Ok(run.len)
    }

    /// Counts entries of the child, unless the folio may not be shared: then nothing is counted.
    #[inline]
    fn share(&self, folio: &Folio, entries: usize) -> bool {
        folio.get(entries);
        if !PRIVATE {
            folio.map(entries);
            return true;
        }
        let mapped = folio.try_map(entries).is_ok();
        if !mapped {
            folio.put(entries);
        }
        mapped
    }

    #[inline]
    fn store_one(&self, parent: &mut Entry<F>, child: &mut Entry<F>) {
        if PRIVATE && parent.is_writable() {
            *parent = parent.write_protected();
        }
        *child = self.change.apply(*parent);
    }

    /// A page of a pinned folio: the parent keeps it as it is, writable if it was, and the child gets
    /// the copy, which no other table maps, so that it is dirty and as writable as the parent's.
    #[cold]
    fn copy_page(
        &self,
        parent: Entry<F>,
        child: &mut Entry<F>,
        resident: &mut u64,
    ) -> Result<(), L::Error> {
        let frame = self.folios.copy_page(parent.frame())?;
        let copy = parent.with_frame(frame).dirty().old();
        *child = if self.fork.child_keeps_uffd_wp { copy } else { copy.without_uffd_wp() };
        *resident += 1;
        Ok(())
    }
}
