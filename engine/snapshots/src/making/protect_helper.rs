//! Protects large memory by two threads. Writers wait from the first page until the last page is protected, and on
//! base pages this takes time for each page.
//!
//! A job of [`parallel`](hugekit_bulk::parallel) is not possible: its threads write to the heap, which may be the
//! memory to protect. So a thread with its own stack is started before. It makes only this call, and shares only
//! hugekit's own words.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::io::{self, Errno};

use crate::serving::write_protector::WriteProtector;
use hugekit_sys::handler_thread::HandlerThread;
use hugekit_sys::private_pages::Private;
use hugekit_sys::sync::Latch;
use hugekit_sys::thread::affinity;

/// The bytes that a thread protects with one call. A call takes 0.1 ms or more, and the two threads end within one
/// call of each other. Pieces begin at multiples of this size, so no huge page is in two pieces.
const PIECE_BYTES: usize = 16 << 20;

/// The fewest bytes for which a helper is started. To start and wake a thread takes as long as a few pieces.
const LEAST_BYTES: usize = 16 * PIECE_BYTES;

/// A thread that helps to protect memory, and the pieces to protect.
#[derive(Debug)]
pub(super) struct ProtectHelper {
    work: Arc<ProtectWork>,
    /// `None` only while this is dropped.
    helper: Option<HandlerThread>,
}

impl ProtectHelper {
    /// Starts a helper. `None` if the memory is too small, no other CPU is available, or no thread can be started.
    /// Then the maker protects everything itself.
    pub(super) fn start<'a>(
        protector: &Arc<WriteProtector>,
        parts: impl Iterator<Item = &'a Range<usize>> + Clone,
    ) -> Option<Self> {
        let is_much = parts.clone().map(ExactSizeIterator::len).sum::<usize>() >= LEAST_BYTES;
        if !is_much || affinity().is_ok_and(|cpus| cpus.len() < 2) {
            return None;
        }
        let work = Arc::new(ProtectWork::new(parts).ok()?);
        let (own, protector) = (Arc::clone(&work), Arc::clone(protector));
        let help = move |_: &_| own.help(|range| protector.protect(range));
        let helper = HandlerThread::spawn(c"hugekit-protect", help).ok()?;
        Some(Self { work, helper: Some(helper) })
    }

    /// Protects everything, together with the helper. Both threads write only to their own stacks and to hugekit's
    /// own memory until the helper is dismissed.
    ///
    /// # Errors
    /// The first refusal, with the number of its part. Some of the other parts may be protected then.
    pub(super) fn protect(&self, protector: &WriteProtector) -> Result<(), (Errno, usize)> {
        self.work.shared.begun.arrive();
        self.work.protect_pieces(|range| protector.protect(range));
        self.work.wait_for_pieces()
    }

    /// Ends the helper. The drop waits for it, because the helper may have no CPU for a while if other threads are
    /// busy.
    pub(super) fn dismiss(&self) {
        self.work.dismiss();
    }
}

impl Drop for ProtectHelper {
    fn drop(&mut self) {
        self.dismiss();
        self.helper.take().into_iter().for_each(HandlerThread::join);
    }
}

/// The pieces, which threads take one after the other.
#[derive(Debug)]
struct ProtectWork {
    /// Each piece with the number of its part.
    pieces: Box<[(Range<usize>, usize)]>,
    shared: Private<WorkWords>,
}

#[derive(Debug)]
struct WorkWords {
    next: AtomicUsize,
    begun: Latch,
    /// Counts pieces that are protected or skipped.
    done: Latch,
    dismissed: Latch,
    /// 0, or an errno with the number of a part above it.
    refusal: AtomicU64,
}

impl ProtectWork {
    fn new<'a>(parts: impl Iterator<Item = &'a Range<usize>>) -> io::Result<Self> {
        let cut = |(number, part): (usize, &Range<usize>)| {
            let (mut start, end) = (part.start, part.end);
            std::iter::from_fn(move || {
                let piece = start..end.min((start + 1).next_multiple_of(PIECE_BYTES));
                start = piece.end;
                (!piece.is_empty()).then_some((piece, number))
            })
        };
        let shared = Private::new(WorkWords {
            next: AtomicUsize::new(0),
            begun: Latch::new(),
            done: Latch::new(),
            dismissed: Latch::new(),
            refusal: AtomicU64::new(0),
        })?;
        Ok(Self { pieces: parts.enumerate().flat_map(cut).collect(), shared })
    }

    /// Runs in the helper. It frees its heap memory only after it is dismissed.
    fn help(&self, protect: impl Fn(&Range<usize>) -> io::Result<()>) {
        self.shared.begun.wait_for(1);
        self.protect_pieces(protect);
        self.shared.dismissed.wait_for(1);
    }

    /// Protects pieces until none is left. After a refusal, pieces are skipped.
    fn protect_pieces(&self, protect: impl Fn(&Range<usize>) -> io::Result<()>) {
        let WorkWords { next, done, refusal, .. } = &*self.shared;
        while let Some((piece, part)) = self.pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            let is_wanted = refusal.load(Ordering::Relaxed) == 0;
            let protected = if is_wanted { protect(piece) } else { Ok(()) };
            if let Err(errno) = protected {
                let word = (*part as u64) << 32 | u64::from(errno.raw_os_error().unsigned_abs());
                let _ = refusal.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed);
            }
            done.arrive();
        }
    }

    /// Waits for the pieces that the other thread has taken.
    fn wait_for_pieces(&self) -> Result<(), (Errno, usize)> {
        self.shared.done.wait_for(self.pieces.len());
        match self.shared.refusal.load(Ordering::Relaxed) {
            0 => Ok(()),
            word => Err((Errno::from_raw_os_error(word as u32 as i32), (word >> 32) as usize)),
        }
    }

    /// Ends the helper, whether it has begun or not.
    fn dismiss(&self) {
        self.shared.next.store(self.pieces.len(), Ordering::Relaxed);
        self.shared.begun.arrive();
        self.shared.dismissed.arrive();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::param::page_size;

    use super::*;
    use hugekit_regions::fault::open;
    use hugekit_sys::private_pages::PrivateBytes;

    /// Returns parts of several mappings, no end of which is a multiple of anything.
    fn parts() -> [Range<usize>; 3] {
        let piece = PIECE_BYTES;
        [piece - 4096..3 * piece + 8192, 5 * piece..5 * piece + 4096, 6 * piece..9 * piece]
    }

    fn work() -> ProtectWork {
        ProtectWork::new(parts().iter()).unwrap()
    }

    /// Which page of which piece was protected, by two threads.
    fn protected(work: &ProtectWork, protect: impl Fn(&Range<usize>) -> io::Result<()> + Sync) {
        thread::scope(|scope| {
            scope.spawn(|| work.help(&protect));
            work.shared.begun.arrive();
            work.protect_pieces(&protect);
            let _ = work.wait_for_pieces();
            work.dismiss();
        });
    }

    #[test]
    fn pieces_are_all_of_the_parts_and_cut_where_no_huge_page_is() {
        let work = work();
        for (number, part) in parts().into_iter().enumerate() {
            let pieces = work.pieces.iter().filter(|(_, of)| *of == number);
            let end = pieces.fold(part.start, |start, (piece, _)| {
                assert_eq!(piece.start, start);
                assert!(start == part.start || start.is_multiple_of(PIECE_BYTES), "{start:#x}");
                piece.end
            });
            assert_eq!(end, part.end);
        }
    }

    #[test]
    fn pieces_taken_by_two_threads_are_each_taken_once() {
        let (work, taken) = (work(), std::sync::Mutex::new(Vec::new()));
        protected(&work, |piece| {
            taken.lock().unwrap().push(piece.clone());
            Ok(())
        });
        assert_eq!(work.wait_for_pieces(), Ok(()));
        let mut taken = taken.into_inner().unwrap();
        taken.sort_unstable_by_key(|piece| piece.start);
        assert!(taken.iter().eq(work.pieces.iter().map(|(piece, _)| piece)), "{taken:x?}");
    }

    #[test]
    fn refusal_of_any_piece_is_told_with_its_part() {
        for index in 0..work().pieces.len() {
            let work = work();
            let (refused, part) = work.pieces[index].clone();
            protected(&work, |piece| if *piece == refused { Err(Errno::NOMEM) } else { Ok(()) });
            assert_eq!(work.wait_for_pieces(), Err((Errno::NOMEM, part)));
        }
    }

    #[test]
    fn helper_when_asked_has_protected_every_page_and_when_not_none() {
        let writes = open::for_private_writes(open::for_handler_threads);
        // Who may not serve faults of system calls has no such descriptor; no kernel before 5.14 tells what is protected.
        let Ok(Ok(protector)) = writes.map(WriteProtector::new) else { return };
        let protector = Arc::new(protector);
        let memory = PrivateBytes::new(LEAST_BYTES, PIECE_BYTES).unwrap();
        let start = memory.start().addr();
        let range = start..start + LEAST_BYTES;
        protector.register(&range).unwrap();
        protector.fill(protector.descriptor(), &range).unwrap();
        let second = start + page_size();
        let (less, both) = (start..range.end - 1, [start..second, second..range.end]);
        assert!(ProtectHelper::start(&protector, [less].iter()).is_none());
        let Some(idle) = ProtectHelper::start(&protector, both.iter()) else {
            assert!(affinity().is_ok_and(|cpus| cpus.len() < 2));
            return;
        };
        drop(idle);
        assert!(!protector.is_protected(&both[0]) && !protector.is_protected(&both[1]));
        let helper = ProtectHelper::start(&protector, both.iter()).unwrap();
        assert_eq!(helper.protect(&protector), Ok(()));
        assert!(protector.is_protected(&range));
        protector.unregister(&range).unwrap();
    }
}
