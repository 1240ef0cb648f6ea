//! Unmapping the pages of a table, run by run.

use crate::entry::Entry;
use crate::folio::{Folio, Folios, Piece};
use crate::layout::Format;
use crate::run::{LONG, LONG_STEP, Likeness, Run, SHORT_STEP};

/// A run that is no longer mapped. Its references are still there: the owner of the table gives them back
/// once no CPU can reach the pages by translations that it has cached.
#[derive(Clone, Copy, Debug)]
#[must_use = "its references are to be given back"]
pub struct Unmapped<'a> {
    /// The folio.
    pub folio: &'a Folio,
    /// The frame of the run's first page.
    pub frame: u64,
    /// The number of pages, and the bits that any of them had: the folio is dirty if one of them was.
    pub run: Run,
}

impl Unmapped<'_> {
    /// Gives the run's references back, as [`Folio::put`] does.
    #[inline]
    pub fn put(self) -> bool {
        self.folio.put(self.run.len)
    }
}

/// Unmaps the pages of `table`, as `munmap` and the end of a process do. `resident` is the process's counter
/// of pages it maps; `gone` gets each run.
///
/// Present entries of one folio are handled run by run, in this order: find the run, and what any of its
/// entries has; empty them; count its pages as no longer resident; no longer count its mappings; tell
/// `gone`, which has the references from then on.
///
/// Special entries, and those whose frame is in no folio, are emptied without counting. Entries that are
/// neither present nor empty stay: they are their owner's.
pub fn unmap_table<'f, F: Format, L: Folios>(
    table: &mut [Entry<F>],
    folios: &'f L,
    resident: &mut u64,
    gone: impl FnMut(Unmapped<'f>),
) {
    let like = Likeness::in_frames();
    Unmapper { folios, like, resident, gone }.all(table);
}

/// The data that stays the same from run to run.
struct Unmapper<'f, 'r, F: Format, L, G> {
    folios: &'f L,
    like: Likeness<F>,
    resident: &'r mut u64,
    gone: G,
}

impl<'f, F: Format, L: Folios, G: FnMut(Unmapped<'f>)> Unmapper<'f, '_, F, L, G> {
    fn all(&mut self, table: &mut [Entry<F>]) {
        let mut at = 0;
        while at < table.len() {
            at += self.next(table, at);
        }
    }

    /// Empties the entry at `at`, or the run that begins there. Returns how many entries that were.
    #[inline]
    fn next(&mut self, table: &mut [Entry<F>], at: usize) -> usize {
        let first = table[at];
        if !first.is_present() {
            return 1;
        }
        let piece = if first.is_special() { None } else { self.folios.find(first.frame()) };
        match piece {
            None => table[at] = Entry::empty(),
            Some(Piece { folio, left: 1 }) => {
                table[at] = Entry::empty();
                self.count(Unmapped { folio, frame: first.frame(), run: Run::of(first) });
            }
            Some(Piece { folio, left }) => {
                let end = at + left.min(table.len() - at);
                return self.many(&mut table[at..end], folio);
            }
        }
        1
    }

    /// The run that begins with the first entry, all of which map the same folio. Out of line: inlined, it
    /// takes registers from the path of folios of one page.
    #[inline(never)]
    fn many(&mut self, entries: &mut [Entry<F>], folio: &'f Folio) -> usize {
        let frame = entries[0].frame();
        let run = if entries.len() >= LONG {
            let run = self.like.run::<LONG_STEP>(entries);
            entries[..run.len].fill(Entry::empty());
            run
        } else {
            let run = self.like.run::<SHORT_STEP>(entries);
            empty_few(&mut entries[..run.len]);
            run
        };
        self.count(Unmapped { folio, frame, run });
        run.len
    }

    #[inline]
    fn count(&mut self, unmapped: Unmapped<'f>) {
        *self.resident -= unmapped.run.len as u64;
        unmapped.folio.unmap(unmapped.run.len);
        (self.gone)(unmapped);
    }
}

/// Empties entries where filling a slice would cost more than they do.
#[inline]
fn empty_few<F: Format>(entries: &mut [Entry<F>]) {
    let (steps, rest) = entries.as_chunks_mut::<SHORT_STEP>();
    steps.iter_mut().for_each(|step| *step = [Entry::empty(); SHORT_STEP]);
    rest.iter_mut().for_each(|entry| *entry = Entry::empty());
}
