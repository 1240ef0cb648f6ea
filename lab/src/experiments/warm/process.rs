//! The process that is timed. It is new in each sample: it has mapped nothing of the file, and no page table of it is there.

#![allow(unsafe_code)]

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::measure::LabError;
use crate::measure::machine::cpus;
use crate::measure::machine::usage::{Usage, Who};
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use crate::measure::workloads::arena::huge_bytes_of;
use crate::measure::workloads::forking::process;
use crate::measure::workloads::outside::Outside;
use hugekit_machine::size::Size;
use hugekit_sys::thread::cpu_time;
use memmap2::Mmap;
use rustix::thread::sched_getcpu;

/// Loads of a sample, each from an address that the load before decides.
pub(super) const LOADS: usize = 1 << 20;

/// The way in which the process gets the bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// A shared read-only mapping, as of `numpy.memmap`, at an address of the kernel's choice and without advice.
    Map,
    /// `read(2)` into private memory on these pages.
    Read(Pages),
}

/// The measurements of one process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    /// From the mapping, or the first read, until a byte of each page was loaded.
    pub(super) touch: Duration,
    /// CPU time of that.
    pub(super) cpu: Duration,
    /// Page faults of that.
    pub(super) faults: u64,
    /// The time of [`LOADS`].
    pub(super) loads: Duration,
    /// Bytes that are mapped by huge pages after that.
    pub(super) huge: usize,
    /// The sum of all bytes that were loaded: the same for the same file.
    pub(super) sum: u64,
}

impl Access {
    /// Runs the process on a file of this many bytes.
    pub(super) fn sample(self, path: &Path, bytes: usize) -> Result<Figures, LabError> {
        let file = File::open(path).map_err(LabError::Saved)?;
        let told = Outside::new(Pages::Base, rustix::param::page_size())?;
        let tell = |figures: Figures| {
            let Figures { touch, cpu, faults, loads, huge, sum } = figures;
            let times = [touch, cpu, loads].map(|time| time.as_nanos() as u64);
            let values = times.into_iter().chain([faults, huge as u64, sum]);
            told.words().iter().zip(values).for_each(|(word, value)| word.store(value, Relaxed));
        };
        process(Size(bytes), || self.run(&file, bytes).map(tell).is_ok())?.wait()?;
        let word = |index: usize| told.words()[index].load(Relaxed);
        let time = |index| Duration::from_nanos(word(index));
        let (touch, cpu, loads) = (time(0), time(1), time(2));
        let (faults, huge, sum) = (word(3), word(4) as usize, word(5));
        Ok(Figures { touch, cpu, faults, loads, huge, sum })
    }

    /// All that the process does, on the CPU where it starts.
    fn run(self, file: &File, bytes: usize) -> io::Result<Figures> {
        cpus::run_on(&cpus::only(sched_getcpu())).map_err(io::Error::other)?;
        let began = (Instant::now(), cpu_time(), faults());
        match self {
            Self::Map => {
                // SAFETY: the lab has the file in a folder of its own, and nothing truncates it or writes to it now.
                let mapped = unsafe { Mmap::map(file) }?;
                Ok(Self::figures(&mapped[..bytes], began))
            }
            Self::Read(pages) => {
                let mut memory = Anonymous::new(pages, bytes).map_err(io::Error::other)?;
                file.read_exact_at(memory.bytes(), 0)?;
                Ok(Self::figures(memory.bytes(), began))
            }
        }
    }

    fn figures(bytes: &[u8], (since, cpu, before): (Instant, Duration, u64)) -> Figures {
        let touched = touch(bytes);
        let (touch, cpu, faults) = (since.elapsed(), cpu_time() - cpu, faults() - before);
        let since = Instant::now();
        let loaded = load(bytes);
        let loads = since.elapsed();
        let addresses = bytes.as_ptr_range();
        let huge = huge_bytes_of(&(addresses.start.addr()..addresses.end.addr())).unwrap_or(0);
        Figures { touch, cpu, faults, loads, huge, sum: touched.wrapping_add(loaded) }
    }
}

fn faults() -> u64 {
    let usage = Usage::of(Who::ThisThread);
    usage.minor_faults + usage.major_faults
}

/// Loads a byte of each page.
fn touch(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(rustix::param::page_size()).map(|byte| u64::from(*black_box(byte))).sum()
}

/// Loads words at random places. No load can begin before the one before it has ended.
fn load(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    let (mut state, mut sum) = (1_u64, 0_u64);
    for _ in 0..LOADS {
        let place = (u128::from(state) * words.len() as u128) >> 64;
        let word = u64::from_ne_bytes(words[place as usize]);
        sum = sum.wrapping_add(word);
        state = (state ^ word).wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
    }
    black_box(sum)
}

#[cfg(test)]
mod tests {
    use hugekit_machine::size::MIB;

    use super::*;

    #[test]
    fn each_process_loads_the_same_bytes_and_one_that_cannot_is_an_error() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        crate::experiments::warm::write(file.path(), 16 * MIB, 4096, &crate::Quiet).unwrap();
        let ways = [Access::Map, Access::Read(Pages::Base), Access::Read(Pages::Thp)];
        let figures = ways.map(|access| access.sample(file.path(), 16 * MIB).unwrap());
        for found in figures {
            assert_eq!(found.sum, figures[0].sum);
            assert!(found.touch > Duration::ZERO && found.loads > Duration::ZERO, "{found:?}");
        }
        // The kernel maps what is around a page, at most 64 KiB of it on usual machines; a copy has each page for itself.
        let pages = (16 * MIB / rustix::param::page_size()) as u64;
        assert!(figures[0].faults > 0 && figures[1].faults >= pages, "{figures:?}");
        assert!(figures[1].huge == 0 && figures[2].huge <= 16 * MIB, "{figures:?}");
        io::Write::write_all(&mut file, &[0; 4096]).unwrap();
        let other = Access::Map.sample(file.path(), 16 * MIB).unwrap();
        assert_ne!(other.sum, figures[0].sum);
        let missing = Access::Read(Pages::Base).sample(file.path(), 32 * MIB).unwrap_err();
        assert!(matches!(missing, LabError::Fork { .. }), "{missing}");
    }

    #[test]
    fn loads_reach_all_of_the_bytes() {
        let mut bytes = vec![0; MIB];
        fastrand::Rng::with_seed(1).fill(&mut bytes);
        let before = load(&bytes);
        for at in [0, MIB / 2, MIB - 8] {
            bytes[at] ^= 1;
            assert_ne!(load(&bytes), before);
            bytes[at] ^= 1;
        }
    }
}
