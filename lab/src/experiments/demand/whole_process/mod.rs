//! Idea 1's workload as it was published (2023): a process on one CPU maps all the huge pages that there are,
//! touches each of them, and ends; all of that is timed. Here all that are free, up to the memory of the run.
//!
//! By its own counts the published program touched each page *twice*: 65,636 faults for 32,768 pages of 2 MiB,
//! and 227 for 64 of 1 GiB. A read has the kernel clear the page and map it for reading, a write then has it
//! made writable: two faults. *process-twice* does that, *process-once* only writes, as `demand` does elsewhere.
//!
//! *process-on-allocation*, *process-on-fault* and *process-streamed* write each page once, too. A pool or the program
//! clears the memory instead of the kernel.

mod method;

use crate::measure::LabError;
use crate::measure::machine::{clearing_kernel, here};
use crate::measure::part::Part;
use crate::measure::workloads::anonymous::Pages;
use crate::record::Unit;
use crate::record::published::{self, Conditions};
use hugekit_machine::size::Size;

use self::method::{ProcessSample, WholeProcessMethod, no_clearing_on_fault, streaming};
use crate::experiments::Bench;

/// The published workload on free pages of both sizes, reserved for it where settings may be changed.
pub(super) fn measure(bench: &mut Bench<'_>, memory: usize, share: f64) -> Result<Part, LabError> {
    bench.reserve(Pages::Hugetlb2M, memory / Pages::Hugetlb2M.size())?;
    let mut part = Part::new("demand");
    for pages in [Pages::Hugetlb2M, Pages::Hugetlb1G] {
        // No more than the run may use: what else is free is other programs'.
        let count = bench.free_huge_pages(pages)?.min(memory / pages.size());
        if count == 0 {
            let (size, reason) =
                (Size(pages.size()), "no such page is free, or the run's memory has none");
            part.notices.push(format!("process-…-{size} left out: {reason}"));
            continue;
        }
        part.absorb(measure_on(bench, pages, count * pages.size(), share)?);
    }
    Ok(part)
}

fn measure_on(bench: &Bench<'_>, pages: Pages, bytes: usize, share: f64) -> Result<Part, LabError> {
    let (rounds, label) = (bench.long_rounds(share, 6), Label { pages, bytes });
    rounds.observer.begin(&format!("demand process {}", Size(pages.size())));
    let refused = no_clearing_on_fault(pages)?;
    let is_possible = |method: &WholeProcessMethod| match method {
        WholeProcessMethod::OnFault => refused.is_none(),
        WholeProcessMethod::Streamed => streaming().is_some(),
        _ => true,
    };
    let methods: Vec<_> = WholeProcessMethod::ALL.into_iter().filter(is_possible).collect();
    let names: Vec<_> = methods.iter().map(|&method| label.of(method, "")).collect();
    let (mut part, samples) =
        rounds.measure_with("demand", Unit::GibPerSecond, &names, |index| {
            let sample = methods[index].sample(pages, bytes)?;
            Ok((sample.gib_per_second, sample))
        })?;
    for (&method, samples) in methods.iter().zip(samples) {
        add_usage(&mut part, label, method, &samples);
    }
    let left_out = |method, why| format!("{} left out: {why}", label.of(method, ""));
    part.notices.extend(refused.map(|why| left_out(WholeProcessMethod::OnFault, why)));
    let streamless = streaming().is_none().then(|| "this CPU has no movnti".to_owned());
    part.notices.extend(streamless.map(|why| left_out(WholeProcessMethod::Streamed, why)));
    put_beside(&mut part, label);
    compare(&mut part, label);
    Ok(part)
}

/// The part of a name behind the method.
#[derive(Clone, Copy, Debug)]
struct Label {
    pages: Pages,
    bytes: usize,
}

impl Label {
    fn of(self, method: WholeProcessMethod, what: &str) -> String {
        self.named(method.name(), what)
    }

    fn named(self, method: &str, what: &str) -> String {
        format!("process-{method}-{}{what}/{}", Size(self.pages.size()), Size(self.bytes))
    }
}

/// Page faults, and CPU time per page.
fn add_usage(part: &mut Part, label: Label, method: WholeProcessMethod, samples: &[ProcessSample]) {
    let mut add = |what: &str, unit, value: fn(&ProcessSample) -> f64| {
        part.add_case(&label.of(method, what), unit, samples.iter().map(value).collect());
    };
    add("-faults", Unit::Faults, |sample| sample.faults);
    add("-user", Unit::Microseconds, |sample| sample.user);
    add("-system", Unit::Microseconds, |sample| sample.system);
}

fn compare(part: &mut Part, label: Label) {
    let moved = "a second fault for each page, which clears nothing";
    for method in WholeProcessMethod::ALL.into_iter().skip(1) {
        let moved = (method == WholeProcessMethod::Twice).then_some(moved);
        let id = label.named(&format!("once-vs-{}", method.name()), "");
        part.ratio(&id, (&label.of(WholeProcessMethod::Once, ""), &label.of(method, "")), moved);
    }
}

/// Adds the published figures beside the methods of the kernel, in the words of the published description.
fn put_beside(part: &mut Part, label: Label) {
    let page = Size(label.pages.size()).to_string();
    for (method, faults) in [
        (WholeProcessMethod::Once, "one for each page"),
        (WholeProcessMethod::Twice, "two for each page"),
    ] {
        let ours = here(Conditions {
            ran: format!("demand faults of huge pages, {faults}, the whole process"),
            kernel: clearing_kernel(),
            memory: Some(Size(label.bytes).to_string()),
            pages: Some(page.clone()),
            threads: Some(1),
            ..Conditions::default()
        });
        let id = |what| format!("demand/{}", label.of(method, what));
        part.put_beside(&id(""), &ours, published::demand(&page));
        part.put_beside(&id("-faults"), &ours, published::demand_faults(&page));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugekit_machine::size::GIB;

    /// With a sample of each method.
    fn part_of(label: Label) -> Part {
        let mut part = Part::new("demand");
        for (method, value) in WholeProcessMethod::ALL.into_iter().zip([1.0, 2.0, 3.0, 4.0, 8.0]) {
            part.add_case(&label.of(method, ""), Unit::GibPerSecond, vec![value]);
            let sample =
                ProcessSample { gib_per_second: value, faults: 5.0, user: 6.0, system: 7.0 };
            add_usage(&mut part, label, method, &[sample]);
        }
        part
    }

    #[test]
    fn clearings_of_programs_are_compared_like_for_like_with_the_kernel_touched_once() {
        let label = Label { pages: Pages::Hugetlb2M, bytes: GIB };
        let mut part = part_of(label);
        compare(&mut part, label);
        let ratios: Vec<_> = part
            .ratios
            .iter()
            .map(|ratio| (ratio.id.as_str(), ratio.median, ratio.like_for_like))
            .collect();
        let expected = [
            ("demand/process-once-vs-twice-2MiB/1GiB", 2.0, false),
            ("demand/process-once-vs-on-allocation-2MiB/1GiB", 3.0, true),
            ("demand/process-once-vs-on-fault-2MiB/1GiB", 4.0, true),
            ("demand/process-once-vs-streamed-2MiB/1GiB", 8.0, true),
        ];
        assert_eq!(ratios, expected);
        for (what, value) in [("-faults", 5.0), ("-user", 6.0), ("-system", 7.0)] {
            let case = part.case(&format!("process-on-fault-2MiB{what}/1GiB")).unwrap();
            assert_eq!(case.samples, [value]);
        }
    }

    /// This kernel clears like one of the two published kernels.
    #[test]
    fn the_published_workload_differs_by_memory_and_one_kernel() {
        let label = Label { pages: Pages::Hugetlb2M, bytes: GIB };
        let mut part = part_of(label);
        put_beside(&mut part, label);
        assert!(part.cases.iter().all(|case| case.published.is_empty()));
        let with = |beside: &str, aspects: &[&str]| {
            let of = part.elsewhere.iter().filter(|one| one.beside.ends_with(beside));
            let settings = ["node", "turbo", "governor"];
            let differs = of.map(|one| {
                let all = one.differs.iter().map(|one| one.aspect.as_str());
                all.filter(|aspect| !settings.contains(aspect)).collect::<Vec<_>>()
            });
            differs.filter(|differs| differs == aspects).count()
        };
        assert_eq!(with("twice-2MiB/1GiB", &["memory"]), 2);
        assert_eq!(with("twice-2MiB/1GiB", &["kernel", "memory"]), 2);
        assert_eq!(with("once-2MiB/1GiB", &["ran", "memory"]), 2);
        assert_eq!(with("twice-2MiB-faults/1GiB", &["memory"]), 1);
    }
}
