//! The same entry by entry, as the kernel copied tables before runs: for tests and the lab, which
//! compare the two. Nothing here knows of runs, and nothing is slower than it has to be.

use crate::copy::{CopyError, Fork, Mapping};
use crate::entry::Entry;
use crate::folio::{Folios, Piece};
use crate::layout::Format;
use crate::run::Run;
use crate::unmap::Unmapped;

/// Does the same as [`copy_table`](crate::copy_table), with the same outcome in both tables and all counts.
///
/// # Errors
/// As there.
///
/// # Panics
/// As there.
pub fn copy_table<F: Format, L: Folios>(
    parent: &mut [Entry<F>],
    child: &mut [Entry<F>],
    folios: &L,
    fork: Fork,
    resident: &mut u64,
) -> Result<(), CopyError<L::Error>> {
    assert_eq!(parent.len(), child.len(), "tables of different lengths");
    for (at, (parent, child)) in parent.iter_mut().zip(child).enumerate() {
        copy_entry(parent, child, folios, fork, resident)
            .map_err(|cause| CopyError { at, cause })?;
    }
    Ok(())
}

#[inline]
fn copy_entry<F: Format, L: Folios>(
    parent: &mut Entry<F>,
    child: &mut Entry<F>,
    folios: &L,
    fork: Fork,
    resident: &mut u64,
) -> Result<(), L::Error> {
    if !parent.is_present() {
        *child = *parent;
        return Ok(());
    }
    let piece = if parent.is_special() { None } else { folios.find(parent.frame()) };
    if let Some(piece) = piece {
        piece.folio.get(1);
        match fork.mapping {
            Mapping::Shared => piece.folio.map(1),
            Mapping::Private => {
                if piece.folio.try_map(1).is_err() {
                    piece.folio.put(1);
                    return copy_page(*parent, child, folios, fork, resident);
                }
            }
        }
        *resident += 1;
    }
    let mut entry = *parent;
    if fork.mapping == Mapping::Private && entry.is_writable() {
        entry = entry.write_protected();
        *parent = entry;
    }
    if fork.mapping == Mapping::Shared {
        entry = entry.clean();
    }
    entry = entry.old();
    *child = if fork.child_keeps_uffd_wp { entry } else { entry.without_uffd_wp() };
    Ok(())
}

#[cold]
fn copy_page<F: Format, L: Folios>(
    parent: Entry<F>,
    child: &mut Entry<F>,
    folios: &L,
    fork: Fork,
    resident: &mut u64,
) -> Result<(), L::Error> {
    let copy = parent.with_frame(folios.copy_page(parent.frame())?).dirty().old();
    *child = if fork.child_keeps_uffd_wp { copy } else { copy.without_uffd_wp() };
    *resident += 1;
    Ok(())
}

/// Does the same as [`unmap_table`](crate::unmap_table), with the same outcome in the table and all counts; `gone` is
/// told runs of one page.
pub fn unmap_table<'f, F: Format, L: Folios>(
    table: &mut [Entry<F>],
    folios: &'f L,
    resident: &mut u64,
    mut gone: impl FnMut(Unmapped<'f>),
) {
    for entry in table {
        if !entry.is_present() {
            continue;
        }
        let (frame, run) = (entry.frame(), Run::of(*entry));
        let piece = if entry.is_special() { None } else { folios.find(frame) };
        *entry = Entry::empty();
        if let Some(Piece { folio, .. }) = piece {
            *resident -= 1;
            folio.unmap(1);
            gone(Unmapped { folio, frame, run });
        }
    }
}
