//! Epochs of regions under writers of every kind at once: each state that is saved while they go on is, byte by byte, what
//! was there at its moment.
//!
//! Writers stop only while a moment is taken, because what was there is copied then. `HUGEKIT_EPOCH_RUNS` says how many
//! runs there are on each backing, fault mode and granule; each has 20 states.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::region::ForkBuilder;
use hugekit::snapshot::Changes;
use hugekit::{ClearOptions, CopyOptions, SharedRegion};
use hugekit_testing::racing::Stops;
use hugekit_testing::states::saved;

use crate::backings::{Check, FOLIOS, builder};
use crate::fixture::{fault_modes, granules};

const RUNS: usize = 1;
const STATES: usize = 20;
const WRITERS: usize = 3;

/// Every writer has each third of these, so that all write to each granule, and none to another's bytes. As `O_DIRECT` asks
/// for.
const STRIPE: usize = 4096;

fn runs() -> usize {
    let said = std::env::var("HUGEKIT_EPOCH_RUNS");
    said.ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS)
}

/// A region with what writes to it.
struct Scene {
    region: SharedRegion,
    granule: usize,
    fault_mode: FaultMode,
    /// Random bytes, twice: the second time read past the page cache, where that is possible.
    source: File,
    direct: Option<File>,
}

impl Scene {
    fn new(region: SharedRegion, granule: usize, fault_mode: FaultMode) -> Self {
        let mut source = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        let bytes: Vec<u8> =
            std::iter::repeat_with(|| fastrand::u8(1..)).take(16 * STRIPE).collect();
        source.write_all(&bytes).unwrap();
        let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(source.path());
        let (source, direct) = (source.reopen().unwrap(), direct.ok());
        Self { region, granule, fault_mode, source, direct }
    }

    fn fork_builder(&self) -> ForkBuilder<'_> {
        self.region.fork_builder().granule(self.granule).fault_mode(self.fault_mode)
    }

    /// Writes to one stripe, in one of all ways.
    fn write(&self, writer: usize, random: &mut fastrand::Rng) {
        let stripes = self.region.len() / STRIPE / WRITERS;
        let at = (random.usize(..stripes) * WRITERS + writer) * STRIPE;
        let (start, len) = (random.usize(..STRIPE), random.usize(1..=STRIPE));
        let part = at + start..at + (start + len).min(STRIPE);
        let address = self.region.as_ptr().wrapping_add(part.start);
        let value = random.u8(..);
        match random.u8(..12) {
            0 | 1 => self.region.words()[part.start / 8].store(random.u64(..), Ordering::Relaxed),
            2 => drop(self.region.words()[part.start / 8].fetch_xor(1, Ordering::Relaxed)),
            // SAFETY: of all that runs, this thread alone writes there, and what is read meanwhile is not compared.
            3 => unsafe { address.write_bytes(value, part.len()) },
            4 => self.region.write_at(part.start, &vec![value; part.len()]).unwrap(),
            // SAFETY: of all that runs, this thread alone writes there, and what is read meanwhile is not compared.
            5 => drop(unsafe { ClearOptions::new().run_raw(address, part.len()) }.unwrap()),
            6 => {
                let from = vec![value; part.len()];
                // SAFETY: of all that runs, this thread alone writes there; `from` is as long, and elsewhere.
                unsafe { CopyOptions::new().run_raw(address, from.as_ptr(), part.len()) }.unwrap();
            }
            7 => self.by_the_kernel(&self.source, at, random),
            8 => self.by_the_kernel(self.direct.as_ref().unwrap_or(&self.source), at, random),
            9 => self.by_process_vm_writev(part.start, &vec![value; part.len()]),
            10 => {
                let pinned = self.region.pin(part.clone()).unwrap();
                // SAFETY: of all that runs, this thread alone writes there, and what is read meanwhile is not
                // compared.
                unsafe { address.write_bytes(value, part.len()) };
                drop(pinned);
            }
            // There is room for one at a time.
            _ if writer == 0 => drop(self.fork_builder().build().unwrap()),
            _ => thread::yield_now(),
        }
    }

    /// Has a read(2) write a stripe.
    fn by_the_kernel(&self, from: &File, at: usize, random: &mut fastrand::Rng) {
        let offset = (random.usize(..16) * STRIPE) as i64;
        let address = self.region.as_ptr().wrapping_add(at);
        self.until_written(at, STRIPE, || {
            // SAFETY: the stripe lies within the region, and of all that runs, this thread alone writes there.
            unsafe { libc::pread(from.as_raw_fd(), address.cast(), STRIPE, offset) }
        });
    }

    /// Has the kernel write as a debugger does.
    fn by_process_vm_writev(&self, at: usize, bytes: &[u8]) {
        let base = bytes.as_ptr().cast_mut().cast();
        let local = libc::iovec { iov_base: base, iov_len: bytes.len() };
        let address = self.region.as_ptr().wrapping_add(at);
        let remote = libc::iovec { iov_base: address.cast(), iov_len: bytes.len() };
        self.until_written(at, bytes.len(), || {
            // SAFETY: the bytes lie within the region, and of all that runs, this thread alone writes there. The call
            // only reads what is local.
            unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) }
        });
    }

    /// Another writer's fork may hold the bytes back again before the kernel writes them, which is EFAULT.
    fn until_written(&self, at: usize, len: usize, call: impl Fn() -> isize) {
        for _ in 0..10_000 {
            self.region.prepare_write(at..at + len).unwrap();
            let written = call();
            let error = io::Error::last_os_error();
            if written == len as isize {
                return;
            }
            assert!(written >= 0 || error.raw_os_error() == Some(libc::EFAULT), "{error}");
        }
        panic!("the kernel was never let write");
    }

    /// While no thread writes.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.region.len()];
        self.region.read_at(0, &mut bytes).unwrap();
        bytes
    }
}

/// States one after the other, each compared with what was there.
fn follow(scene: &Scene, seed: u64) {
    let (gate, stop) = (RwLock::new(()), AtomicBool::new(false));
    let write = |writer: usize| {
        let mut random = fastrand::Rng::with_seed(seed * 31 + writer as u64);
        while !stop.load(Ordering::Relaxed) {
            let _open = gate.read().unwrap();
            scene.write(writer, &mut random);
        }
    };
    thread::scope(|scope| {
        let _end = Stops(&stop);
        (0..WRITERS).for_each(|writer| drop(scope.spawn(move || write(writer))));
        let (mut image, mut epoch) = (vec![0xa5; scene.region.len()], None);
        for state in 0..STATES {
            let (changes, expected) = {
                let _shut = gate.write().unwrap();
                let changes = match epoch.take() {
                    Some(epoch) => Changes::since(&scene.region, epoch).unwrap(),
                    None => Changes::first(scene.fork_builder()).unwrap(),
                };
                (changes, scene.bytes())
            };
            epoch = Some(saved(changes, &mut image));
            if image != expected {
                let at = (0..image.len()).find(|&at| image[at] != expected[at]);
                panic!("seed {seed}, state {state}: byte {at:?} is another");
            }
        }
    });
}

fn epochs_under_every_kind_of_writer_are_of_one_moment(backing: Backing) {
    for run in 0..runs() {
        let seed = fastrand::u64(..1 << 32) + run as u64;
        for fault_mode in fault_modes() {
            for granule in granules(backing) {
                let len = FOLIOS / 2 * backing.page_size().max(64 << 10);
                // Forks of writers need folios, too.
                let folios = 4 * len / backing.page_size();
                let pool = builder(backing, folios).scrub_threads(0).build().unwrap();
                let region = pool.region(len).unwrap();
                let scene = Scene::new(region.share(), granule, fault_mode);
                follow(&scene, seed);
            }
        }
    }
}

pub(crate) const CHECKS: &[Check] =
    hugekit_testing::checks![epochs_under_every_kind_of_writer_are_of_one_moment,];
