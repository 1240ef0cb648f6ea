//! Measures what a snapshot costs a writer at full speed: its longest stall and its rate, before and during.
//!
//! `cargo run --release -p hugekit --example snapshot_stall [GiB] [small] [base] [populate] [reserve] [all]
//! [write] [threaded] [background]`
#![allow(unsafe_code, clippy::print_stdout)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hugekit::fault::FaultMode;
use hugekit::snapshot::{Builder, Granule, Reserve};
use hugekit::{HUGE_PAGE_BYTES, Snapshot};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let gib: usize = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(1);
    let len = gib << 30;
    let memory = mapped(len, !has("base"));
    let copy = mapped(len, true);
    let reserve = has("reserve").then(|| Reserve::new(len).unwrap());
    for _ in 0..2 {
        let began = Instant::now();
        hugekit::copy(copy, memory).unwrap();
        println!("hugekit::copy of it: {:.2?}", began.elapsed());
        let began = Instant::now();
        copy.copy_from_slice(memory);
        println!("memcpy of it: {:.2?}", began.elapsed());
    }
    let range: *const [u8] = memory;
    // SAFETY: zeroed bytes are atomics; the memory stays.
    let words: &'static [AtomicU64] =
        unsafe { std::slice::from_raw_parts(memory.as_ptr().cast(), len / 8) };
    let writer = RandomWriter::default();
    std::thread::scope(|scope| {
        scope.spawn(|| writer.write(words));
        for _ in 0..5 {
            let idle = writer.watched(|| std::thread::sleep(Duration::from_millis(100)));
            println!("idle: {idle}");
            warm(len / 2);
            let mut made = Duration::ZERO;
            let mut stats = None;
            let during = writer.watched(|| {
                let mut builder = wished(has, len);
                if let Some(reserve) = &reserve {
                    builder = builder.reserve(reserve);
                }
                let began = Instant::now();
                // SAFETY: no thread blocks SIGBUS, and no system call writes there.
                let snapshot = unsafe { builder.of_anonymous(range) }.unwrap();
                made = began.elapsed();
                stats = Some(if has("write") {
                    snapshot.write_to(Past(copy)).unwrap()
                } else {
                    snapshot.copy_to(copy).unwrap()
                });
            });
            println!("snapshot: made in {made:.2?}; {during}\n  {:?}", stats.unwrap());
        }
        writer.stop.store(true, Ordering::Relaxed);
    });
}

/// What the arguments ask for, of a snapshot of so many bytes.
fn wished(has: impl Fn(&str) -> bool, len: usize) -> Builder {
    let threaded = FaultMode::Threaded { threads: 1 };
    Snapshot::builder()
        .fault_mode(if has("threaded") { threaded } else { FaultMode::InPlace })
        .in_background(has("background"))
        .granule(if has("small") { Granule::Small } else { Granule::Auto })
        .max_cow_bytes(if has("all") { len } else { len / 2 })
        .populate_copies(if has("populate") { len / 4 } else { 0 })
}

/// A thread that writes at random addresses at full speed, and its longest store.
#[derive(Default)]
struct RandomWriter {
    stop: AtomicBool,
    stores: AtomicU64,
    longest: AtomicU64,
}

impl RandomWriter {
    fn write(&self, words: &[AtomicU64]) {
        let mut state = 1_u64;
        let mut last = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let line = (state >> 33) as usize % (words.len() / 8) * 8;
            for word in &words[line..line + 8] {
                word.store(state, Ordering::Relaxed);
            }
            self.stores.fetch_add(1, Ordering::Relaxed);
            let now = Instant::now();
            self.longest.fetch_max((now - last).as_nanos() as u64, Ordering::Relaxed);
            last = now;
        }
    }

    /// How long something takes, and what the writer meets meanwhile.
    fn watched(&self, during: impl FnOnce()) -> String {
        self.longest.store(0, Ordering::Relaxed);
        let (before, began) = (self.stores.load(Ordering::Relaxed), Instant::now());
        during();
        let took = began.elapsed();
        let count = self.stores.load(Ordering::Relaxed) - before;
        let stall = Duration::from_nanos(self.longest.load(Ordering::Relaxed));
        let rate = count as f64 / took.as_secs_f64() / 1e6;
        format!("{took:.2?}, {rate:.2} M stores/s, longest {stall:.2?}")
    }
}

/// Memory that is written past the cache.
struct Past<'a>(&'a mut [u8]);

impl std::io::Write for Past<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let (now, later) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        hugekit::CopyOptions::new().reuse(hugekit::Reuse::None).run(now, bytes).unwrap();
        self.0 = later;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Fresh memory, every byte of it 1.
fn mapped(len: usize, huge: bool) -> &'static mut [u8] {
    // SAFETY: a fresh mapping, which stays.
    let bytes = unsafe {
        let mapped = libc::mmap(
            std::ptr::null_mut(),
            len + (HUGE_PAGE_BYTES),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        let start =
            mapped.cast::<u8>().map_addr(|address| address.next_multiple_of(HUGE_PAGE_BYTES));
        let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        assert_eq!(libc::madvise(start.cast(), len, advice), 0);
        std::slice::from_raw_parts_mut(start, len)
    };
    bytes.fill(1);
    bytes
}

/// Has the hypervisor back so much of the free memory: its own first fault would be measured otherwise.
fn warm(len: usize) {
    let memory = mapped(len, true);
    // SAFETY: just mapped, and no thread uses it any more.
    unsafe { libc::munmap(memory.as_mut_ptr().cast(), len) };
}
