//! Idea 4 by the program that its figures are from: the installed `perf bench mem memset` and `memcpy` beside
//! the same instructions of ours, on base pages and on huge pages.
//!
//! perf is a process of its own for each sample and says how many bytes a second it moved, once it has
//! written its buffer. Both sides run the same loops over as many bytes, so they should agree; where they do
//! not, one of them measures something else.

use std::process::{Command, Stdio};
use std::time::Instant;

use hugekit_bulk::arch::{ClearRoutine, CopyRoutine, clear_routine, copy_routine};
use hugekit_machine::Root;

use super::part::{Part, found};
use crate::LabError;
use crate::anonymous::{Anonymous, Pages};
use crate::bench::{Bench, why_no_thp};
use crate::record::{Case, Ratio, Unit};
use crate::sampler::try_alternate;
use crate::size::{GIB, MIB, Size};

const SIZES: [usize; 2] = [16 * MIB, 128 * MIB];

/// Bytes that a sample moves at least.
const SAMPLE_BYTES: usize = 128 * MIB;

/// Both sides agree if they differ by no more: what another placement of the same memory makes, twice.
const TOLERANCE: f64 = 0.1;

/// Of a buffer by glibc, whether on transparent huge pages.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// One of perf's functions, and the same instruction of ours.
#[derive(Clone, Copy, Debug)]
struct Contender {
    operation: &'static str,
    function: &'static str,
    ours: &'static str,
}

const CONTENDERS: [Contender; 3] = [
    Contender { operation: "memset", function: "x86-64-stosb", ours: "rep_stosb" },
    Contender { operation: "memset", function: "default", ours: "memset" },
    Contender { operation: "memcpy", function: "x86-64-movsb", ours: "rep_movsb" },
];

impl Contender {
    fn copies(self) -> bool {
        self.operation == "memcpy"
    }
}

/// A contender on a buffer.
#[derive(Clone, Copy, Debug)]
struct Workload {
    contender: Contender,
    size: usize,
    pages: Pages,
}

impl Workload {
    fn label(self) -> String {
        format!("{}-{}-pages", Size(self.size), Size(self.pages.size()))
    }

    const fn loops(self) -> usize {
        SAMPLE_BYTES / self.size
    }

    /// GiB/s of perf's.
    fn by_perf(self) -> Result<f64, LabError> {
        let (size, loops) = (format!("{}B", self.size), self.loops().to_string());
        let Contender { operation, function, .. } = self.contender;
        // 1: whatever malloc maps asks for huge pages. 0: nothing does.
        let huge = format!("glibc.malloc.hugetlb={}", u8::from(self.pages == Pages::Thp));
        let output = perf()
            .args(["bench", "-f", "simple", "mem", operation, "-s", &size, "-l", &loops])
            .args(["-f", function])
            .env(TUNABLES, huge)
            .output()
            .map_err(LabError::Perf)?;
        let said = String::from_utf8_lossy(&output.stdout);
        rate(&said).ok_or_else(|| {
            let why = String::from_utf8_lossy(&output.stderr);
            LabError::Perf(std::io::Error::other(crate::plain(why.trim())))
        })
    }

    /// GiB/s of ours, in memory that was written before.
    fn by_us(self) -> Result<f64, LabError> {
        let buffers = if self.contender.copies() { 2 } else { 1 };
        let mut memory = Anonymous::new(self.pages, buffers * self.size)?;
        memory.bytes().fill(1);
        let (dst, src) = memory.bytes().split_at_mut(self.size);
        let start = Instant::now();
        for _ in 0..self.loops() {
            self.once(std::hint::black_box(dst), src);
        }
        let moved = (self.loops() * self.size) as f64;
        Ok(moved / GIB as f64 / start.elapsed().as_secs_f64())
    }

    #[allow(unsafe_code)]
    fn once(self, dst: &mut [u8], src: &[u8]) {
        assert!(!self.contender.copies() || src.len() == dst.len());
        let (to, from, len) = (dst.as_mut_ptr(), src.as_ptr(), dst.len());
        let clear = clear_routine(self.contender.ours).filter(|routine| routine.is_available());
        let copy = copy_routine(self.contender.ours).filter(|routine| routine.is_available());
        // SAFETY: `len` bytes, borrowed mutably, and as many of another slice if they are copied; the routines are
        // available.
        let unfenced = unsafe {
            clear
                .map(|routine| routine.run(to, len))
                .or_else(|| copy.map(|routine| routine.run(to, from, len)))
        };
        unfenced.expect("contenders are those that this CPU has").publish();
    }
}

fn perf() -> Command {
    let mut perf = Command::new("perf");
    perf.stdin(Stdio::null()).env("LC_ALL", "C");
    perf
}

/// GiB/s, of what `-f simple` prints: a comment, and bytes per second.
fn rate(said: &str) -> Option<f64> {
    let rate: f64 = said.lines().find(|line| !line.starts_with('#'))?.trim().parse().ok()?;
    (rate.is_finite() && rate > 0.0).then_some(rate / GIB as f64)
}

/// Why perf takes no part, if it does not.
fn missing() -> Option<String> {
    let tried = perf().args(["bench", "mem", "memset", "-s", "1MB"]).output();
    let why = match tried {
        Ok(output) if output.status.success() => return None,
        Ok(output) => crate::plain(String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => error.to_string(),
    };
    Some(format!("perf bench left out: {why}; install perf (on Debian linux-perf)"))
}

/// Every contender of a size that there is memory for, on pages that there are.
fn workloads(memory: usize, thp: bool) -> Vec<Workload> {
    let here = |contender: &Contender| {
        let clears = clear_routine(contender.ours).is_some_and(ClearRoutine::is_available);
        let copies = copy_routine(contender.ours).is_some_and(CopyRoutine::is_available);
        clears || copies
    };
    let pages = [Some(Pages::Base), thp.then_some(Pages::Thp)].into_iter().flatten();
    let buffers = pages.flat_map(|pages| SIZES.map(|size| (size, pages)));
    let buffers = buffers.filter(|(size, _)| 2 * size <= memory);
    let on = |(size, pages)| {
        let contenders = CONTENDERS.into_iter().filter(here);
        contenders.map(move |contender| Workload { contender, size, pages })
    };
    buffers.flat_map(on).collect()
}

/// perf's figures beside ours, and how many agree.
pub(super) fn measure(bench: &mut Bench<'_>, share: f64) -> Result<Part, LabError> {
    let mut part = Part::default();
    if let Some(missing) = missing() {
        part.notices.push(missing);
        return Ok(part);
    }
    let thp = bench.allow_thp()?;
    if !thp {
        part.notices
            .push(format!("perf bench on huge pages left out: {}", why_no_thp(&Root::default())));
    }
    let workloads = workloads(bench.arena()?.len(), thp);
    let observer = bench.observer();
    observer.begin("stores perf bench");
    let plan = bench.plan_of_long_rounds(share, 8);
    let rounds = try_alternate(plan, 2 * workloads.len(), observer, |index| {
        let workload = workloads[index / 2];
        if index % 2 == 0 { workload.by_perf() } else { workload.by_us() }
    })?;
    let cases =
        part.cases_of(rounds, |index, samples| case(workloads[index / 2], index % 2 == 0, samples));
    part.ratios = ratios(&workloads, &cases);
    part.notices.extend(agreement(&part.ratios));
    part.cases = found(cases);
    Ok(part)
}

fn case(workload: Workload, by_perf: bool, samples: Vec<f64>) -> Case {
    let by = if by_perf { "perf-" } else { "" };
    let id = format!("stores/{by}{}/{}", workload.contender.ours, workload.label());
    Case { id, unit: Unit::GibPerSecond, samples, published: Vec::new() }
}

fn ratios(workloads: &[Workload], cases: &[Option<Case>]) -> Vec<Ratio> {
    let ratio = |(workload, pair): (&Workload, &[Option<Case>])| {
        let [Some(perf), Some(ours)] = pair else { return None };
        let name = workload.contender.ours;
        let id = format!("stores/perf-{name}-vs-{name}/{}", workload.label());
        Some(Ratio::between(id, perf, ours))
    };
    workloads.iter().zip(cases.chunks(2)).filter_map(ratio).collect()
}

/// How many of the ratios are within the tolerance, and which are not.
fn agreement(ratios: &[Ratio]) -> Option<String> {
    let apart =
        |ratio: &&Ratio| !(1.0 - TOLERANCE..=1.0 / (1.0 - TOLERANCE)).contains(&ratio.median);
    let named = |ratio: &Ratio| {
        let name = ratio.id.split_once('/').map_or("", |(_, rest)| rest);
        format!("{name} {:.2}", ratio.median)
    };
    let apart: Vec<String> = ratios.iter().filter(apart).map(named).collect();
    let within = ratios.len() - apart.len();
    let others =
        if apart.is_empty() { String::new() } else { format!("; apart: {}", apart.join(", ")) };
    let percent = TOLERANCE * 100.0;
    (!ratios.is_empty()).then(|| {
        let all = ratios.len();
        format!("perf bench and the same instruction of ours agree within {percent} % in {within} of {all}{others}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perf_says_bytes_a_second_behind_a_comment() {
        assert_eq!(rate("# function 'x' (y)\n2147483648.000000\n"), Some(2.0));
        for said in ["", "# function 'x' (y)\n", "# x\nnan\n", "# x\n0.0\n", "unknown function\n"] {
            assert_eq!(rate(said), None, "{said:?}");
        }
    }

    #[test]
    fn ours_does_what_the_contender_does() {
        for workload in workloads(usize::MAX, false) {
            let (mut dst, src) = (vec![1_u8; 4096], vec![7_u8; 4096]);
            workload.once(&mut dst, &src);
            let expected = if workload.contender.copies() { 7 } else { 0 };
            assert!(dst.iter().all(|&byte| byte == expected), "{workload:?}");
        }
    }

    #[test]
    fn buffers_fit_the_memory_and_there_are_huge_pages_where_there_are() {
        let labels = |memory, thp| {
            let mut labels: Vec<_> = workloads(memory, thp).iter().map(|one| one.label()).collect();
            labels.dedup();
            labels
        };
        assert_eq!(labels(16 * MIB, true), [""; 0]);
        let base = Size(Pages::Base.size());
        assert_eq!(labels(32 * MIB, false), [format!("16MiB-{base}-pages")]);
        assert_eq!(labels(GIB, true).len(), 4);
    }

    #[test]
    fn what_is_apart_is_named_with_the_tolerance() {
        let ratio = |median| {
            let case = |rate| Case {
                id: "stores/x/16MiB-4KiB-pages".into(),
                unit: Unit::GibPerSecond,
                samples: vec![rate],
                published: Vec::new(),
            };
            Ratio::between("stores/perf-x-vs-x/16MiB-4KiB-pages".into(), &case(1.0), &case(median))
        };
        let said = agreement(&[ratio(1.05), ratio(0.95), ratio(1.3)]).unwrap();
        let expected = "perf bench and the same instruction of ours agree within 10 % in 2 of 3; apart: \
                        perf-x-vs-x/16MiB-4KiB-pages 1.30";
        assert_eq!(said, expected);
        assert_eq!(agreement(&[]), None);
    }
}
