//! Supply of bytes of the memory file to the VM's memory, run by run: data, zeroes, and released
//! pages.

use std::ops::Range;
use std::time::{Duration, Instant};

use hugekit_machine::Root;
use hugekit_machine::hugepages::{self, Shortage};
use rustix::io::Errno;

use super::demand::Server;
use super::{ServedVm, Stop, VmError, pages_of};
use crate::vmm::userfaultfd::Partial;
use crate::vmm::{Piece, base_page};

/// The kind of pages to supply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Supply {
    /// Data, and zeroes for holes and zero pages of the file.
    All,
    /// Only data. Zeroes wait for a fault, or for the kernel.
    Data,
    /// Only zeroes, because the data is supplied already.
    Zeroes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageKind {
    Data,
    Zeroes,
}

/// The longest wait for memory for a page.
const SHORTAGE: Duration = Duration::from_secs(10);

/// The longest wait for a page of hugetlbfs, which the kernel does not make by reclaim.
const HUGETLB_SHORTAGE: Duration = Duration::from_secs(2);

/// The pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(1);

impl Server<'_> {
    /// Supplies a piece with these bytes of the file; `None` if all of them are zero.
    pub(super) fn install(
        &mut self,
        piece: Piece,
        bytes: Option<&[u8]>,
        supply: Supply,
    ) -> Result<(), Stop> {
        let (mut at, mut known, mut short_since) = (0, None, None);
        while at < piece.len {
            let (kind, end) = *known.get_or_insert_with(|| self.vm.run_at(piece, bytes, at));
            let run = at..end;
            let done = match (kind, bytes) {
                (PageKind::Data, Some(bytes)) if supply != Supply::Zeroes => {
                    self.copy_run(piece, &run, bytes)
                }
                (PageKind::Zeroes, _) if supply != Supply::Data => self.zero_run(piece, &run),
                _ => Ok(()),
            };
            if let Err(Partial { done, errno }) = done {
                let address = piece.address + at + done;
                at += done + self.after_error(errno, address, supply, &mut short_since)?;
                // Memory may have been given back meanwhile.
                known = known.filter(|_| errno != Errno::AGAIN && at < end);
            } else {
                (at, known) = (end, None);
            }
        }
        // Also pages that were there already, or that the VMM has unmapped.
        if supply != Supply::Zeroes {
            self.vm.supplied().set_all(pages_of(piece.offsets()));
        }
        Ok(())
    }

    fn copy_run(&mut self, piece: Piece, run: &Range<u64>, bytes: &[u8]) -> Result<(), Partial> {
        let from = &bytes[run.start as usize..run.end as usize];
        let copied = self.vm.faults.copy(piece.address + run.start, from);
        let count = match copied {
            Ok(()) => run.end - run.start,
            Err(partial) => partial.done,
        };
        self.copied += count;
        let offset = piece.offset + run.start;
        self.vm.data().set_all(pages_of(offset..offset + count));
        copied
    }

    fn zero_run(&mut self, piece: Piece, run: &Range<u64>) -> Result<(), Partial> {
        let (start, end) = (piece.address + run.start, piece.address + run.end);
        if !self.vm.layout.is_hugetlb() {
            return self.vm.faults.zero(&(start..end));
        }
        let page = self.vm.layout.page();
        for at in (start..end).step_by(page as usize) {
            let zeroes = self.zeroes.get_or_insert_with(|| vec![0; page as usize]);
            self.vm
                .faults
                .copy(at, zeroes)
                .map_err(|partial| Partial { done: at - start, ..partial })?;
        }
        Ok(())
    }

    /// Returns the number of bytes that are skipped after an error at an address.
    fn after_error(
        &mut self,
        errno: Errno,
        address: u64,
        supply: Supply,
        short_since: &mut Option<Instant>,
    ) -> Result<u64, Stop> {
        let page = self.vm.layout.page();
        match errno {
            // The kernel says so of hugetlbfs as well if no page is free.
            Errno::EXIST if self.vm.layout.is_hugetlb() && self.vm.process.lacks(address) => {
                self.wait_for_memory(address, short_since).map(|()| 0)
            }
            // The page is there. Who waits for it began to before.
            Errno::EXIST => {
                if supply == Supply::All {
                    let _ = self.vm.faults.wake(&(address..address + page));
                }
                self.note_data(address, page);
                Ok(page)
            }
            // The VM is giving memory back: its message comes first.
            Errno::AGAIN => self.vm.wait(self.stop, Some(PAUSE)).and_then(|()| {
                self.read_messages()?;
                Ok(0)
            }),
            Errno::INTR => Ok(0),
            Errno::SRCH => Err(Stop::Ended),
            // The VMM has unmapped it.
            Errno::NOENT => Ok(page),
            Errno::NOMEM => self.wait_for_memory(address, short_since).map(|()| 0),
            errno => Err(Stop::Failed(VmError::Kernel { address, source: errno.into() })),
        }
    }

    /// Records a page as data. A page that was present already counts as data, because an earlier
    /// pager has supplied it, or the guest has written it.
    fn note_data(&self, address: u64, page: u64) {
        if let Some(offset) = self.vm.layout.offset_of(address) {
            self.vm.data().set_all(pages_of(offset..offset + page));
        }
    }

    fn wait_for_memory(&mut self, address: u64, since: &mut Option<Instant>) -> Result<(), Stop> {
        let since = since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.vm.longest_shortage() {
            return Err(Stop::Failed(self.vm.shortage(address)));
        }
        std::thread::sleep(PAUSE);
        self.vm.wait(self.stop, Some(Duration::ZERO))
    }
}

impl ServedVm {
    fn longest_shortage(&self) -> Duration {
        if self.layout.is_hugetlb() { HUGETLB_SHORTAGE } else { SHORTAGE }
    }

    fn shortage(&self, address: u64) -> VmError {
        let seconds = self.longest_shortage().as_secs();
        match self.huge_page_shortage() {
            Some(source) => VmError::NoHugePages { address, seconds, source },
            None => VmError::NoMemory { address, seconds, is_hugetlb: self.layout.is_hugetlb() },
        }
    }

    /// Returns the shortage of huge pages. `None` on base pages, or if a limit is the reason
    /// instead of the kernel's pool.
    fn huge_page_shortage(&self) -> Option<Shortage> {
        let (root, page) = (Root::default(), self.layout.page());
        let pool = hugepages::read_size(&root, page).ok().filter(|_| self.layout.is_hugetlb())?;
        Shortage::of(&root, &pool, self.layout.bytes() / page)
    }

    /// Returns the kind of the page at `at`, and the end of a run of such pages.
    fn run_at(&self, piece: Piece, bytes: Option<&[u8]>, at: u64) -> (PageKind, u64) {
        let page = self.layout.page();
        let kind_at =
            |at: u64| self.kind_at(piece.offset + at, bytes.map(|b| page_at(b, at, page)));
        let kind = kind_at(at);
        let mut end = at + page;
        while end < piece.len && kind_at(end) == kind {
            end += page;
        }
        (kind, end)
    }

    fn kind_at(&self, offset: u64, bytes: Option<&[u8]>) -> PageKind {
        let is_removed = self.state.removed().has(offset / base_page());
        if is_removed || bytes.is_none_or(is_zero) { PageKind::Zeroes } else { PageKind::Data }
    }
}

fn page_at(bytes: &[u8], at: u64, page: u64) -> &[u8] {
    &bytes[at as usize..(at + page) as usize]
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(512).all(|chunk| chunk.iter().fold(0, |any, byte| any | byte) == 0)
}
