//! The ways to restore.

use std::path::PathBuf;
use std::time::Duration;

use crate::measure::LabError;
use crate::measure::Observer;
use crate::measure::workloads::micro_vm::MicroVm;
use crate::measure::workloads::page_handler::{PageHandler, Strategy};
use crate::measure::workloads::pager_thread::PagerThread;
use hugekit_guests::Snapshot;
use hugekit_machine::size::Size;
use hugekit_vm::pager::PagerOptions;

use super::saved_guest::{CachedFiles, SavedGuest};
use crate::experiments::files::cached::FileCache;

/// The source of a guest's memory.
#[derive(Clone, Debug)]
pub(super) enum Backend {
    /// The VMM maps a file.
    File(PathBuf),
    Handler(Strategy),
    Pager(Use),
}

/// The use of the pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// For the first time: no working set is recorded.
    First,
    /// Memory is supplied only when it is touched.
    OnDemand,
    /// A working set was recorded, and the guest runs meanwhile.
    WorkingSet,
    /// The guest is resumed when all of its memory is there.
    Ahead,
}

/// A way to restore, with its name in IDs.
#[derive(Clone, Debug)]
pub(super) struct RestoreWay {
    pub(super) method: String,
    pub(super) backend: Backend,
    pub(super) snapshot: Snapshot,
    pub(super) is_hugetlb: bool,
    /// The state of the file's page cache before each restore, if it is a file on the disk.
    cache: Option<FileCache>,
    /// The VMM advises huge pages for the mapping of the file.
    is_advised: bool,
}

/// The server of a guest's page faults.
pub(super) enum FaultServer {
    None,
    Handler(PageHandler),
    Pager(PagerThread),
}

impl FaultServer {
    /// Ends it, after its guest.
    pub(super) fn end(self) -> Result<(), LabError> {
        match self {
            Self::Handler(handler) => handler.end(),
            Self::None | Self::Pager(_) => Ok(()),
        }
    }
}

impl RestoreWay {
    fn new(method: &str, backend: Backend, snapshot: &Snapshot) -> Self {
        let (method, snapshot) = (method.to_owned(), snapshot.clone());
        let (is_hugetlb, cache, is_advised) = (false, None, false);
        Self { method, backend, snapshot, is_hugetlb, cache, is_advised }
    }

    /// All that can be used here.
    pub(super) fn all(saved: &SavedGuest) -> Vec<Self> {
        let files = Self::by_file(saved).into_iter();
        let (handlers, hugetlb) = match saved.has_handlers() {
            true => (Self::by_handler(saved), Self::on_hugetlb(saved)),
            false => (Vec::new(), Vec::new()),
        };
        files.chain(handlers).chain(hugetlb).collect()
    }

    /// The ways between which users of many clones choose: a file on the disk, an image, and the pager
    /// as it is by default.
    pub(super) fn of_clones(saved: &SavedGuest) -> Vec<Self> {
        let on_disk = saved.cached.first().into_iter();
        let on_disk = on_disk.flat_map(|files| Self::by_cached_file(files, saved));
        let in_memory = on_disk.filter(|way| way.cache != Some(FileCache::Cold));
        let image = Self::new("image", Backend::File(saved.image_path()), &saved.snapshot);
        let pager = Self::new("pager", Backend::Pager(Use::WorkingSet), &saved.snapshot);
        in_memory.chain([image]).chain(saved.has_handlers().then_some(pager)).collect()
    }

    fn by_file(saved: &SavedGuest) -> Vec<Self> {
        let disk = saved.cached.iter().flat_map(|files| Self::by_cached_file(files, saved));
        let tmpfs = saved.tmpfs_path().map(|path| ("tmpfs", path));
        let images = ["image", "control-image"].map(|method| (method, saved.image_path()));
        let way = |(method, path)| Self::new(method, Backend::File(path), &saved.snapshot);
        disk.chain(tmpfs.into_iter().chain(images).map(way)).collect()
    }

    /// The same file in each state of its page cache.
    fn by_cached_file(files: &CachedFiles, saved: &SavedGuest) -> Vec<Self> {
        let (small, warmed, cold) = (&files.small, files.warmed.as_ref().ok(), &files.cold);
        let each = [
            ("", Some(small), FileCache::Small, false),
            ("-warmed", warmed, FileCache::Warmed, false),
            ("-cold", Some(cold), FileCache::Cold, false),
            ("-cold-transparent", Some(cold), FileCache::Cold, true),
        ];
        let way = |(suffix, path, cache, is_advised): (_, Option<&PathBuf>, _, _)| {
            let file = Backend::File(path?.clone());
            let way = Self::new(&format!("{}{suffix}", files.system), file, &saved.snapshot);
            Some(Self { cache: Some(cache), is_advised, ..way })
        };
        each.into_iter().filter_map(way).collect()
    }

    fn by_handler(saved: &SavedGuest) -> Vec<Self> {
        let ways = [
            ("on-demand-4k", Backend::Handler(Strategy::OnDemand)),
            ("full-copy", Backend::Handler(Strategy::FullCopy)),
            ("pager", Backend::Pager(Use::First)),
            ("control-pager", Backend::Pager(Use::First)),
            ("pager-working-set", Backend::Pager(Use::WorkingSet)),
            ("pager-ahead", Backend::Pager(Use::Ahead)),
        ];
        let way = |(method, backend)| Self::new(method, backend, &saved.snapshot);
        ways.into_iter().map(way).collect()
    }

    fn on_hugetlb(saved: &SavedGuest) -> Vec<Self> {
        let ways = [("hugetlb-on-demand", Use::OnDemand), ("hugetlb-ahead", Use::Ahead)];
        let Some(snapshot) = &saved.huge else { return Vec::new() };
        let way = |(method, used)| Self {
            is_hugetlb: true,
            ..Self::new(method, Backend::Pager(used), snapshot)
        };
        ways.into_iter().map(way).collect()
    }

    /// The field of `smaps_rollup` that counts the memory, if it should be on transparent huge pages.
    pub(super) fn huge_field(&self) -> Option<&'static str> {
        match &self.backend {
            Backend::File(_) if self.method.ends_with("image") => Some("ShmemPmdMapped"),
            Backend::Pager(Use::Ahead) if !self.is_hugetlb => Some("AnonHugePages"),
            _ => None,
        }
    }

    /// True if the guest is resumed before all memory is copied.
    pub(super) fn replies_soon(&self) -> bool {
        !matches!(self.backend, Backend::Handler(Strategy::FullCopy) | Backend::Pager(Use::Ahead))
    }

    /// Starts the server of one guest, or of several if it is a pager.
    pub(super) fn serve(&self, saved: &SavedGuest) -> Result<FaultServer, LabError> {
        let memory = &self.snapshot.memory;
        if let (Backend::File(path), Some(cache)) = (&self.backend, self.cache) {
            cache.prepare(path)?;
        }
        Ok(match self.backend {
            Backend::File(_) => FaultServer::None,
            Backend::Handler(strategy) => {
                FaultServer::Handler(PageHandler::start(&saved.socket(), memory, strategy)?)
            }
            Backend::Pager(used) => {
                FaultServer::Pager(PagerThread::start(saved.socket(), used.options(saved), memory)?)
            }
        })
    }

    /// Restores, and returns when the guest runs.
    pub(super) fn restore(
        &self,
        vm: &MicroVm<'_>,
        server: &FaultServer,
        observer: &dyn Observer,
    ) -> Result<(), LabError> {
        let is_ahead = matches!(self.backend, Backend::Pager(Use::Ahead));
        match (&self.backend, server) {
            (Backend::File(path), _) if self.is_advised => {
                vm.load_by_advised_file(&self.snapshot, path)
            }
            (Backend::File(path), _) => vm.load_by_file(&self.snapshot, path),
            (_, FaultServer::Handler(handler)) => {
                vm.load_by_handler(&self.snapshot, handler.socket(), true)
            }
            (_, FaultServer::Pager(pager)) => {
                vm.load_by_handler(&self.snapshot, pager.socket(), !is_ahead)?;
                if is_ahead {
                    pager.until_complete(observer)?;
                    vm.resume()?;
                }
                Ok(())
            }
            (_, FaultServer::None) => unreachable!("a way without a file has a server"),
        }
    }
}

impl Use {
    fn options(self, saved: &SavedGuest) -> PagerOptions {
        let options = saved.options();
        match self {
            Self::WorkingSet | Self::Ahead => options,
            Self::OnDemand => PagerOptions { prefetch: false, ..options },
            Self::First => {
                // The guest ends before anything is recorded.
                let none = saved.socket().with_extension("none");
                let _ = std::fs::remove_file(&none);
                PagerOptions { working_set: Some(none), record: Duration::from_secs(10), ..options }
            }
        }
    }
}

/// The workload of an ID: `touch-512MiB`.
pub(super) fn workload(what: &str, bytes: usize) -> String {
    format!("{what}-{}", Size(bytes))
}
