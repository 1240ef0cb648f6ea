//! The first call of a process that has nothing left: no mapping, so that neither `mmap` nor `brk` gives the allocator
//! anything, or no address space, or no data; and nothing in the allocator's own lists. Each operation works, or says
//! that memory is short, and works when the shortage is over. In children of their own, whose parent made no call.
#![allow(unsafe_code)]

use hugekit_testing::child;
use hugekit_testing::memory;
use hugekit_testing::permitted;

use std::convert::Infallible;
use std::path::Path;
use std::ptr;
use std::time::Duration;

use child::in_a_child;
use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing};
use hugekit::region::ForkError;
use hugekit::snapshot::{Reserve, View};
use hugekit::{
    ClearError, ClearOptions, CopyError, CopyOptions, ErrorKind, HUGE_PAGE_BYTES as HUGE, Pool,
    PoolError, PopulateError, PopulateOptions, Region, RegionError, Snapshot, SnapshotError,
    Threads,
};
use hugekit_bulk::parallel::{Job, JobError};
use hugekit_lease::{Lease, LeaseError, MemoryFile};
use libtest_mimic::{Arguments, Trial};
use memory::Memory;

const PAGE: usize = 4096;
const LEN: usize = 4 * HUGE;

/// What a process has none of.
#[derive(Clone, Copy, Debug)]
enum Lack {
    Mappings,
    Addresses,
    Data,
}

/// Mappings, addresses or data of this process, all used up. The drop frees them.
struct Exhaustion {
    lack: Lack,
    /// The last page of those that were mapped; each holds the address of the one before.
    pages: *mut *mut libc::c_void,
    /// As many blocks of the allocator.
    blocks: *mut *mut libc::c_void,
}

impl Exhaustion {
    fn of(lack: Lack) -> Self {
        let mut shortage = Self { lack, pages: ptr::null_mut(), blocks: ptr::null_mut() };
        loop {
            match lack {
                Lack::Mappings => shortage.map_all(),
                // Not 0: the kernel takes that for none where Valgrind might have asked.
                Lack::Addresses => limit(libc::RLIMIT_AS, 1),
                Lack::Data => limit(libc::RLIMIT_DATA, 1),
            }
            if shortage.allocate_all() {
                return shortage;
            }
            // A thread that ended meanwhile has left a mapping, and `brk` works as long as there is one.
        }
    }

    /// Two pages at a time, of which the first may be written and the second not, so that none joins its neighbours.
    fn map_all(&mut self) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        for index in 0.. {
            let rights =
                if index % 2 == 0 { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
            // SAFETY: a new mapping, of the test's own.
            let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, rights, flags, -1, 0) };
            if page == libc::MAP_FAILED {
                assert!(index > 1000 || !self.pages.is_null(), "the limit is not that of mappings");
                return;
            }
            if index % 2 == 0 {
                // SAFETY: a page that can be written.
                unsafe { page.cast::<*mut libc::c_void>().write(self.pages.cast()) };
                self.pages = page.cast();
            }
        }
    }

    /// The largest first, until the smallest is refused. False if the allocator is given new memory again and again.
    fn allocate_all(&mut self) -> bool {
        let (mut size, mut blocks) = (1 << 20, 0);
        while size >= 16 {
            if blocks > 64 && size == 1 << 20 {
                return false;
            }
            // SAFETY: a block has room for one address.
            unsafe {
                let block = libc::malloc(size).cast::<*mut libc::c_void>();
                if block.is_null() {
                    size /= 2;
                    continue;
                }
                block.write(self.blocks.cast());
                self.blocks = block;
            }
            blocks += 1;
        }
        true
    }
}

impl Drop for Exhaustion {
    fn drop(&mut self) {
        match self.lack {
            Lack::Mappings => {}
            Lack::Addresses => limit(libc::RLIMIT_AS, libc::RLIM_INFINITY),
            Lack::Data => limit(libc::RLIMIT_DATA, libc::RLIM_INFINITY),
        }
        // SAFETY: blocks and pages of the lists above, each once, and read before it is given back.
        unsafe {
            while !self.pages.is_null() {
                let next = self.pages.read().cast();
                libc::munmap(self.pages.cast(), PAGE);
                self.pages = next;
            }
            while !self.blocks.is_null() {
                let next = self.blocks.read().cast();
                libc::free(self.blocks.cast());
                self.blocks = next;
            }
        }
    }
}

fn limit(resource: libc::__rlimit_resource_t, soft: libc::rlim_t) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one structure, read and written.
    unsafe {
        assert_eq!(libc::getrlimit(resource, &raw mut limit), 0);
        limit.rlim_cur = soft.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(resource, &raw const limit), 0);
    }
}

/// What worked; none if memory is short. Ends the process with the line of the call where it is anything else, without
/// an allocation: a message would need some.
#[track_caller]
fn short<T, E>(result: Result<T, E>, kind: impl FnOnce(&E) -> ErrorKind) -> Option<T> {
    let line = std::panic::Location::caller().line();
    match result {
        Ok(value) => Some(value),
        Err(error) if kind(&error) == ErrorKind::NoMemory => None,
        // SAFETY: no precondition.
        Err(_) => unsafe { libc::_exit(i32::try_from(line % 199).unwrap_or(0) + 1) },
    }
}

/// Memory of the program's own, from before the shortage.
struct Own {
    first: Memory,
    second: Memory,
    bytes: Vec<u8>,
}

impl Own {
    fn new() -> Self {
        let filled = || Memory::filled(LEN, false, 7);
        Self { first: filled(), second: filled(), bytes: vec![1; LEN] }
    }
}

type Call = fn(&mut Own);

/// Only where threads may serve faults.
const BY_A_THREAD: &str = "snapshot_by_a_thread";

/// Operations that a program can begin with.
const FIRST: [(&str, Call); 13] = [
    ("pool", |_| drop(short(Pool::builder(LEN).build(), PoolError::kind))),
    ("inherited", |_| drop(short(Pool::builder(LEN).build_inherited(), PoolError::kind))),
    ("snapshot", |own| {
        // SAFETY: no thread blocks SIGBUS, and no system call writes there.
        let made = unsafe { Snapshot::of_anonymous(own.first.range()) };
        if let Some(snapshot) = short(made, SnapshotError::kind) {
            short(snapshot.copy_to(&mut own.bytes), SnapshotError::kind);
        }
    }),
    (BY_A_THREAD, |own| {
        let builder = Snapshot::builder().fault_mode(FaultMode::Threaded { threads: 1 });
        // SAFETY: no thread blocks SIGBUS, and no system call writes there.
        let made = unsafe { builder.in_background(true).of_anonymous(own.first.range()) };
        drop(short(made, SnapshotError::kind));
    }),
    ("several", |own| {
        let ranges = [own.first.range(), own.second.range()];
        // SAFETY: no thread blocks SIGBUS, and no system call writes there.
        drop(short(unsafe { Snapshot::builder().take_many(&ranges) }, SnapshotError::kind));
    }),
    ("epoch", |own| {
        // SAFETY: no thread blocks SIGBUS, and no system call writes there.
        let changes = unsafe { Snapshot::builder().first_epoch(own.first.range()) };
        let written = changes.and_then(|changes| changes.deliver(|_, _| Ok(())));
        drop(short(written, SnapshotError::kind));
    }),
    ("reserve", |_| drop(short(Reserve::new(HUGE), SnapshotError::kind))),
    ("clear", |own| {
        let clear = ClearOptions::new().threads(Threads::Exactly(2));
        short(clear.run(&mut own.bytes), ClearError::kind).unwrap();
        assert!(own.bytes.iter().all(|&byte| byte == 0));
    }),
    ("copy", |own| {
        let (to, from) = own.bytes.split_at_mut(LEN / 2);
        short(CopyOptions::new().threads(Threads::Exactly(2)).run(to, from), CopyError::kind)
            .unwrap();
    }),
    ("populate", |own| {
        let populate = PopulateOptions::new().threads(Threads::Exactly(2));
        let start = own.first.start().expose_provenance();
        let populated = populate.run_range(start..start + LEN);
        short(populated, JobError::<PopulateError>::kind).unwrap();
    }),
    ("job", |_| {
        Job::new(LEN)
            .threads(Threads::Exactly(2))
            .run(|_| Ok::<(), Infallible>(()))
            .map(drop)
            .unwrap();
    }),
    ("lease", |_| {
        // Where the call is made at all, no broker is there.
        let asked = Lease::ask(Path::new("/nonexistent/socket"), LEN, Duration::ZERO);
        assert!(matches!(asked, Err(LeaseError::NoBroker { .. } | LeaseError::Heap(_))));
    }),
    ("memory_file", |_| {
        drop(short(MemoryFile::create("test", LEN, Backing::Base), LeaseError::kind));
    }),
];

/// Operations on a pool and a snapshot that were there before, all that can fail, and the ends of all.
fn the_rest(lack: Lack) {
    let own = Own::new();
    let pool = Pool::builder(8 * LEN).backing(Backing::Base);
    let pool = pool.populate_on_allocation(true).build().unwrap();
    let mut regions: [Region; 3] = std::array::from_fn(|_| pool.region(LEN).unwrap());
    let mut bytes = vec![0; LEN];
    // SAFETY: no thread blocks SIGBUS, and no system call writes there.
    let of_memory = unsafe { Snapshot::of_anonymous(own.first.range()) };
    let forked = regions[0].fork();
    let shortage = Exhaustion::of(lack);
    drop(short(pool.region(LEN), PoolError::kind));
    drop(short(pool.region_builder(LEN).clearing(Clearing::OnFault).build(), PoolError::kind));
    short(pool.scrub(), PoolError::kind);
    drop(short(regions[1].fork(), ForkError::kind));
    drop(short(Snapshot::of_region(&regions[1]), SnapshotError::kind));
    drop(short(hugekit::snapshot::Changes::first(&regions[1]), SnapshotError::kind));
    short(regions[1].prepare_write(0..LEN), RegionError::kind);
    short(regions[1].populate(0..LEN), RegionError::kind);
    short(regions[1].release(0..LEN), RegionError::kind);
    short(regions[1].truncate(HUGE), RegionError::kind);
    let [first, second, third] = regions;
    drop(first);
    short(second.retire(), RegionError::kind);
    let shared = third.share();
    drop(short(shared.pin(0..PAGE), RegionError::kind));
    drop(shared);
    drop(forked);
    if let Ok(snapshot) = of_memory {
        short(snapshot.read_at(0, &mut bytes), SnapshotError::kind);
        short(snapshot.prepare_write(0..PAGE), SnapshotError::kind);
        if let Some(view) = short(View::of(&snapshot), SnapshotError::kind) {
            short(view.bytes(0..100).map(drop), SnapshotError::kind);
        }
        short(snapshot.copy_to(&mut bytes), SnapshotError::kind);
    }
    drop(shortage);
    pool.region(LEN).unwrap();
}

fn each_works_or_says_what_is_short(lack: Lack) {
    let by_threads = permitted::lacking_for_threads().is_none();
    for (name, call) in FIRST {
        if name == BY_A_THREAD && !by_threads {
            continue;
        }
        let code = in_a_child(|| {
            let mut own = Own::new();
            let shortage = Exhaustion::of(lack);
            call(&mut own);
            drop(shortage);
            call(&mut own);
            0
        });
        assert_eq!(code, 0, "{name}, no {lack:?}");
    }
    let code = in_a_child(|| {
        the_rest(lack);
        0
    });
    assert_eq!(code, 0, "the rest, no {lack:?}");
}

fn main() {
    let lacks = [
        ("first_call_without_a_mapping_works_or_says_what_is_short", Lack::Mappings),
        ("first_call_without_an_address_works_or_says_what_is_short", Lack::Addresses),
        ("first_call_without_data_works_or_says_what_is_short", Lack::Data),
    ];
    let trials = lacks.map(|(name, lack)| {
        let run = move || {
            each_works_or_says_what_is_short(lack);
            Ok(())
        };
        Trial::test(name, run)
    });
    // On the main thread, whose heap grows by `brk`. The allocator maps a new heap for any other thread whenever one is
    // used up, with the mapping that the old one has just given back: there is no end to it.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials.into()).exit();
}
