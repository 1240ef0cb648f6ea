//! Epochs of anonymous memory that the kernel writes to and swaps out: as `docs/snapshot.md` says.
#![allow(unsafe_code)]

use hugekit_testing::states;
use hugekit_testing::swap;
use hugekit_testing::uring;

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::{slice_from_raw_parts, slice_from_raw_parts_mut};
use std::slice;

use hugekit::fault::FaultMode;
use hugekit::snapshot::{Changes, Epoch};
use hugekit::{HUGE_PAGE_BYTES as HUGE, Snapshot, SnapshotError};
use hugekit_testing::trials::skipped;
use swap::Swap;
use uring::Ring;

const LEN: usize = 8 * HUGE;
const PAGE: usize = 4096;

/// Memory with an image of its last state.
struct Scene {
    memory: *mut u8,
    image: Vec<u8>,
    fault_mode: FaultMode,
}

impl Scene {
    fn new(fault_mode: FaultMode) -> Self {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice replaces none.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), LEN, access, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: just mapped, as long.
        unsafe { memory.cast::<u8>().write_bytes(1, LEN) };
        Self { memory: memory.cast(), image: vec![0; LEN], fault_mode }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.memory.wrapping_add(offset)
    }

    /// While no epoch begins, and only this thread and the kernel write.
    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as `self` lives; what the kernel writes is written when its call returns.
        unsafe { slice::from_raw_parts(self.memory, LEN) }
    }

    fn first(&self) -> Result<Changes, SnapshotError> {
        let builder = Snapshot::builder().fault_mode(self.fault_mode).max_cow_bytes(LEN);
        // SAFETY: the memory outlives its epochs, no thread blocks SIGBUS, and system calls write where it was announced.
        unsafe { builder.first_epoch(slice_from_raw_parts(self.memory, LEN)) }
    }

    fn since(&self, epoch: Epoch) -> Changes {
        let builder = Snapshot::builder().fault_mode(self.fault_mode).max_cow_bytes(LEN);
        // SAFETY: the memory outlives its epochs, no thread blocks SIGBUS, and system calls write where it was
        // announced.
        unsafe { builder.since(epoch) }.unwrap()
    }

    fn saved(&mut self, changes: Changes) -> Epoch {
        states::saved(changes, &mut self.image)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // SAFETY: the scene's own mapping, which no epoch is of any more.
        unsafe { libc::munmap(self.memory.cast(), LEN) };
    }
}

/// Calls `check` with memory that was saved, in each way that writes can be served.
fn each(check: impl Fn(&mut Scene, Epoch)) {
    for fault_mode in [FaultMode::InPlace, FaultMode::Threaded { threads: 1 }] {
        let mut scene = Scene::new(fault_mode);
        match scene.first() {
            Ok(changes) => {
                let epoch = scene.saved(changes);
                check(&mut scene, epoch);
            }
            Err(error) => skipped(format_args!("{fault_mode:?}: {error}")),
        }
    }
}

/// A file of bytes that are not in the memory.
fn source() -> tempfile::NamedTempFile {
    let mut source = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    source.write_all(&[7; 4 * PAGE]).unwrap();
    source.as_file().sync_all().unwrap();
    source
}

/// In place, the kernel may write where that was announced.
fn announced(scene: &Scene, epoch: &Epoch, range: Range<usize>) {
    if scene.fault_mode == FaultMode::InPlace {
        epoch.prepare_write(range).unwrap();
    }
}

#[test]
fn writes_of_o_direct_and_io_uring_are_changes() {
    let source = source();
    let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(source.path());
    each(|scene, epoch| {
        let mut expected = Vec::new();
        if let Ok(direct) = &direct {
            announced(scene, &epoch, HUGE..HUGE + PAGE);
            // SAFETY: within the memory.
            let read = unsafe { libc::pread(direct.as_raw_fd(), scene.at(HUGE).cast(), PAGE, 0) };
            assert_eq!(read, PAGE as isize, "{}", io::Error::last_os_error());
            expected.push(HUGE);
        }
        if let Ok(mut ring) = Ring::new() {
            announced(scene, &epoch, 5 * HUGE..5 * HUGE + PAGE);
            let file = source.reopen().unwrap();
            let read = ring.read(file.as_fd(), scene.at(5 * HUGE), PAGE);
            assert_eq!(read, PAGE as i32);
            expected.push(5 * HUGE);
        }
        let changes = scene.since(epoch);
        assert!(expected.iter().all(|at| changes.changed().any(|range| range.contains(at))));
        drop(scene.saved(changes));
        assert!(scene.image == scene.bytes());
        assert!(expected.iter().all(|&at| scene.image[at] == 7));
    });
}

/// The kernel writes through pages that it has held since before the epoch: no program can see that.
#[test]
fn writes_through_fixed_buffers_are_not_seen() {
    let source = source();
    each(|scene, epoch| {
        drop(epoch);
        let Ok(mut ring) = Ring::new() else { return skipped("no io_uring") };
        if let Err(error) = ring.register(&[slice_from_raw_parts_mut(scene.at(2 * HUGE), PAGE)]) {
            return skipped(error);
        }
        let changes = scene.first().unwrap();
        let epoch = scene.saved(changes);
        let file = source.reopen().unwrap();
        let read = ring.read_fixed(file.as_fd(), 0, scene.at(2 * HUGE), PAGE);
        assert_eq!(read, PAGE as i32);
        assert_eq!(scene.bytes()[2 * HUGE], 7);
        let changes = scene.since(epoch);
        assert_eq!(changes.changed().count(), 0);
        drop(scene.saved(changes));
        assert_eq!(scene.image[2 * HUGE], 1, "docs/snapshot.md says so");
    });
}

#[test]
fn memory_that_is_swapped_out_is_as_it_was_and_its_writes_are_changes() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root makes a swap file");
    }
    let swap = match Swap::new() {
        Ok(swap) => swap,
        Err(error) => return skipped(error),
    };
    each(|scene, mut epoch| {
        for round in 2..6_u8 {
            // SAFETY: changes no byte.
            unsafe { libc::madvise(scene.memory.cast(), LEN, libc::MADV_PAGEOUT) };
            assert!(swap.used() > 0, "nothing was swapped out");
            let at = usize::from(round) * HUGE + usize::from(round);
            // SAFETY: within the memory.
            unsafe { scene.at(at).write(round) };
            let changes = scene.since(epoch);
            // While it is saved, too.
            // SAFETY: changes no byte.
            unsafe { libc::madvise(scene.memory.cast(), LEN, libc::MADV_PAGEOUT) };
            assert!(changes.changed().any(|range| range.contains(&at)));
            let total: usize = changes.changed().map(|range| range.len()).sum();
            assert!(total <= 3 * HUGE, "swapping is no write: {total}");
            epoch = scene.saved(changes);
            assert!(scene.image == scene.bytes());
        }
    });
}
