//! Measures how long it takes until a device may use memory: it is populated, and the kernel pins its pages. Without a
//! GPU at hand, the device is an `io_uring` with registered buffers, for which the kernel pins pages as for a driver.
//!
//! `cargo run --release -p hugekit --example registration [MiB] [rounds]`
#![allow(unsafe_code, clippy::print_stdout)]

use std::ptr::{self, slice_from_raw_parts_mut};
use std::time::{Duration, Instant};

use anyhow::Result;
use hugekit::{Pool, PopulateOptions, SharedRegion, Threads};
use hugekit_testing::uring::Ring;

/// The most that one registered buffer may have.
const PIECE: usize = 1 << 30;

/// The time until the memory was populated and mapped, and until it was registered after that.
type Times = [Duration; 2];
type Way = fn(usize) -> Result<Times>;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mib: usize = args.next().map_or(Ok(2048), |mib| mib.parse())?;
    let rounds: usize = args.next().map_or(Ok(3), |rounds| rounds.parse())?;
    let bytes = mib << 20;
    let ways: [(&str, Way); 4] = [
        ("base pages, touched by all CPUs", |bytes| touched(bytes, libc::MADV_NOHUGEPAGE)),
        ("MADV_HUGEPAGE, touched by all CPUs", |bytes| touched(bytes, libc::MADV_HUGEPAGE)),
        ("a new pool's region", of_new_pool),
        ("a region of a pool that is there", of_pool),
    ];
    let mut times = ways.map(|_| Vec::new());
    for _ in 0..rounds {
        for ((_, way), times) in ways.iter().zip(&mut times) {
            times.push(way(bytes)?);
        }
    }
    println!("{mib} MiB on {}: populated + registered", Pool::builder(1 << 21).build()?.backing());
    for ((name, _), times) in ways.iter().zip(times) {
        let rounds: Vec<_> =
            times.iter().map(|[one, two]| format!("{one:.1?} + {two:.1?}")).collect();
        println!("  {name:<36} {}", rounds.join("   "));
    }
    Ok(())
}

/// Private memory, as `malloc` has it, of which each CPU touches a part.
fn touched(bytes: usize, advice: i32) -> Result<Times> {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice replaces none.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: advice for the new mapping, which changes no byte.
    unsafe { libc::madvise(start, bytes, advice) };
    let began = Instant::now();
    // SAFETY: mapped, zeroed and this function's own until the end.
    let memory = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), bytes) };
    let part = bytes.div_ceil(std::thread::available_parallelism()?.get());
    std::thread::scope(|scope| {
        for part in memory.chunks_mut(part) {
            scope.spawn(|| part.iter_mut().step_by(4096).for_each(|byte| *byte = 0));
        }
    });
    let populated = began.elapsed();
    let registered = registered(start.cast(), bytes)?;
    // SAFETY: this function's own mapping, which no reference is left to.
    unsafe { libc::munmap(start, bytes) };
    Ok([populated, registered])
}

fn of_new_pool(bytes: usize) -> Result<Times> {
    let began = Instant::now();
    let region = mapped(&Pool::builder(bytes).build()?, bytes)?;
    Ok([began.elapsed(), registered(region.as_ptr(), bytes)?])
}

fn of_pool(bytes: usize) -> Result<Times> {
    let pool = Pool::builder(bytes).build()?;
    let began = Instant::now();
    let region = mapped(&pool, bytes)?;
    Ok([began.elapsed(), registered(region.as_ptr(), bytes)?])
}

fn mapped(pool: &Pool, bytes: usize) -> Result<SharedRegion> {
    let region = pool.region(bytes)?.share();
    let options = PopulateOptions::new().threads(Threads::Auto);
    region.populate_with(0..bytes, &options)?;
    Ok(region)
}

/// The time in which the kernel pins all of it, in pieces.
fn registered(start: *mut u8, bytes: usize) -> Result<Duration> {
    let piece = |at| slice_from_raw_parts_mut(start.wrapping_add(at), PIECE.min(bytes - at));
    let pieces: Vec<_> = (0..bytes).step_by(PIECE).map(piece).collect();
    let ring = Ring::new()?;
    let began = Instant::now();
    ring.register(&pieces)?;
    let registered = began.elapsed();
    ring.unregister()?;
    Ok(registered)
}
