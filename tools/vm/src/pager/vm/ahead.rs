//! Memory that is read and supplied ahead, while no thread waits for it, and the end of serving.
//!
//! Nothing is read ahead while the VMM restores the VM. After that, the working set that an earlier
//! restore has recorded comes first, and then all other data. If no set was recorded, the VM's
//! touches are recorded for a while first, because afterwards they could not be distinguished from
//! memory that was read ahead.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use hugekit_sys::thread;

use super::collapse::Collapsed;
use super::demand::{FAR, Server};
use super::install::Supply;
use super::reader::{self, Chunk, Read};
use super::{Stop, VmError, pages_of};
use crate::pager::event::{Completed, Event};
use crate::pager::source::SourceError;
use crate::pager::working_set::WorkingSet;

/// The number of first faults. Until then, or until `PagerOptions::startup` is over, no memory is
/// copied for which no thread waits. The VMM restores its devices in this time: KVM waits in
/// `synchronize_srcu`, which lasts longer while another CPU copies.
const FIRST_FAULTS: u64 = 16;

/// The progress of reading ahead.
pub(super) enum Ahead {
    /// Not begun, because the VM has just connected.
    Waiting { until: Instant },
    /// Not wanted, failed, or complete.
    Off,
    /// The VM's touches are recorded until this time.
    Recording { until: Instant },
    /// A thread reads. Data for which no thread waits is not supplied before `rested`.
    Reading {
        chunks: Receiver<Chunk>,
        buffers: Sender<Vec<u8>>,
        held: Option<Read>,
        rested: Instant,
    },
}

impl<'a> Server<'a> {
    /// Returns true if the VM has just connected. Only faults are handled then.
    pub(super) fn is_starting(&self) -> bool {
        let Ahead::Waiting { until } = self.ahead else { return false };
        self.answered < FIRST_FAULTS && Instant::now() < until
    }

    fn start_ahead<'scope>(&mut self, scope: &'scope Scope<'scope, '_>)
    where
        'a: 'scope,
    {
        self.ahead = Ahead::Off;
        if !self.options.prefetch {
            return;
        }
        if !self.vm.source.is_kept() {
            return self.start_reading(scope, Arc::default());
        }
        let found = self.sets.find(self.vm.source.len(), self.vm.source.identity());
        if let Err(source) = &found {
            let (path, source) =
                (self.sets.path(), io::Error::new(source.kind(), source.to_string()));
            self.tell(Event::Failed {
                pid: self.vm.pid(),
                why: VmError::WorkingSet { path, source },
            });
        }
        match found {
            Ok(Some(set)) => self.start_reading(scope, set),
            // It is recorded anew, for this pager at least.
            _ => self.ahead = Ahead::Recording { until: self.since + self.options.record },
        }
    }

    fn start_reading<'scope>(&mut self, scope: &'scope Scope<'scope, '_>, set: Arc<WorkingSet>)
    where
        'a: 'scope,
    {
        let (filled, chunks) = channel();
        let (buffers, empty) = channel();
        for buffer in reader::buffers(self.vm) {
            let _ = buffers.send(buffer);
        }
        let (vm, bell) = (self.vm, Arc::clone(&self.vm.bell));
        let read = move || reader::run(vm, &set, &empty, &filled, &bell);
        match thread::spawn_scoped(scope, "hugekit-ahead", read) {
            Ok(_) => {
                let rested = Instant::now();
                self.ahead = Ahead::Reading { chunks, buffers, held: None, rested };
            }
            Err(error) => self.fail(VmError::Thread(error)),
        }
    }

    /// Returns the time for which there is nothing to do ahead; `None` if this is until the bell
    /// rings.
    pub(super) fn time_ahead(&self) -> Option<Duration> {
        let until = |then: Instant| Some(then.saturating_duration_since(Instant::now()));
        match &self.ahead {
            Ahead::Waiting { until: then } | Ahead::Recording { until: then } => until(*then),
            Ahead::Reading { held: Some(_), rested, .. } => until(*rested),
            _ => None,
        }
    }

    /// Does one step of the work ahead.
    pub(super) fn go_ahead<'scope>(&mut self, scope: &'scope Scope<'scope, '_>) -> Result<(), Stop>
    where
        'a: 'scope,
    {
        match &mut self.ahead {
            Ahead::Off => self.vm.bell.hush(),
            Ahead::Waiting { .. } => {
                if !self.is_starting() {
                    self.start_ahead(scope);
                }
            }
            Ahead::Recording { until } => {
                if *until <= Instant::now() {
                    let set = self.record();
                    self.start_reading(scope, set);
                }
            }
            Ahead::Reading { held, rested, .. } => match held.take() {
                Some(read) if *rested > Instant::now() => *held = Some(read),
                Some(read) => return self.supply(read),
                None => return self.next_chunk(),
            },
        }
        Ok(())
    }

    /// Stores the VM's touches for later restores.
    fn record(&self) -> Arc<WorkingSet> {
        let touched = self.touched.iter().map(|&block| self.vm.offsets_of_block(block));
        let set = Arc::new(WorkingSet::new(touched));
        let (pid, source) = (self.vm.pid(), &self.vm.source);
        self.tell(match self.sets.keep(&set, source.len(), source.identity()) {
            Ok(()) => Event::Recorded { pid, bytes: set.bytes() },
            Err(source) => {
                Event::Failed { pid, why: VmError::WorkingSet { path: self.sets.path(), source } }
            }
        });
        set
    }

    fn next_chunk(&mut self) -> Result<(), Stop> {
        let Ahead::Reading { chunks, held, rested, .. } = &mut self.ahead else { return Ok(()) };
        self.vm.bell.hush();
        match chunks.try_recv() {
            Ok(Chunk::Read(read)) => {
                // There may be more.
                self.vm.bell.ring();
                if read.is_wanted || *rested <= Instant::now() {
                    return self.supply(read);
                }
                *held = Some(read);
            }
            // Bytes of a file that was changed are no VM's memory.
            Ok(Chunk::Failed(why @ VmError::Source(SourceError::Written { .. }))) => {
                return Err(Stop::Failed(why));
            }
            Ok(Chunk::Failed(why)) => self.fail(why),
            Ok(Chunk::End) => return self.complete(),
            Err(_) => {}
        }
        Ok(())
    }

    fn supply(&mut self, read: Read) -> Result<(), Stop> {
        let Read { piece, found, room, is_wanted } = read;
        let (supply, since) = (if is_wanted { Supply::All } else { Supply::Data }, Instant::now());
        let offsets = piece.offsets();
        if !self.vm.supplied().has_all(pages_of(offsets.clone())) {
            if !self.may_supply(piece.len) {
                return Ok(());
            }
            match self.install(piece, self.vm.bytes_of(piece, found, &room), supply) {
                Err(Stop::Failed(why)) => self.fail(why),
                done => done?,
            }
        }
        if let Ahead::Reading { buffers, rested, .. } = &mut self.ahead {
            let _ = buffers.send(room);
            // Memory of a running VM is held until its children have it.
            if !is_wanted && self.vm.source.is_kept() {
                // The VM has at least half of the time.
                *rested = Instant::now() + since.elapsed();
            }
        }
        Ok(())
    }

    /// Returns true if there is memory to supply this many bytes ahead. Memory that the VM touches
    /// is supplied in any case, as without this pager.
    fn may_supply(&mut self, bytes: u64) -> bool {
        // Memory of a running VM is needed at once, and its fork has looked; pages of hugetlbfs are reserved.
        if !self.vm.source.is_kept() || self.vm.layout.is_hugetlb() {
            return true;
        }
        match self.budget.take(bytes) {
            Ok(()) => true,
            Err(available) => {
                self.fail(VmError::NotAhead(available));
                false
            }
        }
    }

    /// Completes the memory, when all data is supplied, or when an earlier pager was leaving the
    /// VM.
    pub(super) fn complete(&mut self) -> Result<(), Stop> {
        self.ahead = Ahead::Off;
        if !self.vm.state.is_leaving() {
            self.bring_missing()?;
            self.vm.source.check_unwritten().map_err(|why| Stop::Failed(why.into()))?;
        }
        let stays = self.options.stay && !self.vm.state.is_leaving();
        if !stays {
            self.leave()?;
        }
        let Collapsed { bytes: collapsed, refused } = self.collapse()?;
        let completed = Completed {
            pid: self.vm.pid(),
            collapsed,
            refused,
            after: self.since.elapsed(),
            faults: self.answered,
            copied: self.copied,
            stays,
        };
        if !stays {
            return Err(Stop::Left(completed));
        }
        self.tell(Event::Complete(completed));
        Ok(())
    }

    /// Compares the supplied pages with the data of the file, and supplies the rest, so that no
    /// byte is left out.
    fn bring_missing(&mut self) -> Result<(), Stop> {
        for region in self.vm.layout.regions() {
            let mut left = region.offsets();
            while let Some(missing) = self.vm.missing(left.clone()) {
                let page = self.vm.layout.page();
                let start = missing.start / page * page;
                let end = (start + FAR.max(page)).min(left.end);
                self.bring(start..end, Supply::Data)?;
                left.start = end;
            }
        }
        Ok(())
    }

    /// Leaves the memory to the kernel: missing pages are zero.
    fn leave(&mut self) -> Result<(), Stop> {
        self.vm.state.set_leaving();
        self.vm.leave()?;
        self.settle()
    }

    /// Reads messages until no thread of the VM waits for this.
    pub(super) fn settle(&mut self) -> Result<(), Stop> {
        let unregistered = self.vm.layout.regions()[0].addresses();
        loop {
            self.read_messages()?;
            if !self.vm.faults.is_changing(&unregistered) {
                self.faults.clear();
                return Ok(());
            }
            self.vm.wait(self.stop, Some(Duration::from_millis(1)))?;
        }
    }
}
