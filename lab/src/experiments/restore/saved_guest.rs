//! The guest that all restored guests come from: its snapshots, its memory as files, and an image.

use std::fs::{self, File};
use std::io::{self, Read};
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

use super::cached::CacheState;
use super::files::Folders;

const SEED: u64 = 0x5eed_0000_1234_5678;

/// The seconds for which the touches of the guest are recorded for a working set: the first that are
/// enough.
const RECORD_SECONDS: [u64; 4] = [1, 2, 4, 8];

/// The time between two questions to the observer while an image is loaded.
const LOOK: Duration = Duration::from_millis(100);

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
    /// A copy of the memory file that is warmed, if that can be done here, or the reason.
    warmed: Result<PathBuf, String>,
    /// A copy of the memory file that is dropped from the page cache before each restore.
    cold: Option<PathBuf>,
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
        let copy = |folder: &TempDir| copy_into(folder.path(), &snapshot.memory, observer);
        let tmpfs = folders.tmpfs.as_ref().map(copy).transpose()?;
        let warmed = copied_on_disk(&folders, &snapshot.memory, "warmed.bin")?;
        let cold = copied_on_disk(&folders, &snapshot.memory, "cold.bin")?;
        let warmed = warmed.ok_or("no folder on a disk".to_owned()).and_then(|path| {
            let prepared = CacheState::Warmed.prepare(&path);
            prepared.map(|()| path).map_err(|error| hugekit::error_chain(&error).to_string())
        });
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
            warmed,
            cold,
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

    pub(super) fn warmed_path(&self) -> Option<&Path> {
        self.warmed.as_deref().ok()
    }

    pub(super) fn cold_path(&self) -> Option<&Path> {
        self.cold.as_deref()
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
        let disk = match &self.folders.disk {
            Some((_, system)) => format!(
                "memory files are on {system}: of {system}, all is in the page cache on base pages, of \
                 {system}-warmed on huge pages, of {system}-cold nothing; checked before each restore"
            ),
            None => "no folder on a disk was found: memory files are on a tmpfs".to_owned(),
        };
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
        let warmed = self.warmed.as_ref().err();
        let warmed = warmed.map(|reason| format!("the warmed file is left out: {reason}"));
        let ours = [disk, image, handlers].into_iter().chain(tmpfs).chain(warmed);
        version().into_iter().chain(ours).collect()
    }
}

/// A path by which a child of this process can open it.
fn path_of(file: &impl AsFd) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_fd().as_raw_fd()).into()
}

/// Bytes that are copied between two looks at the observer.
const PORTION: u64 = 64 << 20;

fn copy_into(folder: &Path, from: &Path, observer: &dyn Observer) -> Result<File, LabError> {
    let mut copy = tempfile::tempfile_in(folder).map_err(LabError::Saved)?;
    let mut from = File::open(from).map_err(LabError::Saved)?;
    loop {
        observer.check()?;
        let copied = io::copy(&mut from.by_ref().take(PORTION), &mut copy);
        if copied.map_err(LabError::Saved)? == 0 {
            return Ok(copy);
        }
    }
}

/// A copy on the disk, which can be dropped from the page cache.
fn copied_on_disk(folders: &Folders, from: &Path, name: &str) -> Result<Option<PathBuf>, LabError> {
    let Some((folder, _)) = &folders.disk else { return Ok(None) };
    let path = folder.path().join(name);
    let copied = fs::copy(from, &path).and_then(|_| File::open(&path)?.sync_all());
    copied.map_err(LabError::Saved)?;
    Ok(Some(path))
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
