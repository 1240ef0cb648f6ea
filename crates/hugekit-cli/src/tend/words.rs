//! What a tender has to say, in a line.

use std::time::Duration;

use hugekit_lab::size::Size;
use hugekit_tend::{ForkTime, PassReport, Status};

/// Of a process that is tended.
pub(super) fn of_status(status: &Status) -> String {
    let children = match status.children {
        0 => String::new(),
        count => format!(", {count} of them alive: waiting"),
    };
    let last = status.last.as_ref().map_or(String::new(), |last| format!("; {}", work(last)));
    let took = status.last_fork.map_or(String::new(), |took| match took {
        ForkTime::Told(took) => format!(", the last in {:.1} ms by its own word", millis(took)),
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
        "{} of {} on huge pages; {collapsed} ranges collapsed in {:.1} s, {:.2} s of a CPU, {:.1} ms at most for one",
        Size(after.huge as usize),
        Size(after.all as usize),
        report.elapsed.as_secs_f64(),
        cpu.as_secs_f64(),
        millis(*longest),
    );
    for (reason, count) in &report.refused {
        line.push_str(&format!("; {count} refused: {reason}"));
    }
    if let Some(hindrance) = &report.hindrance {
        line.push_str(&format!("; ended early: {hindrance}"));
    }
    line
}
