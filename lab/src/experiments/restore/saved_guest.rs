//! The guest that all restored guests come from: its snapshots, its memory as files, and an image.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::measure::workloads::micro_vm::MicroVm;
use crate::measure::workloads::pager_thread::PagerThread;
use crate::measure::{LabError, Observer};
use hugekit::image::Image;
use hugekit_guests::{Pages, Request, Snapshot};
use hugekit_machine::size::Size;
use hugekit_sys::userfaultfd;
use hugekit_vm::pager::{Event, PagerOptions};
use tempfile::TempDir;

use crate::experiments::files::Folders;
use crate::experiments::files::cached::FileCache;
use crate::experiments::files::xfs::Xfs;

const SEED: u64 = 0x5eed_0000_1234_5678;

/// The seconds for which the touches of the guest are recorded for a working set: the first that are
/// enough.
const RECORD_SECONDS: [u64; 4] = [1, 2, 4, 8];

/// The time between two questions to the observer while an image is loaded.
const LOOK: Duration = Duration::from_millis(100);

/// The memory file in each state of the page cache, on one file system.
#[derive(Debug)]
pub(super) struct CachedFiles {
    /// The name of the file system, as in IDs.
    pub(super) system: String,
    pub(super) small: PathBuf,
    /// A copy that is warmed, if that can be done here, or the reason.
    pub(super) warmed: Result<PathBuf, String>,
    /// A copy that is dropped from the page cache before each restore.
    pub(super) cold: PathBuf,
    /// The file system, if it was made for these files.
    _made: Option<Xfs>,
}

/// Snapshots of a guest that has written half of its memory.
#[derive(Debug)]
pub(super) struct SavedGuest {
    pub(super) folders: Folders,
    pub(super) bytes: usize,
    pub(super) snapshot: Snapshot,
    /// A snapshot of the same guest on hugetlb pages of 2 MiB, if there are enough.
    pub(super) huge: Option<Snapshot>,
    /// The memory file, on a tmpfs. It has no name, so that a lab that is killed leaves no memory
    /// behind.
    tmpfs: Option<File>,
    /// The memory file on the disk, if there is one, and then on XFS.
    pub(super) cached: Vec<CachedFiles>,
    /// The reason why it is not on XFS, if it is not.
    why_no_xfs: Option<String>,
    pub(super) image: Image,
    /// The time of loading the image.
    loading: Duration,
    /// Bytes of the recorded working set; `None` if handlers of page faults cannot be used here,
    /// with the reason.
    working_set: Result<u64, String>,
}

impl SavedGuest {
    pub(super) fn make(
        folders: Folders,
        bytes: usize,
        has_pages: bool,
        observer: &dyn Observer,
    ) -> Result<Self, LabError> {
        let (snapshot, huge) = save_guests(&folders, bytes, has_pages, observer)?;
        let copy = |folder: &TempDir| {
            let mut copy = tempfile::tempfile_in(folder.path()).map_err(LabError::Saved)?;
            copy_by_pages(&snapshot.memory, &mut copy, observer).map(|()| copy)
        };
        let tmpfs = folders.tmpfs.as_ref().map(copy).transpose()?;
        let mut cached = Vec::new();
        if let Some((folder, system)) = &folders.disk {
            let small = snapshot.memory.clone();
            cached.push(CachedFiles::make(system, folder.path(), small, None, observer)?);
        }
        let why_no_xfs = match xfs(&folders, bytes) {
            Ok(xfs) => {
                let folder = xfs.folder();
                let small = copied(&snapshot.memory, &folder, "small.bin", observer)?;
                cached.push(CachedFiles::make(XFS, &folder, small, Some(xfs), observer)?);
                None
            }
            Err(reason) => Some(reason),
        };
        let start = Instant::now();
        let image = load_image(&snapshot.memory, observer)?;
        let loading = start.elapsed();
        let working_set = why_no_handler().map_or(Ok(0), Err);
        let mut saved = Self {
            folders,
            bytes,
            snapshot,
            huge,
            tmpfs,
            cached,
            why_no_xfs,
            image,
            loading,
            working_set,
        };
        if saved.working_set.is_ok() {
            saved.working_set = Ok(saved.record(observer)?);
        }
        Ok(saved)
    }

    /// The first byte that the guest had written.
    pub(super) fn start(&self) -> u64 {
        self.bytes as u64 / 4
    }

    /// Bytes that the guest had written.
    pub(super) fn len(&self) -> usize {
        self.bytes / 2
    }

    /// Reads a word of each page that the guest had written.
    pub(super) fn touch(&self) -> Request {
        Request::Touch { start: self.start(), len: self.len() as u64 }
    }

    /// Counts wrong words among these.
    pub(super) fn verify(&self) -> Request {
        Request::Verify { start: self.start(), len: self.len() as u64, seed: SEED }
    }

    pub(super) fn image_path(&self) -> PathBuf {
        path_of(&self.image)
    }

    pub(super) fn tmpfs_path(&self) -> Option<PathBuf> {
        self.tmpfs.as_ref().map(path_of)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folders.sockets.path().join("pager.sock")
    }

    /// The file of the recorded working set.
    pub(super) fn working_set_path(&self) -> PathBuf {
        self.folders.sockets.path().join("working-set")
    }

    pub(super) fn has_handlers(&self) -> bool {
        self.working_set.is_ok()
    }

    /// Options of a pager that reads the recorded working set ahead.
    pub(super) fn options(&self) -> PagerOptions {
        PagerOptions { working_set: Some(self.working_set_path()), ..PagerOptions::default() }
    }

    /// Has a pager record which memory a guest touches; returns the bytes.
    fn record(&self, observer: &dyn Observer) -> Result<u64, LabError> {
        let mut recorded = 0;
        for record in RECORD_SECONDS.map(Duration::from_secs) {
            let _ = fs::remove_file(self.working_set_path());
            let options = PagerOptions { record, ..self.options() };
            let pager = PagerThread::start(self.socket(), options, &self.snapshot.memory)?;
            let mut vm = MicroVm::start(self.folders.sockets.path(), "recorded", observer)?;
            vm.load_by_handler(&self.snapshot, pager.socket(), true)?;
            vm.ask(self.touch())?;
            recorded = pager.wait(observer, |event| match event {
                Event::Recorded { bytes, .. } => Some(*bytes),
                _ => None,
            })?;
            drop(vm);
            if recorded >= self.len() as u64 {
                break;
            }
        }
        Ok(recorded)
    }

    /// Facts that a reader must know.
    pub(super) fn notices(&self) -> Vec<String> {
        let disk = self.cached.iter().map(CachedFiles::notice);
        let diskless = self.folders.disk.is_none();
        let diskless =
            diskless.then(|| "no folder on a disk: memory files are on a tmpfs".to_owned());
        let xfs = self.why_no_xfs.iter().map(|reason| format!("{XFS} left out: {reason}"));
        let tmpfs = self.tmpfs.is_none().then(|| "tmpfs left out: no folder on one".to_owned());
        let image = format!(
            "the image was loaded once in {:.2} s, with {} of {} on huge pages",
            self.loading.as_secs_f64(),
            Size(self.image.huge_bytes() as usize),
            Size(self.image.bytes())
        );
        let handlers = match &self.working_set {
            Ok(bytes) => format!("the recorded working set has {}", Size(*bytes as usize)),
            Err(reason) => format!("handlers of page faults left out: {reason}"),
        };
        let left_out = diskless.into_iter().chain(xfs).chain(tmpfs);
        version().into_iter().chain(disk).chain([image, handlers]).chain(left_out).collect()
    }
}

/// A path by which a child of this process can open it.
fn path_of(file: &impl AsFd) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_fd().as_raw_fd()).into()
}

impl CachedFiles {
    fn make(
        system: &str,
        folder: &Path,
        small: PathBuf,
        made: Option<Xfs>,
        observer: &dyn Observer,
    ) -> Result<Self, LabError> {
        let warmed = copied(&small, folder, "warmed.bin", observer)?;
        let cold = copied(&small, folder, "cold.bin", observer)?;
        let prepared = FileCache::Warmed.prepare(&warmed);
        let warmed =
            prepared.map(|()| warmed).map_err(|error| hugekit::error_chain(&error).to_string());
        Ok(Self { system: system.to_owned(), small, warmed, cold, _made: made })
    }

    fn notice(&self) -> String {
        let system = &self.system;
        let warmed = match &self.warmed {
            Ok(_) => format!("of {system}-warmed on huge pages"),
            Err(reason) => format!("{system}-warmed is left out ({reason})"),
        };
        format!(
            "memory files are on {system}: of {system}, all is in the page cache on base pages, {warmed}, of \
             {system}-cold nothing; checked before each restore"
        )
    }
}

const XFS: &str = "xfs";

/// Files of a file system on which the memory file is, too.
const ON_XFS: u64 = 3;

fn xfs(folders: &Folders, bytes: usize) -> Result<Xfs, String> {
    match &folders.disk {
        None => Err("no folder on a disk".to_owned()),
        Some((_, system)) if system == XFS => Err("the disk is XFS".to_owned()),
        Some((folder, _)) => Xfs::make(folder.path(), ON_XFS * bytes as u64),
    }
}

/// A copy in a folder.
fn copied(
    from: &Path,
    folder: &Path,
    name: &str,
    observer: &dyn Observer,
) -> Result<PathBuf, LabError> {
    let path = folder.join(name);
    let mut copy = File::create(&path).map_err(LabError::Saved)?;
    copy_by_pages(from, &mut copy, observer)?;
    copy.sync_all().map_err(LabError::Saved)?;
    Ok(path)
}

/// Bytes that are copied between two looks at the observer.
const PORTION: usize = 4 << 20;

const PAGE: usize = 4096;

/// Copies a file in pieces that leave the copy in the page cache on base pages, as Firecracker's snapshots are there.
fn copy_by_pages(from: &Path, to: &mut File, observer: &dyn Observer) -> Result<(), LabError> {
    let mut from = File::open(from).map_err(LabError::Saved)?;
    let mut portion = vec![0; PORTION];
    loop {
        observer.check()?;
        let len = from.read(&mut portion).map_err(LabError::Saved)?;
        if len == 0 {
            return Ok(());
        }
        portion[..len]
            .chunks(PAGE)
            .try_for_each(|page| to.write_all(page))
            .map_err(LabError::Saved)?;
    }
}

/// If the observer wants to stop, the thread that loads ends with the process.
fn load_image(memory: &Path, observer: &dyn Observer) -> Result<Image, LabError> {
    let (tell, told) = channel();
    let memory = memory.to_owned();
    let load = move || tell.send(Image::load(&memory));
    thread::Builder::new().name("load".to_owned()).spawn(load).map_err(LabError::Thread)?;
    loop {
        match told.recv_timeout(LOOK) {
            Ok(image) => return Ok(image?),
            Err(RecvTimeoutError::Timeout) => observer.check()?,
            Err(error) => return Err(LabError::Thread(io::Error::other(error))),
        }
    }
}

/// Snapshots of a guest that has written half of its memory: on base pages, and on hugetlb pages if
/// there are enough.
pub(in crate::experiments) fn save_guests(
    folders: &Folders,
    bytes: usize,
    has_pages: bool,
    observer: &dyn Observer,
) -> Result<(Snapshot, Option<Snapshot>), LabError> {
    let snapshot = Snapshot::in_folder(folders.any());
    boot_and_save(folders, bytes, Pages::Base, &snapshot, observer)?;
    let huge = has_pages.then(|| Snapshot {
        state: folders.any().join("huge-state.bin"),
        memory: folders.any().join("huge-memory.bin"),
    });
    if let Some(huge) = &huge {
        boot_and_save(folders, bytes, Pages::Hugetlb2M, huge, observer)?;
    }
    Ok((snapshot, huge))
}

/// Boots the guest, has it write half of its memory, and saves it.
fn boot_and_save(
    folders: &Folders,
    bytes: usize,
    pages: Pages,
    to: &Snapshot,
    observer: &dyn Observer,
) -> Result<(), LabError> {
    let mut vm = MicroVm::start(folders.sockets.path(), "origin", observer)?;
    vm.boot(bytes, pages)?;
    let (start, len) = (bytes as u64 / 4, bytes as u64 / 2);
    vm.ask(Request::Write { start, len, seed: SEED })?;
    vm.save(to)
}

/// The reason why page faults of Firecracker cannot be handled here, if so.
pub(in crate::experiments) fn why_no_handler() -> Option<String> {
    let device = || userfaultfd::new_from_device(Path::new("/dev/userfaultfd"));
    let refused = device().or_else(|_| userfaultfd::new_whole()).err()?;
    Some(format!(
        "this user may have no userfaultfd for faults of KVM ({refused}); run as root, or allow the \
         user to open /dev/userfaultfd"
    ))
}

/// The first line that Firecracker prints of its version.
pub(in crate::experiments) fn version() -> Option<String> {
    let mut command = Command::new(hugekit_guests::program()?);
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok()?;
    let line = String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned();
    Some(format!("the VMM is {line}"))
}
