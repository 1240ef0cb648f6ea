//! Idea 4 by the program that its figures are from: the installed `perf bench mem memset` and `memcpy` beside
//! the same instructions of ours, on base pages and on huge pages.
//!
//! perf is a process of its own for each sample and says how many bytes a second it moved, once it has
//! written its buffer. Both sides run the same loops over as many bytes, so they should agree; where they do
//! not, one of them measures something else.

use std::io;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::measure::LabError;
use crate::measure::machine::memory::why_no_thp;
use crate::measure::part::Part;
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use crate::record::{Ratio, Unit};
use hugekit_bulk::arch::{ClearRoutine, CopyRoutine, clear_routine, copy_routine};
use hugekit_machine::Root;
use hugekit_machine::size::{GIB, MIB, Size};

use super::STRINGS;
use crate::experiments::Bench;
use crate::experiments::bench::left_out;

const SIZES: [usize; 3] = [16 * MIB, 128 * MIB, PUBLISHED];

/// The largest published size. A sample of it takes about a second, so there are few.
const PUBLISHED: usize = 4 * GIB;

/// Bytes that a sample moves at least.
const SAMPLE_BYTES: usize = 128 * MIB;

/// Both sides agree if they differ by no more: what another placement of the same memory makes, twice.
const TOLERANCE: f64 = 0.1;

/// perf's operation and function, and the same instruction of ours.
const CONTENDERS: [(&str, &str, &str); 4] = [
    ("memset", "x86-64-stosb", "rep_stosb"),
    ("memset", "x86-64-stosq", "rep_stosq"),
    ("memset", "default", "memset"),
    ("memcpy", "x86-64-movsb", "rep_movsb"),
];

/// A contender on a buffer.
#[derive(Clone, Copy, Debug)]
struct PerfBenchCase {
    operation: &'static str,
    function: &'static str,
    ours: &'static str,
    size: usize,
    pages: Pages,
}

impl PerfBenchCase {
    /// Every contender that this CPU has, of a size that there is memory for, on pages that there are.
    fn all(memory: usize, thp: bool) -> Vec<Self> {
        let here = |ours: &str| {
            let clears = clear_routine(ours).is_some_and(ClearRoutine::is_available);
            clears || copy_routine(ours).is_some_and(CopyRoutine::is_available)
        };
        let pages = [Some(Pages::Base), thp.then_some(Pages::Thp)].into_iter().flatten();
        let buffers = pages.flat_map(|pages| SIZES.map(|size| (size, pages)));
        let on = |(size, pages)| {
            let contenders = CONTENDERS.into_iter().filter(move |(.., ours)| here(ours));
            contenders.map(move |(operation, function, ours)| Self {
                operation,
                function,
                ours,
                size,
                pages,
            })
        };
        let all = buffers.flat_map(on);
        all.filter(|one: &Self| one.bytes() <= memory && one.is_short()).collect()
    }

    /// The size of its buffers.
    fn bytes(self) -> usize {
        if self.operation == "memcpy" { 2 * self.size } else { self.size }
    }

    /// True if the case is short enough. With the largest size, only the published instructions are measured, on pages
    /// that are soon populated.
    fn is_short(self) -> bool {
        self.size < PUBLISHED || self.pages == Pages::Thp && STRINGS.contains(&self.ours)
    }

    fn label(self) -> String {
        format!("{}-{}-pages", Size(self.size), Size(self.pages.size()))
    }

    const fn loops(self) -> usize {
        SAMPLE_BYTES.div_ceil(self.size)
    }

    /// GiB/s of perf's.
    fn by_perf(self) -> Result<f64, LabError> {
        let (size, loops) = (format!("{}B", self.size), self.loops().to_string());
        // 1: whatever malloc maps asks for huge pages. 0: nothing does.
        let huge = format!("glibc.malloc.hugetlb={}", u8::from(self.pages == Pages::Thp));
        let output = perf()
            .args(["bench", "-f", "simple", "mem", self.operation, "-s", &size, "-l", &loops])
            .args(["-f", self.function])
            .env("GLIBC_TUNABLES", huge)
            .output()
            .map_err(LabError::Perf)?;
        let why = || LabError::Perf(io::Error::other(plain(&output.stderr)));
        rate(&String::from_utf8_lossy(&output.stdout)).ok_or_else(why)
    }

    /// GiB/s of ours, in memory that was written before.
    fn by_us(self) -> Result<f64, LabError> {
        let mut memory = Anonymous::new(self.pages, self.bytes())?;
        let (dst, src) = memory.bytes().split_at_mut(self.size);
        dst.fill(1);
        src.fill(1);
        let start = Instant::now();
        for _ in 0..self.loops() {
            self.once(std::hint::black_box(dst), src);
        }
        let moved = (self.loops() * self.size) as f64;
        Ok(moved / GIB as f64 / start.elapsed().as_secs_f64())
    }

    #[allow(unsafe_code)]
    fn once(self, dst: &mut [u8], src: &[u8]) {
        assert!(src.len() == dst.len() || self.operation == "memset");
        let (to, from, len) = (dst.as_mut_ptr(), src.as_ptr(), dst.len());
        let clear = clear_routine(self.ours).filter(|routine| routine.is_available());
        let copy = copy_routine(self.ours).filter(|routine| routine.is_available());
        // SAFETY: `len` bytes, borrowed mutably, and for a copy as many of another slice; the routines are available.
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

fn plain(said: &[u8]) -> String {
    hugekit_machine::plain(String::from_utf8_lossy(said).trim())
}

/// GiB/s, of what `-f simple` prints: a comment, and bytes per second.
fn rate(said: &str) -> Option<f64> {
    let rate: f64 = said.lines().find(|line| !line.starts_with('#'))?.trim().parse().ok()?;
    (rate.is_finite() && rate > 0.0).then_some(rate / GIB as f64)
}

/// The reason why perf cannot be measured, if so.
fn missing() -> Option<String> {
    let why = match perf().args(["bench", "mem", "memset", "-s", "1MB"]).output() {
        Ok(output) if output.status.success() => return None,
        Ok(output) => plain(&output.stderr),
        Err(error) => error.to_string(),
    };
    Some(format!("perf bench left out: {why}; install perf (on Debian linux-perf)"))
}

/// perf's figures beside ours, and how many agree.
pub(super) fn measure(bench: &mut Bench<'_>, share: f64) -> Result<Part, LabError> {
    if let Some(missing) = missing() {
        return Ok(Part::notice(missing));
    }
    let thp = bench.allow_thp()?;
    let memory = bench.arena()?.len().min(bench.available_memory()?);
    let workloads = PerfBenchCase::all(memory, thp);
    let rounds = bench.long_rounds(share, 8);
    rounds.observer.begin("stores perf bench");
    let names =
        |one: &PerfBenchCase| ["perf-", ""].map(|by| format!("{by}{}/{}", one.ours, one.label()));
    let names: Vec<_> = workloads.iter().flat_map(names).collect();
    let mut part = rounds.measure("stores", Unit::GibPerSecond, &names, |index| {
        let workload = workloads[index / 2];
        if index % 2 == 0 { workload.by_perf() } else { workload.by_us() }
    })?;
    for workload in &workloads {
        let perf = format!("perf-{}", workload.ours);
        part.compare((&perf, workload.ours), &workload.label(), None);
    }
    if !thp {
        let why = why_no_thp(&Root::default());
        part.notices.push(format!("perf bench on huge pages left out: {why}"));
    } else if memory < PUBLISHED {
        let published = Size(PUBLISHED).to_string();
        part.notices.push(left_out(&format!("perf bench of {published}"), PUBLISHED, memory));
    }
    part.notices.extend(agreement(&part.ratios));
    Ok(part)
}

/// The number of ratios within the tolerance, and the other ratios.
fn agreement(ratios: &[Ratio]) -> Option<String> {
    let agrees = 1.0 - TOLERANCE..=1.0 / (1.0 - TOLERANCE);
    let apart = ratios.iter().filter(|ratio| !agrees.contains(&ratio.median));
    let named =
        |ratio: &Ratio| format!("{} {:.2}", ratio.id.trim_start_matches("stores/"), ratio.median);
    let apart: Vec<String> = apart.map(named).collect();
    let (all, within, percent) = (ratios.len(), ratios.len() - apart.len(), TOLERANCE * 100.0);
    let others =
        if apart.is_empty() { String::new() } else { format!("; apart: {}", apart.join(", ")) };
    (all > 0).then(|| {
        format!("perf bench and the same instruction of ours agree within {percent} % in {within} of {all}{others}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Case;

    #[test]
    fn perf_says_bytes_a_second_behind_a_comment() {
        assert_eq!(rate("# function 'x' (y)\n2147483648.000000\n"), Some(2.0));
        for said in ["", "# function 'x' (y)\n", "# x\nnan\n", "# x\n0.0\n", "unknown function\n"] {
            assert_eq!(rate(said), None, "{said:?}");
        }
    }

    #[test]
    fn ours_does_what_the_contender_does() {
        for workload in PerfBenchCase::all(usize::MAX, false) {
            let (mut dst, src) = (vec![1_u8; 4096], vec![7_u8; 4096]);
            workload.once(&mut dst, &src);
            let expected = if workload.operation == "memcpy" { 7 } else { 0 };
            assert!(dst.iter().all(|&byte| byte == expected), "{workload:?}");
        }
    }

    #[test]
    fn buffers_fit_the_memory_and_there_are_huge_pages_where_there_are() {
        let labels = |memory, thp| {
            let mut labels: Vec<_> =
                PerfBenchCase::all(memory, thp).iter().map(|one| one.label()).collect();
            labels.dedup();
            labels
        };
        assert_eq!(labels(8 * MIB, true), [""; 0]);
        let base = Size(Pages::Base.size());
        assert_eq!(labels(32 * MIB, false), [format!("16MiB-{base}-pages")]);
        assert_eq!(labels(GIB, true).len(), 4);
        assert_eq!(labels(4 * GIB, false).len(), 2);
        assert_eq!(labels(4 * GIB, true).len(), 4 + usize::from(cfg!(target_arch = "x86_64")));
    }

    #[test]
    fn copies_have_twice_the_memory_and_the_largest_buffer_is_cleared_by_published_instructions() {
        let is_x86 = cfg!(target_arch = "x86_64");
        let copies =
            |memory| PerfBenchCase::all(memory, true).iter().any(|one| one.ours == "rep_movsb");
        assert_eq!((copies(16 * MIB), copies(32 * MIB)), (false, is_x86));
        let all = PerfBenchCase::all(usize::MAX, true).into_iter();
        let largest: Vec<_> = all.filter(|one| one.size == PUBLISHED).map(|one| one.ours).collect();
        assert_eq!(largest, if is_x86 { &STRINGS[..] } else { &[] });
    }

    #[test]
    fn what_is_apart_is_named_with_the_tolerance() {
        let case = |rate| Case::new("stores/x/16MiB-4KiB-pages", Unit::GibPerSecond, vec![rate]);
        let id = "stores/perf-x-vs-x/16MiB-4KiB-pages";
        let ratio = |median| Ratio::between(id.into(), &case(1.0), &case(median));
        let said = agreement(&[ratio(1.05), ratio(0.95), ratio(1.3)]).unwrap();
        let expected = "perf bench and the same instruction of ours agree within 10 % in 2 of 3; apart: \
                        perf-x-vs-x/16MiB-4KiB-pages 1.30";
        assert_eq!(said, expected);
        assert_eq!(agreement(&[]), None);
    }
}
