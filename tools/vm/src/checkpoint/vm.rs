//! A running VM, seen from outside: its process, its userfaultfd, and the mappings of its memory.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::mappings::{guest_memory, has_guest_memory};
use crate::checkpoint::pages::Pages;
use crate::vmm::mappings::{is_hugetlb, is_protected, is_served, mappings_of};
use crate::vmm::{Control, MESSAGE_WORDS, Message, Process, Region, Userfaultfd, kept_layout};
use hugekit_machine::processes::{Mapping, ProcessFolder};
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::userfaultfd as calls;
use rustix::io::Errno;

const HUGE: u64 = HUGE_PAGE_BYTES as u64;

/// The longest wait for a thread of the VM that releases memory.
const SETTLE: Duration = Duration::from_secs(10);

/// Addresses that no process has registered, because nothing is ever mapped at the first page.
const NOWHERE: Range<u64> = 0..4096;

/// A VM that only one process saves at a time: [`find`](Self::find) claims it.
#[derive(Debug)]
pub(crate) struct Vm {
    pub(crate) process: Process,
    pub(crate) faults: Userfaultfd,
    /// The file that counts the faults that wait to be read.
    counts: File,
    pub(crate) pages: Pages,
    pub(crate) regions: Vec<Region>,
    pub(crate) is_hugetlb: bool,
}

impl Vm {
    /// Finds a VM that its VMM controls.
    pub(crate) fn find(pid: i32, control: &dyn Control) -> Result<Self, CheckpointError> {
        let opened = |source| CheckpointError::Process { pid, source };
        let mut process = Process::running(pid).map_err(opened)?;
        claim(&mut process)?;
        let faults = find_userfaultfd(&process)?;
        let counts = format!("fdinfo/{}", faults.as_fd().as_raw_fd());
        let counts = ProcessFolder::own().and_then(|own| own.file(&counts));
        let counts = counts.map_err(opened)?;
        let pages = Pages::of_process(process.folder()).map_err(opened)?;
        let (regions, is_hugetlb) = (Vec::new(), false);
        let mut vm = Self { process, faults, counts, pages, regions, is_hugetlb };
        vm.release_left()?;
        vm.find_regions(control)?;
        Ok(vm)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Returns the length of the VM's memory in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.len).sum()
    }

    fn mappings(&self) -> Result<Vec<Mapping>, CheckpointError> {
        let pid = self.pid();
        mappings_of(pid).map_err(|source| CheckpointError::Process { pid, source })
    }

    /// Releases memory that an earlier checkpoint protected before it was killed together with its
    /// guard. No other process protects memory of a VM that this process has claimed.
    fn release_left(&self) -> Result<(), CheckpointError> {
        let mappings = self.mappings()?;
        let left = mappings.iter().filter(|mapping| is_protected(mapping));
        let left: Vec<Range<u64>> = left.map(|mapping| mapping.addresses.clone()).collect();
        left.iter().try_for_each(|addresses| self.release(addresses))?;
        if left.is_empty() { Ok(()) } else { self.settle(&mut |_| Ok(())) }
    }

    fn find_regions(&mut self, control: &dyn Control) -> Result<(), CheckpointError> {
        let memory = control.memory()?;
        let (pid, mappings) = (self.pid(), self.mappings()?);
        let kept = kept_layout::find(&self.process);
        let kept = kept.map_err(|source| CheckpointError::Rights { pid, source })?;
        let regions = match kept {
            Some(layout) if layout.bytes() != memory.all() => {
                let regions = layout.bytes();
                return Err(CheckpointError::OtherSize { pid, regions, memory });
            }
            Some(layout) => Some(layout.regions().to_vec())
                .filter(|regions| has_guest_memory(&mappings, regions)),
            // Regions for more memory lie anywhere.
            None if memory.pluggable > 0 => None,
            None => guest_memory(&mappings, &control.region_sizes(memory.bytes)),
        };
        let regions = regions.ok_or(CheckpointError::Layout { pid, bytes: memory.all() })?;
        let is_guest = |mapping: &&Mapping| {
            let is_part = |region: &Region| {
                let Range { start, end } = region.addresses();
                start < mapping.addresses.end && mapping.addresses.start < end
            };
            regions.iter().any(is_part)
        };
        let of_guest: Vec<&Mapping> = mappings.iter().filter(is_guest).collect();
        if of_guest.iter().any(|mapping| is_served(mapping)) {
            return Err(CheckpointError::Incomplete { pid });
        }
        self.is_hugetlb = of_guest.iter().any(|mapping| is_hugetlb(mapping));
        self.regions = regions;
        Ok(())
    }

    /// Makes the userfaultfd handle first accesses and writes in all memory. All of them wait from
    /// now on. Returns `false` if a thread of the VM is releasing memory: its message must be read
    /// first.
    pub(crate) fn protect(&self) -> Result<bool, CheckpointError> {
        for region in &self.regions {
            if !self.protect_addresses(&region.addresses())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Like [`protect`](Self::protect), for a part of the memory.
    pub(crate) fn protect_addresses(
        &self,
        addresses: &Range<u64>,
    ) -> Result<bool, CheckpointError> {
        let (descriptor, addresses) = (self.faults.as_fd(), in_words(addresses));
        let protected = calls::register_for_writes(descriptor, &addresses)
            .and_then(|()| calls::protect(descriptor, &addresses, true));
        match protected {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(self.refused("protect", errno.into())),
        }
    }

    /// Leaves addresses to the kernel, and wakes the threads that wait there.
    pub(crate) fn release(&self, addresses: &Range<u64>) -> Result<(), CheckpointError> {
        self.faults.unregister(addresses).map_err(|errno| self.refused("release", errno.into()))
    }

    /// Leaves all memory to the kernel. Threads that release memory may still wait:
    /// [`settle`](Self::settle).
    pub(crate) fn release_regions(&self) -> Result<(), CheckpointError> {
        self.regions.iter().try_for_each(|region| self.release(&region.addresses()))
    }

    /// Returns true if a thread of the VM that releases memory waits until its message is read.
    pub(crate) fn gives_memory_back(&self) -> bool {
        self.faults.is_changing(&NOWHERE)
    }

    /// Reads messages until no thread of the VM waits for this.
    pub(crate) fn settle(
        &self,
        each: &mut dyn FnMut(Message) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let until = Instant::now() + SETTLE;
        while self.gives_memory_back() && !self.process.has_ended() {
            self.read_message()?.map_or(Ok(()), &mut *each)?;
            if Instant::now() > until {
                return Err(self.refused("release", io::ErrorKind::TimedOut.into()));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Returns the number of faults that were not read yet. The kernel delivers faults before other
    /// messages.
    pub(crate) fn waiting_faults(&self) -> Result<u64, CheckpointError> {
        let mut text = [0; 256];
        let count = self.counts.read_at(&mut text, 0);
        let count = count.map_err(|source| self.refused("watch", source))?;
        let text = String::from_utf8_lossy(&text[..count]);
        let waiting = text.lines().find_map(|line| line.strip_prefix("pending:"));
        let waiting = waiting.and_then(|count| count.trim().parse().ok());
        waiting.ok_or_else(|| self.refused("watch", io::ErrorKind::InvalidData.into()))
    }

    /// Returns the next message; `None` if there is none.
    pub(crate) fn read_message(&self) -> Result<Option<Message>, CheckpointError> {
        let words = [const { AtomicU64::new(0) }; MESSAGE_WORDS];
        let read = self.faults.read(&words);
        let count = read.map_err(|errno| self.refused("watch", errno.into()))?;
        Ok((count > 0).then(|| Message::of_words(&words)).flatten())
    }

    pub(crate) fn refused(&self, action: &'static str, source: io::Error) -> CheckpointError {
        CheckpointError::Kernel { action, source }
    }

    /// Puts each aligned, completely populated 2 MiB on a huge page. The VM needs no more memory
    /// for this. Returns the number of bytes that were not on a huge page before.
    pub(crate) fn collapse(&self) -> Result<u64, CheckpointError> {
        let mut collapsed = 0;
        if self.is_hugetlb {
            return Ok(collapsed);
        }
        for region in &self.regions {
            let Range { start, end } = region.addresses();
            let starts = (start.next_multiple_of(HUGE)..end).step_by(HUGE_PAGE_BYTES);
            for start in starts.filter(|start| start + HUGE <= end) {
                if self.is_on_base_pages(start)? && self.process.collapse(start).is_ok() {
                    collapsed += HUGE;
                }
            }
        }
        Ok(collapsed)
    }

    fn is_on_base_pages(&self, start: u64) -> Result<bool, CheckpointError> {
        let state = self.pages.is_full_and_not_huge(&(start..start + HUGE));
        state.map_err(|source| CheckpointError::Memory { address: start, source })
    }
}

pub(crate) fn claim(process: &mut Process) -> Result<(), CheckpointError> {
    let pid = process.pid();
    process.claim().map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => CheckpointError::InUse { pid },
        io::ErrorKind::PermissionDenied => CheckpointError::Rights { pid, source },
        _ => CheckpointError::Process { pid, source },
    })
}

pub(crate) fn find_userfaultfd(process: &Process) -> Result<Userfaultfd, CheckpointError> {
    let pid = process.pid();
    let found = process.userfaultfds();
    let found = found.map_err(|source| CheckpointError::Rights { pid, source })?;
    let mut refusal = CheckpointError::NoUserfaultfd { pid };
    for descriptor in found {
        match Userfaultfd::new(descriptor) {
            Ok(faults) => return Ok(faults),
            Err(unfit) => refusal = unfit.into(),
        }
    }
    Err(refusal)
}

fn in_words(addresses: &Range<u64>) -> Range<usize> {
    addresses.start as usize..addresses.end as usize
}
