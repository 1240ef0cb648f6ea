//! Writers at the same time, each of which copies pages and then stores to them.

use std::sync::RwLock;
use std::time::{Duration, Instant};

use crate::measure::LabError;
use crate::measure::workloads::threads::spawn;
use hugekit_machine::size::GIB;
use hugekit_sys::thread::cpu_time;

use super::FOLIO;
use super::antagonist::{Antagonists, read_lines};
use super::case::{Cache, OrderCase};
use super::copier::Copier;
use crate::experiments::clear::store_words;

/// Folios that each writer copies for one sample.
const FOLIOS: usize = 8;

/// The work of writers, and the memory that is read meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyWork<'a> {
    pub(super) copier: Copier,
    pub(super) case: OrderCase,
    /// Bytes of each folio that are stored to.
    pub(super) used: usize,
    /// Read by each writer between copy and use, if the cache is scarce.
    pub(super) between: &'a [u8],
    /// Read by antagonists all the time, if it is contended.
    pub(super) beside: &'a [u8],
    pub(super) antagonists: usize,
}

/// The memory of a writer, and its place in that memory.
pub(super) struct CopyWriter<'a> {
    origin: &'a [u8],
    copy: &'a mut [u8],
    next: usize,
}

/// Time that passed for copies and stores, and the CPU time of each.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    elapsed: Duration,
    copies: Duration,
    stores: Duration,
}

/// The times of all writers of a sample.
#[derive(Debug)]
pub(super) struct Round {
    took: Vec<Took>,
    /// Bytes that antagonists have read meanwhile.
    read: usize,
}

/// The times and events of a folio, on average.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerFolio {
    /// Microseconds of CPU time of the copy, and of the stores.
    pub(super) cpu: [f64; 2],
    /// Bytes that antagonists read.
    pub(super) read: f64,
}

impl Round {
    /// GiB/s of all writers together.
    pub(super) fn rate(&self) -> f64 {
        let rate = |one: &Took| (FOLIOS * FOLIO) as f64 / GIB as f64 / one.elapsed.as_secs_f64();
        self.took.iter().map(rate).sum()
    }

    pub(super) fn per_folio(&self) -> PerFolio {
        let folios = (FOLIOS * self.took.len()) as f64;
        let of = |part: fn(&Took) -> Duration| {
            self.took.iter().map(part).sum::<Duration>().as_secs_f64() * 1e6 / folios
        };
        PerFolio {
            cpu: [of(|one| one.copies), of(|one| one.stores)],
            read: self.read as f64 / folios,
        }
    }
}

impl<'a> CopyWriter<'a> {
    /// Equal parts of this memory for all of them, each half origin and half copy, behind the bytes that are read
    /// meanwhile.
    pub(super) fn several(
        memory: &'a mut [u8],
        writers: usize,
        reads: usize,
    ) -> (&'a [u8], Vec<Self>) {
        let (other, memory) = memory.split_at_mut(reads);
        let each = memory.len() / writers / 2 / FOLIO * FOLIO;
        let parts = memory.chunks_exact_mut(2 * each).take(writers);
        let writer = |part: &'a mut [u8]| {
            let (origin, copy) = part.split_at_mut(each);
            Self { origin, copy, next: 0 }
        };
        (other, parts.map(writer).collect())
    }

    /// Copies and uses the next pages.
    fn work(&mut self, sample: CopyWork<'_>) -> Took {
        let (CopyWork { copier, case, .. }, mut took) = (sample, Took::default());
        for count in 0..FOLIOS {
            let at = self.next * FOLIO;
            self.next = (self.next + 1) % (self.copy.len() / FOLIO);
            let (dst, src) = (&mut self.copy[at..][..FOLIO], &self.origin[at..][..FOLIO]);
            let target = case.target(count);
            let copy = timed(|| copier.copy(case.method, dst, src, target));
            if case.cache == Cache::Scarce {
                read_lines(sample.between);
            }
            let stores = timed(|| store_from(dst, target, sample.used));
            took.elapsed += copy.0 + stores.0;
            took.copies += copy.1;
            took.stores += stores.1;
        }
        took
    }
}

/// Time that passed, and CPU time.
fn timed(work: impl FnOnce()) -> (Duration, Duration) {
    let (cpu, start) = (cpu_time(), Instant::now());
    work();
    let elapsed = start.elapsed();
    (elapsed, cpu_time() - cpu)
}

/// Stores to every word of this many bytes, from `start` on and round the end.
fn store_from(folio: &mut [u8], start: usize, bytes: usize) {
    let before_the_end = bytes.min(folio.len() - start);
    store_words(&mut folio[start..][..before_the_end]);
    store_words(&mut folio[..bytes - before_the_end]);
}

/// All writers at once.
pub(super) fn together(
    writers: &mut [CopyWriter<'_>],
    sample: CopyWork<'_>,
) -> Result<Round, LabError> {
    let (gate, antagonists) = (&RwLock::new(()), &Antagonists::default());
    let count = if sample.case.cache == Cache::Contended { sample.antagonists } else { 0 };
    std::thread::scope(|scope| {
        let _ending = antagonists.start(scope, count, sample.beside)?;
        let closed = gate.write();
        let started = writers.iter_mut().map(|writer| {
            spawn(scope, move || {
                drop(gate.read());
                writer.work(sample)
            })
        });
        let started: Result<Vec<_>, LabError> = started.collect();
        let before = antagonists.read();
        // Those that were started are not kept waiting, whether all were or not.
        drop(closed);
        let took = started?.into_iter().map(|thread| thread.join().expect("a writer")).collect();
        Ok(Round { took, read: antagonists.read() - before })
    })
}

#[cfg(test)]
mod tests {
    use super::super::copier::CONVERGING;
    use super::*;

    #[test]
    fn what_is_used_goes_round_the_end_and_no_further() {
        let mut folio = vec![0xff; 4096];
        store_from(&mut folio, 4000, 192);
        assert_eq!(folio.iter().filter(|&&byte| byte == 0xff).count(), 4096 - 192);
        assert_eq!([95, 96, 3999, 4000].map(|at| folio[at] == 0xff), [false, true, true, false]);
    }

    #[test]
    fn writers_copy_and_use_memory_of_their_own() {
        for cache in [Cache::AsItIs, Cache::Scarce, Cache::Contended] {
            let mut memory = vec![7; 2 * FOLIO + 4096 + 4 * FOLIO];
            let (other, mut writers) = CopyWriter::several(&mut memory, 3, 4096);
            assert_eq!((writers.len(), other.len()), (3, 4096));
            let case = OrderCase { method: CONVERGING, is_anywhere: false, cache };
            let (copier, antagonists) = (Copier::new(), 1);
            let (between, beside) = (other, other);
            let sample = CopyWork { copier, case, used: 64, between, beside, antagonists };
            let round = together(&mut writers, sample).unwrap();
            let zero =
                |one: &Took| [one.elapsed, one.copies, one.stores].map(|time| time.is_zero());
            assert!(round.took.iter().all(|one| zero(one) == [false; 3]), "{round:?}");
            // On a busy machine, antagonists may have no CPU while writers work.
            let mut reads_later =
                || (0..1000).any(|_| together(&mut writers, sample).unwrap().read > 0);
            let reads = round.read > 0 || cache == Cache::Contended && reads_later();
            assert_eq!(reads, cache == Cache::Contended);
            for writer in &writers {
                assert_eq!(writer.copy.len(), FOLIO);
                assert!(writer.copy[64..].iter().all(|&byte| byte == 7));
                assert!(writer.copy[..64] != [7; 64]);
                assert!(writer.origin.iter().all(|&byte| byte == 7));
            }
        }
    }

    #[test]
    fn time_of_copies_is_not_that_of_stores() {
        let took = |copies, stores| Took {
            elapsed: Duration::from_micros(16),
            copies: Duration::from_micros(copies),
            stores: Duration::from_micros(stores),
        };
        let round = Round { took: vec![took(8, 80), took(24, 240)], read: 32 };
        let PerFolio { cpu, read } = round.per_folio();
        assert_eq!((cpu, read), ([2.0, 20.0], 2.0));
    }

    #[test]
    fn cpu_time_of_a_copy_is_not_counted_as_that_of_the_stores_to_one_line() {
        let mut memory = vec![7; 2 * FOLIO];
        let (other, mut writers) = CopyWriter::several(&mut memory, 1, 0);
        let case = OrderCase { method: CONVERGING, is_anywhere: false, cache: Cache::AsItIs };
        let sample = CopyWork {
            copier: Copier::new(),
            case,
            used: 64,
            between: other,
            beside: other,
            antagonists: 0,
        };
        let [copy, stores] = together(&mut writers, sample).unwrap().per_folio().cpu;
        assert!(stores < copy, "{stores} {copy}");
    }
}
