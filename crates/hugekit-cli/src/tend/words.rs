//! The lines that a tender prints.

use std::time::Duration;

use hugekit_lab::size::Size;
use hugekit_tend::{ForkTime, PassReport, Status};

/// Of a process that is tended.
pub(super) fn of_status(status: &Status) -> String {
    let children = match status.children {
        0 => String::new(),
        count => format!(", {count} children alive: waiting"),
    };
    let last = status.last.as_ref().map_or(String::new(), |last| format!("; {}", work(last)));
    let took = status.last_fork.map_or(String::new(), |took| match took {
        ForkTime::Told(took) => {
            format!(", the last in {:.1} ms as the process reports", millis(took))
        }
        ForkTime::Estimated(took) => format!(", the last in about {:.1} ms", millis(took)),
        _ => String::new(),
    });
    format!("{} ({}): {} forks{took}{children}{last}", status.name, status.pid, status.forks)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Of one pass.
pub(super) fn of_pass(report: &PassReport) -> String {
    format!("{}: {}", report.pid, work(report))
}

fn work(report: &PassReport) -> String {
    let PassReport { after, collapsed, cpu, longest, .. } = report;
    let mut line = format!(
        "{} of {} on huge pages; {collapsed} ranges collapsed in {:.1} s \
         ({:.2} s CPU, longest {:.1} ms)",
        Size(after.huge as usize),
        Size(after.all as usize),
        report.elapsed.as_secs_f64(),
        cpu.as_secs_f64(),
        millis(*longest),
    );
    line.push_str(&left(report));
    if let Some(hindrance) = &report.hindrance {
        line.push_str(&format!("; ended early: {hindrance}"));
    }
    line
}

/// Why memory is on small pages.
fn left(report: &PassReport) -> String {
    let bytes = |bytes: u64| Size(bytes as usize);
    let holes = match report.is_limit_unknown {
        true => "with holes: not filled, because the group's memory limit cannot be read",
        false => "with too many holes (--density)",
    };
    let refused = report.refused.iter().map(|(reason, count)| format!("{count} refused: {reason}"));
    let sparse = (report.sparse, format!("in 2 MiB {holes}"));
    let edges = (report.edges, "at the ends of mappings".to_owned());
    let swapped = (report.swapped, "swapped out".to_owned());
    let excluded = report.excluded.iter().map(|(reason, bytes)| (*bytes, reason.to_string()));
    let reasons = [sparse, edges, swapped].into_iter().chain(excluded);
    let all = reasons.filter(|&(count, _)| count > 0);
    let all = all.map(|(count, reason)| format!("{} {reason}", bytes(count)));
    refused.chain(all).map(|part| format!("; {part}")).collect()
}

#[cfg(test)]
mod tests {
    use hugekit_tend::{Excluded, Hindrance, Refusal};

    use super::*;

    #[test]
    fn pass_that_collapses_nothing_says_why() {
        let mut report = PassReport::default();
        assert!(!left(&report).contains(';'), "{}", left(&report));
        report.refused = vec![(Refusal::NoHugePage, 7)];
        report.excluded = vec![(Excluded::Locked, 3 << 20)];
        (report.sparse, report.edges, report.swapped) = (2 << 20, 4096, 8192);
        report.hindrance = Some(Hindrance::Stuck);
        let said = of_pass(&report);
        for part in [
            "; 7 refused: no huge page is free",
            "; 2MiB in 2 MiB with too many holes (--density)",
            "; 4KiB at the ends of mappings",
            "; 8KiB swapped out",
            "; 3MiB locked (mlock)",
            "; ended early: the process keeps the kernel waiting",
        ] {
            assert!(said.contains(part), "{said}");
        }
        report.is_limit_unknown = true;
        assert!(left(&report).contains("memory limit cannot be read"));
    }
}
