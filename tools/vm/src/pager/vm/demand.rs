//! The thread that serves a VM. Only this thread reads the VM's messages and supplies pages.
//!
//! For a fault, its page and a few neighbours are supplied first, because the waiting thread then
//! continues. The rest of the block follows in pieces, and between two pieces the thread checks for
//! the next fault. Data that was read ahead is supplied when there is nothing else to do
//! (`ahead.rs`).

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::Scope;
use std::time::{Duration, Instant};

use hugekit_machine::Root;
use hugekit_machine::available::MemoryBudget;
use hugekit_sys::error_chain;

use super::ahead::Ahead;
use super::install::Supply;
use super::wait::Bell;
use super::{ServedVm, Stop, VmError, pages_of};
use crate::pager::event::Event;
use crate::pager::options::PagerOptions;
use crate::pager::waiting::tell_stderr;
use crate::pager::working_set::WorkingSets;
use crate::vmm::{Piece, base_page};

/// Bytes that are supplied before the rest of a block.
const NEAR: u64 = 64 << 10;

/// Bytes of the rest that are supplied together.
pub(super) const FAR: u64 = 256 << 10;

/// Serves a VM until it has ended, until it needs no pager any more, or until the pager must end. A
/// panic ends only this VM.
pub(crate) fn serve(
    vm: ServedVm,
    stop: &Bell,
    options: &PagerOptions,
    sets: &WorkingSets,
    tell: &(dyn Fn(Event) + Sync),
) {
    let run = || Server::new(&vm, stop, options, sets, tell).run();
    let last = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        let (pid, why) = (vm.pid(), VmError::Mistake);
        end(&vm, &why);
        Some(Event::Failed { pid, why })
    });
    if let Some(event) = last {
        // The receiver may save the VM at once: neither a record nor a claim is left.
        vm.state.remove();
        drop(vm);
        tell(event);
    }
}

/// Ends a VM whose memory cannot be supplied, and writes the reason to its standard error.
fn end(vm: &ServedVm, why: &VmError) {
    tell_stderr(&vm.process, &format!("{:#}", error_chain(why)));
    // It is this pager's: its userfaultfd has been read.
    let _ = vm.process.kill();
}

/// The data of the serving thread.
pub(super) struct Server<'a> {
    pub(super) vm: &'a ServedVm,
    pub(super) stop: &'a Bell,
    pub(super) options: &'a PagerOptions,
    pub(super) sets: &'a WorkingSets,
    tell: &'a (dyn Fn(Event) + Sync),
    pub(super) since: Instant,
    /// Addresses for which threads wait.
    pub(super) faults: VecDeque<u64>,
    /// Offsets to supply after the page of a fault.
    pub(super) far: VecDeque<Range<u64>>,
    buffer: Vec<u8>,
    /// A page of zeroes, for hugetlb.
    pub(super) zeroes: Option<Vec<u8>>,
    /// Blocks that the VM touched.
    pub(super) touched: BTreeSet<u64>,
    pub(super) answered: u64,
    pub(super) copied: u64,
    pub(super) ahead: Ahead,
    /// Memory that may be supplied ahead.
    pub(super) budget: MemoryBudget,
    /// True if the failure to supply pages was already reported.
    has_failed: bool,
}

impl<'a> Server<'a> {
    fn new(
        vm: &'a ServedVm,
        stop: &'a Bell,
        options: &'a PagerOptions,
        sets: &'a WorkingSets,
        tell: &'a (dyn Fn(Event) + Sync),
    ) -> Self {
        let since = Instant::now();
        Self {
            vm,
            stop,
            options,
            sets,
            tell,
            since,
            faults: VecDeque::new(),
            far: VecDeque::new(),
            buffer: vec![0; vm.block.max(FAR) as usize],
            zeroes: None,
            touched: BTreeSet::new(),
            answered: 0,
            copied: 0,
            ahead: Ahead::Waiting { until: since + options.startup },
            budget: MemoryBudget::of(&Root::default(), &[vm.pid()]),
            has_failed: false,
        }
    }

    /// Serves the VM, and returns the reason why it needs no pager any more; `None` if the next
    /// pager must serve it.
    fn run(mut self) -> Option<Event> {
        std::thread::scope(|scope| {
            let last = catch_unwind(AssertUnwindSafe(|| self.run_until_last(scope)));
            // The thread that reads ahead ends when it can send no more, also after a panic.
            self.ahead = Ahead::Off;
            last.unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    fn run_until_last<'scope>(&mut self, scope: &'scope Scope<'scope, '_>) -> Option<Event>
    where
        'a: 'scope,
    {
        let was_left = self.vm.state.is_leaving();
        loop {
            match if was_left { self.complete() } else { self.step(scope) } {
                Ok(()) => {}
                Err(Stop::Asked) => return None,
                Err(Stop::Left(completed)) => return Some(Event::Complete(completed)),
                Err(Stop::Ended) => {
                    return Some(Event::Ended { pid: self.vm.pid(), faults: self.answered });
                }
                Err(Stop::Failed(why)) => {
                    end(self.vm, &why);
                    self.fail(why);
                }
            }
        }
    }

    /// Does one step.
    fn step<'scope>(&mut self, scope: &'scope Scope<'scope, '_>) -> Result<(), Stop>
    where
        'a: 'scope,
    {
        let is_far_due = !self.far.is_empty() && !self.is_starting();
        let is_busy = !self.faults.is_empty() || is_far_due;
        let time = if is_busy { Some(Duration::ZERO) } else { self.time_ahead() };
        self.vm.wait(self.stop, time)?;
        self.read_messages()?;
        if let Some(address) = self.faults.pop_front() {
            self.serve(address)
        } else if is_far_due && let Some(offsets) = self.far.pop_front() {
            self.bring_ahead(offsets)
        } else {
            self.go_ahead(scope)
        }
    }

    /// Handles a fault.
    fn serve(&mut self, address: u64) -> Result<(), Stop> {
        let page = self.vm.layout.page();
        let Some(offset) = self.vm.layout.offset_of(address / page * page) else { return Ok(()) };
        let block = offset / self.vm.block;
        self.touched.insert(block);
        let done = if let Some(index) = self.far.iter().position(|far| far.contains(&offset)) {
            // It follows: now it comes first.
            let offsets = self.far.remove(index).expect("just found");
            self.bring(offsets, Supply::All)
        } else if self.vm.supplied().has(offset / base_page()) {
            self.serve_zeroes(offset, block)
        } else {
            self.serve_first(offset, block)
        };
        match done {
            Err(Stop::Failed(why)) => {
                self.fail(why);
                self.give_up(address / page * page);
                Ok(())
            }
            done => done,
        }
    }

    /// Handles the first fault in a block: supplies its page and neighbours now, then the rest
    /// behind them, and then the rest before them.
    fn serve_first(&mut self, offset: u64, block: u64) -> Result<(), Stop> {
        let all = self.vm.offsets_of_block(block);
        let near = self.near(offset, &all);
        self.bring(near.clone(), Supply::All)?;
        self.vm.begun().set(block);
        for rest in [near.end..all.end, all.start..near.start] {
            let starts = rest.clone().step_by(FAR as usize);
            self.far.extend(starts.map(|start| start..(start + FAR).min(rest.end)));
        }
        Ok(())
    }

    /// Handles a fault in a page that was processed before. The page was left out because it is
    /// zero, or was released, and its neighbours may be, too.
    fn serve_zeroes(&mut self, offset: u64, block: u64) -> Result<(), Stop> {
        let all = self.vm.offsets_of_block(block);
        self.bring(self.near(offset, &all), Supply::All)?;
        self.bring(all, Supply::Zeroes)
    }

    /// Returns the page at an offset and its neighbours within a block.
    fn near(&self, offset: u64, block: &Range<u64>) -> Range<u64> {
        let bytes = NEAR.max(self.vm.layout.page());
        let start = offset / bytes * bytes;
        start.max(block.start)..(start + bytes).min(block.end)
    }

    /// Reads and supplies bytes.
    pub(super) fn bring(&mut self, offsets: Range<u64>, supply: Supply) -> Result<(), Stop> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let pieces: Vec<Piece> = self.vm.layout.pieces(offsets).collect();
        let done = pieces.into_iter().try_for_each(|piece| {
            let found = self.vm.find(piece, &mut buffer).map_err(|why| Stop::Failed(why.into()))?;
            self.install(piece, self.vm.bytes_of(piece, found, &buffer), supply)
        });
        self.buffer = buffer;
        done
    }

    /// Like [`bring`](Self::bring), for pages for which no thread is known to wait. Pages that
    /// cannot be supplied wait for a fault.
    fn bring_ahead(&mut self, offsets: Range<u64>) -> Result<(), Stop> {
        if self.vm.supplied().has_all(pages_of(offsets.clone())) {
            return Ok(());
        }
        match self.bring(offsets, Supply::All) {
            Err(Stop::Failed(why)) => {
                self.fail(why);
                Ok(())
            }
            done => done,
        }
    }

    /// Makes accesses to a page fail that cannot be supplied, so that no thread waits for ever.
    fn give_up(&self, page: u64) {
        let pages = page..page + self.vm.layout.page();
        if self.vm.faults.poison(&pages).is_err() {
            let _ = self.vm.process.kill();
        }
    }

    /// Reports that memory cannot be supplied. The pager then continues to serve, and reads nothing
    /// ahead.
    pub(super) fn fail(&mut self, why: VmError) {
        self.ahead = Ahead::Off;
        if !std::mem::replace(&mut self.has_failed, true) {
            self.tell(Event::Failed { pid: self.vm.pid(), why });
        }
    }

    pub(super) fn tell(&self, event: Event) {
        (self.tell)(event);
    }
}
