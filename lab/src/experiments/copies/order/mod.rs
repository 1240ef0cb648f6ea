//! Idea 2, the order of copying: a huge page is copied by one of four methods, and then used from the byte
//! on that asked for it.
//!
//! Writers go through memory of their own as the children of anon-cow-seq (2018) did, but no fault is
//! involved: each calls for the copy of a huge page where the kernel's fault would have made it, and then
//! stores to every word. All methods but the last use the same string instruction, so that the order is all
//! that differs. Copies and stores are timed apart: the published user time is that of the stores alone, because
//! the kernel made the copies.
//!
//! The published effect needs a cache that is short: 1.25 MiB of last level for each thread. Other memory that is
//! read meanwhile makes it shorter than it is (`antagonist.rs`).

mod antagonist;
mod case;
mod copier;
mod writer;

use crate::measure::LabError;
use crate::measure::part::Part;
use crate::record::Unit;
use crate::record::published::{self, Conditions};
use crate::record::stats::median;
use hugekit_bulk::parallel::Placement;
use hugekit_machine::size::{MIB, Size};

use self::antagonist::Pressure;
use self::case::{Cache, OrderCase};
use self::copier::{CONVERGING, Copier, SEQUENTIAL};
use self::writer::{CopyWork, CopyWriter, PerFolio, together};
use crate::experiments::Bench;
use crate::experiments::bench::left_out;

const FOLIO: usize = 2 * MIB;

/// Behind the name of a method: CPU time of its copies, and of the stores to them.
const CPU_TIME: [&str; 2] = ["-copy", "-stores"];

/// The number of writers, their use of the copies, and the place of the record.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct OrderWorkload {
    pub(in super::super) experiment: &'static str,
    pub(in super::super) writers: usize,
    /// Bytes of each huge page that are stored to afterwards, from the target on and round its end.
    pub(in super::super) used: usize,
    /// The part of the experiment's time.
    pub(in super::super) share: f64,
}

/// Measures every method on targets of both kinds, with the caches as they are, scarce and contended.
pub(in super::super) fn measure(
    bench: &mut Bench<'_>,
    workload: OrderWorkload,
) -> Result<Part, LabError> {
    let (copier, caches) = (Copier::new(), bench.caches());
    let (rounds, arena) = (bench.rounds(workload.share, 60), bench.arena()?);
    let (has, needed) = (arena.len(), 2 * FOLIO * workload.writers);
    if has < needed {
        let name = format!("order of copying, {} writers", workload.writers);
        return Ok(Part::notice(left_out(&name, needed, has)));
    }
    rounds.observer.begin(&format!("{} order, {} writers", workload.experiment, workload.writers));
    let pressure = Pressure::on(caches, workload.writers, Placement::here().threads());
    let pressure = pressure.within(has - needed);
    let cases = OrderCase::all(copier, pressure);
    let names: Vec<_> =
        cases.iter().map(|case| format!("{}/{}", case.method, case.label(workload))).collect();
    let (other, mut writers) =
        CopyWriter::several(arena.bytes(), workload.writers, pressure.reads());
    let between = &other[..pressure.scarce.map_or(0, |(reads, _)| reads)];
    let beside = &other[..pressure.contended.unwrap_or(0)];
    let (used, antagonists) = (workload.used, pressure.antagonists);
    let measured = rounds.measure_with(workload.experiment, Unit::GibPerSecond, &names, |index| {
        let case = cases[index];
        let sample = CopyWork { copier, case, used, between, beside, antagonists };
        let round = together(&mut writers, sample)?;
        Ok((round.rate(), round.per_folio()))
    });
    let (mut part, per_folio) = measured?;
    add_cpu_time(&mut part, &cases, workload, &per_folio);
    part.notices.extend(notices(workload, copier, pressure, read_beside(&cases, &per_folio)));
    compare(&mut part, &cases, workload);
    Ok(part)
}

fn add_cpu_time(
    part: &mut Part,
    cases: &[OrderCase],
    workload: OrderWorkload,
    per_folio: &[Vec<PerFolio>],
) {
    for (case, per_folio) in cases.iter().zip(per_folio) {
        for (at, kind) in CPU_TIME.into_iter().enumerate() {
            let name = format!("{}{kind}/{}", case.method, case.label(workload));
            let samples = per_folio.iter().map(|one| one.cpu[at]).collect();
            part.add_case(&name, Unit::Microseconds, samples);
        }
    }
}

/// Bytes that antagonists have read while a folio was copied and used: the median.
fn read_beside(cases: &[OrderCase], per_folio: &[Vec<PerFolio>]) -> Option<usize> {
    let contended = cases.iter().zip(per_folio).filter(|(case, _)| case.cache == Cache::Contended);
    let read: Vec<f64> =
        contended.flat_map(|(_, per_folio)| per_folio.iter().map(|one| one.read)).collect();
    (!read.is_empty()).then(|| median(&read) as usize)
}

fn notices(
    workload: OrderWorkload,
    copier: Copier,
    pressure: Pressure,
    read: Option<usize>,
) -> impl Iterator<Item = String> {
    let (string, writers) = (copier.string.name(), workload.writers);
    let streaming = copier
        .streaming
        .map_or("nothing here streams, so streamed-far is left out".into(), |routine| {
            format!("streamed-far by {}", routine.name())
        });
    let routines = format!(
        "order of copying: {string} for every method, {streaming}; the copy is called for, no fault is involved"
    );
    let scarce = match pressure.scarce {
        Some((reads, level)) => format!(
            ": between copy and use, outside the clock, each reads {} of other memory on its CPU, which leaves \
             1.25MiB of {level} to it, as threads had of the last level in 2018",
            Size(reads)
        ),
        None => ", left out: this machine does not say what its caches are, leaves a thread no more than \
                 1.25MiB, or has too little memory"
            .to_owned(),
    };
    let contended = match pressure.contended.zip(read) {
        Some((reads, read)) => format!(
            ": threads go round {} of other memory meanwhile, one on each of the {} CPUs that writers leave; \
             they read {:.1} MiB while one page is copied and used",
            Size(reads),
            pressure.antagonists,
            read as f64 / MIB as f64
        ),
        None => ", left out: writers leave no CPU, this machine does not say what its caches are, or it has too \
                 little memory"
            .to_owned(),
    };
    let [scarce, contended] = [("scarce", scarce), ("contended", contended)]
        .map(|(cache, how)| format!("{cache}, writers: {writers}{how}"));
    (writers == 1).then_some(routines).into_iter().chain([scarce, contended])
}

/// Each method against the sequential one on the same workload, and beside the published order what it gained in
/// the kernel.
fn compare(part: &mut Part, cases: &[OrderCase], workload: OrderWorkload) {
    for kind in [""].into_iter().chain(CPU_TIME) {
        for case in cases.iter().filter(|case| case.method != SEQUENTIAL) {
            let (label, method) = (case.label(workload), case.method);
            let sides = [SEQUENTIAL, method].map(|method| format!("{method}{kind}/{label}"));
            let name = format!("{SEQUENTIAL}-vs-{method}{kind}/{label}");
            part.ratio(&name, (&sides[0], &sides[1]), None);
        }
    }
    if workload.used != FOLIO {
        return;
    }
    let ran = "copies of huge pages called for, and stores to every word";
    let (pages, threads) = (Some(Size(FOLIO).to_string()), Some(workload.writers));
    let ours = Conditions { pages, threads, ..Conditions::without_kernel(ran) };
    let label =
        OrderCase { method: CONVERGING, is_anywhere: false, cache: Cache::Scarce }.label(workload);
    for (kind, metric) in [("", "throughput"), ("-stores", "user time")] {
        let id = format!("{}/{SEQUENTIAL}-vs-{CONVERGING}{kind}/{label}", workload.experiment);
        part.put_beside(&id, &ours, published::cow(metric));
    }
    // Of cycles the record has counts by case, no ratio: this one can stand beside nothing.
    let cycles = published::cow("instructions per cycle");
    let id = format!("cow/instructions-per-cycle/{label}");
    part.elsewhere.extend(cycles.iter().filter_map(|figure| figure.elsewhere(&id, &ours)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_stand_against_the_sequential_one_and_published_gains_apart() {
        let workload = OrderWorkload { experiment: "cow", writers: 2, used: FOLIO, share: 1.0 };
        let pressure = Pressure {
            scarce: Some((MIB, "the last level")),
            contended: Some(MIB),
            antagonists: 1,
        };
        let (cases, mut part) = (OrderCase::all(Copier::new(), pressure), Part::new("cow"));
        for (case, sample) in cases.iter().zip(1..) {
            let sample = f64::from(sample);
            let name = format!("{}/{}", case.method, case.label(workload));
            part.add_case(&name, Unit::GibPerSecond, vec![sample]);
        }
        let per_folio = |at| vec![PerFolio { cpu: [f64::from(at), f64::from(10 * at)], read: 8.0 }];
        let per_folio: Vec<_> = cases.iter().zip(1..).map(|(_, at)| per_folio(at)).collect();
        add_cpu_time(&mut part, &cases, workload, &per_folio);
        assert_eq!(part.case("sequential-copy/2-first").unwrap().samples, [1.0]);
        assert_eq!(part.case("sequential-stores/2-first").unwrap().samples, [10.0]);
        assert_eq!(read_beside(&cases, &per_folio), Some(8));
        compare(&mut part, &cases, workload);
        assert_eq!(part.ratios.len(), 3 * 6 * (Copier::new().methods().count() - 1));
        for ratio in &part.ratios {
            let workload = |id: &str| id.rsplit('/').next().unwrap_or_default().to_owned();
            assert_eq!(workload(&ratio.baseline), workload(&ratio.subject), "{}", ratio.id);
            assert!(ratio.baseline.starts_with("cow/sequential") && ratio.published.is_empty());
        }
        let first = "cow/sequential-vs-converging-stores/2-first";
        let first = part.ratios.iter().find(|one| one.id == first);
        assert_eq!(first.unwrap().median, 0.5);
        let beside: Vec<_> = part.elsewhere.iter().map(|one| one.beside.as_str()).collect();
        let ids = [
            "sequential-vs-converging",
            "sequential-vs-converging-stores",
            "instructions-per-cycle",
        ];
        assert_eq!(beside, ids.map(|id| format!("cow/{id}/2-first-scarce")));
        for one in &part.elsewhere {
            let aspects: Vec<_> = one.differs.iter().map(|one| one.aspect.as_str()).collect();
            assert_eq!(aspects, ["ran", "kernel", "threads"]);
        }
    }
}
