//! A folder with a memory file, and a pager that serves it.

use std::path::Path;

use hugekit_guests::{Pages, Serial, SmallVmm};
use tempfile::TempDir;

use crate::memory_file::MemoryFile;
use crate::pager_process::{Options, PagerProcess};

pub(crate) struct Fixture {
    // Dropped before the folder.
    pub(crate) pager: PagerProcess,
    pub(crate) options: Options,
    pub(crate) memory: MemoryFile,
    folder: TempDir,
}

impl Fixture {
    /// With a pager that reads everything ahead.
    pub(crate) fn new(len: u64) -> Self {
        Self::with(len, |options| options)
    }

    /// With a pager that reads nothing ahead.
    pub(crate) fn on_demand(len: u64) -> Self {
        Self::with(len, |options| Options { prefetch: false, ..options })
    }

    pub(crate) fn with(len: u64, change: impl FnOnce(Options) -> Options) -> Self {
        let folder = TempDir::new().unwrap();
        let memory = MemoryFile::create(folder.path(), len);
        let options = change(Options::new(&memory.path));
        let pager = PagerProcess::start(folder.path(), &options);
        Self { pager, options, memory, folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A VM whose memory is one region.
    pub(crate) fn vm(&self) -> SmallVmm {
        self.vm_of(&[self.memory.len])
    }

    /// A VM whose memory is these regions, one after the other.
    pub(crate) fn vm_of(&self, regions: &[u64]) -> SmallVmm {
        SmallVmm::start(&self.pager.socket, regions, Pages::Base).unwrap()
    }

    /// Starts the next pager. The earlier one must have been killed.
    pub(crate) fn start_next(&mut self) {
        self.pager = PagerProcess::start(self.folder.path(), &self.options);
    }

    pub(crate) fn check(&self, vm: &mut SmallVmm, removed: Option<(u64, u64)>) {
        self.check_by(&mut vm.serial, removed);
    }

    pub(crate) fn check_by(&self, serial: &mut Serial, removed: Option<(u64, u64)>) {
        self.memory.check(serial, removed);
    }
}
