//! What a tender tells people.

use std::time::Duration;

use hugekit_machine::size::Size;
use hugekit_tend::{ForkCost, Hindrance, PassReport, Status};

use super::news::{News, NewsEntry};
use hugekit_terminal::text::count;

/// Returns the news of a child that came or went.
pub(super) fn of_forks(status: &Status) -> News {
    let children = match status.children {
        0 => String::new(),
        count => format!("; waiting for the end of children that share the memory: {count}"),
    };
    let line = format!("{} ({}): {}{children}", status.name, status.pid, forks(status));
    News::new(&line, Vec::new())
}

/// When the tending of a process begins.
pub(super) fn of_begin(pid: i32, name: &str) -> News {
    News::new(&format!("{name} ({pid}): tending"), Vec::new())
}

/// When a process has ended, or has started another program.
pub(super) fn of_end(pid: i32, name: &str) -> News {
    News::new(&format!("{name} ({pid}): ended"), Vec::new())
}

/// After the first pass of `hugekit tend` over a process.
pub(super) fn of_first_pass(status: &Status, pass: &PassReport, cost: Option<ForkCost>) -> News {
    News::new(&headline_of(status, pass), entries(pass, cost, WHILE_TENDED))
}

/// After a later one. It names the memory that is left out if that differs from `told`, or if the kernel refused a part.
pub(super) fn of_later_pass(
    status: &Status,
    pass: &PassReport,
    cost: Option<ForkCost>,
    told: &[String],
) -> News {
    let mut entries = entries(pass, cost, WHILE_TENDED);
    if pass.refused.is_empty() && left_out(pass) == told {
        entries.retain(|&(name, _)| name != LEFT_OUT);
    }
    News::new(&headline_of(status, pass), entries)
}

fn headline_of(status: &Status, pass: &PassReport) -> String {
    headline(&format!("{} ({}), pass {}", status.name, status.pid, status.passes), pass)
}

/// After `hugekit tend --once`.
pub(super) fn of_pass(pass: &PassReport, cost: Option<ForkCost>) -> News {
    News::new(&headline(&pass.pid.to_string(), pass), entries(pass, cost, AFTER_ONE_PASS))
}

fn headline(name: &str, pass: &PassReport) -> String {
    let (huge, all) = (Size(pass.after.huge as usize), Size(pass.after.all as usize));
    format!("{name}: {huge} of {all} on huge pages after {:.1} s", pass.elapsed.as_secs_f64())
}

const LEFT_OUT: &str = "left out";

/// Says how long the effect stays.
const WHILE_TENDED: &str = "stays while it is tended";
const AFTER_ONE_PASS: &str = "stays until writes beside a forked child split the pages";

fn entries(pass: &PassReport, cost: Option<ForkCost>, lasts: &str) -> Vec<NewsEntry> {
    let mut entries = Vec::new();
    // The memory of a process that is gone says nothing of its forks.
    let cost = cost.filter(|_| pass.hindrance != Some(Hindrance::Gone));
    entries.extend(cost.map(|cost| ("fork", gain(pass, cost, lasts))));
    if pass.collapsed > 0 {
        entries.push(("cost", costs(pass)));
    }
    entries.extend(left_out(pass).into_iter().map(|reason| (LEFT_OUT, reason)));
    entries.extend(pass.hindrance.as_ref().map(|why| ("ended early", why.to_string())));
    entries
}

/// By the page tables before and after the pass.
fn gain(pass: &PassReport, cost: ForkCost, lasts: &str) -> String {
    let [before, now] = [pass.before, pass.after].map(|memory| cost.estimate(memory));
    match pass.collapsed {
        0 => format!("about {} of CPU time", millis(now)),
        _ if now >= before => {
            format!("{}: it has grown", change(before, now))
        }
        _ => format!("{}; {lasts}", change(before, now)),
    }
}

fn change(before: Duration, now: Duration) -> String {
    format!("before about {}, now about {} of CPU time", millis(before), millis(now))
}

fn costs(pass: &PassReport) -> String {
    let grown = match pass.filled {
        0 => String::new(),
        bytes => format!(", {} of holes filled", Size(bytes as usize)),
    };
    let (cpu, longest) = (pass.cpu.as_secs_f64(), millis(pass.longest));
    let ranges = count(pass.collapsed, "range");
    format!("{ranges} moved, {cpu:.2} s of CPU time, longest {longest}{grown}{}", gathered(pass))
}

/// Few blocks were free.
fn gathered(pass: &PassReport) -> String {
    match pass.gathering {
        Duration::ZERO => String::new(),
        time => {
            let blocks = count(pass.gathered, "free block");
            format!(", {blocks} of 2 MiB gathered in {:.1} s", time.as_secs_f64())
        }
    }
}

fn forks(status: &Status) -> String {
    let took = match status.last_fork {
        Some(took) => format!(", the last in about {} of CPU time", millis(took)),
        None => String::new(),
    };
    format!("{} seen{took}", count(status.forks, "fork"))
}

fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1e3)
}

/// Memory on small pages, each with its reason.
pub(super) fn left_out(pass: &PassReport) -> Vec<String> {
    let holes = match pass.is_limit_unknown {
        true => "with holes: not filled, because the group's memory limit cannot be read",
        false => "with too many holes (--growth, --density)",
    };
    let refused = pass
        .refused
        .iter()
        .map(|(reason, ranges)| format!("{}: {reason}", count(*ranges, "range")));
    let sparse = (pass.sparse, format!("in 2 MiB {holes}"));
    let waiting = (pass.waiting, "in 2 MiB that lost pages soon after each move".to_owned());
    let edges = (pass.edges, "at the ends of mappings".to_owned());
    let swapped = (pass.swapped, "swapped out".to_owned());
    let new = (pass.grown(), "that came while the pass ran".to_owned());
    let excluded = pass.excluded.iter().map(|(reason, bytes)| (*bytes, reason.to_string()));
    let mut reasons: Vec<_> =
        [sparse, waiting, edges, swapped, new].into_iter().chain(excluded).collect();
    reasons.retain(|&(bytes, _)| bytes > 0);
    reasons.sort_by_key(|&(bytes, _)| std::cmp::Reverse(bytes));
    let reasons =
        reasons.into_iter().map(|(bytes, reason)| format!("{} {reason}", Size(bytes as usize)));
    refused.chain(reasons).collect()
}

#[cfg(test)]
mod tests {
    use hugekit_tend::{Excluded, Extent, TendRefusal};

    use super::*;
    use hugekit_terminal::text::COLUMNS;

    const MIB: u64 = 1 << 20;

    fn cost() -> ForkCost {
        let nanos = Duration::from_nanos;
        ForkCost {
            process: nanos(0),
            base_page: nanos(100),
            huge_page: nanos(2000),
            spare_table: nanos(0),
        }
    }

    fn pass() -> PassReport {
        let before = Extent { all: 2048 * MIB, ..Extent::default() };
        let after = Extent { huge: 2040 * MIB, ..before };
        PassReport { before, after, collapsed: 1020, filled: 8192, ..PassReport::default() }
    }

    /// Without the ends of lines.
    fn joined(news: &News) -> String {
        news.in_columns().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn pass_has_the_estimated_fork_time_before_and_after() {
        let text = joined(&of_pass(&pass(), Some(cost())));
        let fork = "fork before about 52.4 ms, now about 2.2 ms of CPU time; stays until writes";
        assert!(text.contains(fork), "{text}");
        assert!(text.contains("1020 ranges moved") && text.contains("8KiB of holes filled"));
        let gone = PassReport { hindrance: Some(Hindrance::Gone), ..pass() };
        assert!(!joined(&of_pass(&gone, Some(cost()))).contains("fork"), "it forks no more");
        assert!(!joined(&of_pass(&pass(), None)).contains("fork"), "without a measurement");
        let grown = PassReport { before: Extent { all: 50 * MIB, ..Extent::default() }, ..pass() };
        let grown = PassReport { after: Extent { huge: 50 * MIB, ..pass().after }, ..grown };
        let text = joined(&of_pass(&grown, Some(cost())));
        assert!(text.contains("2.0GiB that came while the pass ran"), "{text}");
        assert!(text.contains(": it has grown") && !text.contains("stays"), "{text}");
        let nothing = PassReport { collapsed: 0, ..pass() };
        let text = joined(&of_pass(&nothing, Some(cost())));
        assert!(text.contains("about 2.2 ms") && !text.contains("before"), "{text}");
    }

    #[test]
    fn memory_that_is_left_out_has_its_reason_and_the_largest_comes_first() {
        let mut report = PassReport::default();
        assert!(left_out(&report).is_empty());
        report.refused = vec![(TendRefusal::NoHugePage, 7)];
        report.excluded = vec![(Excluded::Locked, 3 * MIB)];
        (report.sparse, report.edges, report.swapped) = (2 * MIB, 4096, 8192);
        report.hindrance = Some(Hindrance::Stuck);
        let expected = [
            "7 ranges: no huge page is free",
            "3MiB locked (mlock)",
            "2MiB in 2 MiB with too many holes (--growth, --density)",
            "8KiB swapped out",
            "4KiB at the ends of mappings",
        ];
        assert_eq!(left_out(&report), expected);
        assert!(
            joined(&of_pass(&report, None)).contains("ended early the process keeps the kernel")
        );
        report.is_limit_unknown = true;
        assert!(left_out(&report)[2].contains("memory limit cannot be read"));
    }

    #[test]
    fn text_fits_the_terminal_and_is_one_line_elsewhere() {
        let mut last = pass();
        last.excluded = vec![(Excluded::SharedOrFile, MIB), (Excluded::NoHugePages, 1 << 40)];
        (last.is_limit_unknown, last.sparse) = (true, 1 << 40);
        last.hindrance = Some(Hindrance::Pressure { percent: 12.5 });
        let status = Status {
            pid: i32::MAX,
            name: "redis-server-00".to_owned(),
            passes: 1000,
            forks: 1000,
            children: 1000,
            last_fork: Some(Duration::from_millis(1234)),
            last: None,
        };
        let first = of_first_pass(&status, &last, Some(cost()));
        assert!(joined(&first).contains("redis-server-00 (2147483647), pass 1000:"));
        for news in [first, of_forks(&status)] {
            let (text, line) = (news.in_columns(), news.in_a_line());
            assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
            assert_eq!(line.lines().count(), 1, "{line}");
        }
        let forks = "1000 forks seen, the last in about 1234.0 ms of CPU time";
        assert!(joined(&of_forks(&status)).contains(forks));
        let told = left_out(&last);
        let later = |last: &PassReport| joined(&of_later_pass(&status, last, None, &told));
        assert!(!later(&last).contains("(MADV_NOHUGEPAGE)"));
        last.refused = vec![(TendRefusal::NoHugePage, 1)];
        assert!(later(&last).contains("1 range: no huge page is free"));
    }
}
