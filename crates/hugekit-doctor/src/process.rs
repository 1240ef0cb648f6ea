//! One process: what its forks cost, whether tending would help, and what stands in the way.

use std::time::Duration;

use hugekit::error_chain;
use hugekit_tend::{Excluded, Extent, ForkCost, Hindrance, Outlook, TendError};
use serde::Serialize;

use crate::line::{Line, Topic};
use crate::units;

const TOPIC: Topic = Topic("process");

/// Less than this is not worth a tender, however many times as fast a fork would be.
const WORTH_IT: Duration = Duration::from_millis(1);

/// Of a process's memory, one part in so many with holes is worth a word on what to do about it.
const MANY_HOLES: u64 = 10;

/// All that the doctor has to say of a process; serialised, what `hugekit doctor --pid PID --json` prints.
#[derive(Debug, Serialize)]
pub struct ProcessReport {
    /// Name and version of this form.
    pub schema: &'static str,
    /// Which process.
    pub pid: i32,
    /// The findings.
    pub lines: Vec<Line>,
}

/// Examines a process.
///
/// The forks' times are estimates, for which the calling process is forked fifteen times
/// ([`ForkCost::measure`]).
///
/// # Errors
/// There is no such process, or its number is that of one of its threads.
pub fn examine_process(pid: i32) -> Result<ProcessReport, TendError> {
    let lines = match Outlook::of(pid) {
        Ok(outlook) => lines(pid, &outlook, ForkCost::measure().ok()),
        Err(error @ (TendError::Gone { .. } | TendError::Thread { .. })) => return Err(error),
        Err(error) => vec![obstacle(&error)],
    };
    Ok(ProcessReport { schema: "hugekit-doctor-process/1", pid, lines })
}

fn lines(pid: i32, outlook: &Outlook, cost: Option<ForkCost>) -> Vec<Line> {
    let mut lines = vec![
        TOPIC.ok(format!("{pid}"), outlook.name.clone()),
        TOPIC.ok("memory", memory(outlook.now)),
        cost.map_or_else(
            || TOPIC.unknown("fork", "cannot be measured: no process could be forked"),
            |cost| fork(pid, outlook, cost),
        ),
    ];
    if outlook.sparse > 0 {
        let value = format!(
            "{} in 2 MiB ranges with too many holes: not collapsed",
            units::bytes(outlook.sparse)
        );
        let line = TOPIC.note("holes", value);
        lines.push(if outlook.is_limit_unknown {
            line.remedy("run the tender where it can read the memory limit of the process's cgroup")
        } else if outlook.sparse < outlook.now.all / MANY_HOLES {
            line
        } else {
            line.remedy(format!(
                "hugekit tend --density 50 {pid} collapses more, and fills the holes with zeroes"
            ))
        });
    }
    let left = |&(reason, bytes): &(Excluded, u64)| {
        TOPIC.note("left as it is", format!("{} {}", units::bytes(bytes), reason))
    };
    lines.extend(outlook.excluded.iter().map(left));
    lines.extend(outlook.hindrance.as_ref().map(hindrance));
    lines
}

fn memory(now: Extent) -> String {
    format!("{} private, {} of it on huge pages", units::bytes(now.all), units::bytes(now.huge))
}

fn fork(pid: i32, outlook: &Outlook, cost: ForkCost) -> Line {
    let (now, tended) = (cost.estimate(outlook.now), cost.estimate(outlook.tended));
    let millis = |duration: Duration| format!("{:.1} ms", duration.as_secs_f64() * 1e3);
    let value = format!("takes about {}, tended about {}", millis(now), millis(tended));
    if outlook.is_tended {
        TOPIC.ok("fork", format!("{value}; it is tended"))
    } else if now > 2 * tended && now > tended + WORTH_IT {
        TOPIC.limited("fork", value).remedy(format!("hugekit tend {pid}"))
    } else {
        TOPIC.ok("fork", format!("{value}: nothing to gain"))
    }
}

/// A tender would wait.
fn hindrance(hindrance: &Hindrance) -> Line {
    let remedy = match hindrance {
        Hindrance::NoFreeHugePages { .. } => "echo 1 > /proc/sys/vm/compact_memory",
        Hindrance::ControlGroup { .. } => "raise the memory limit of the control group",
        _ => "none: a tender waits and continues later",
    };
    TOPIC.limited("a tender would wait", hindrance.to_string()).remedy(remedy)
}

/// It cannot be tended.
fn obstacle(error: &TendError) -> Line {
    let line = TOPIC.missing("tending", error_chain(error).to_string());
    match error.remedy() {
        Some(remedy) => line.remedy(remedy),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Verdict;

    const MIB: u64 = 1 << 20;

    fn outlook(now: Extent, tended: Extent) -> Outlook {
        let mut outlook = Outlook::default();
        (outlook.now, outlook.tended) = (now, tended);
        outlook
    }

    fn cost() -> ForkCost {
        let nanos = Duration::from_nanos;
        ForkCost { process: nanos(100_000), base_page: nanos(50), huge_page: nanos(500) }
    }

    fn verdict(outlook: &Outlook) -> (Verdict, Option<String>) {
        let line = fork(7, outlook, cost());
        (line.verdict, line.remedy)
    }

    #[test]
    fn tending_is_advised_where_it_saves_much_and_nowhere_else() {
        let small = Extent { huge: 0, all: 2048 * MIB };
        let huge = Extent { huge: 2048 * MIB, all: 2048 * MIB };
        let advised = (Verdict::Limited, Some("hugekit tend 7".to_owned()));
        assert_eq!(verdict(&outlook(small, huge)), advised);
        assert_eq!(verdict(&outlook(huge, huge)), (Verdict::Ok, None), "it is so already");
        assert_eq!(verdict(&outlook(small, small)), (Verdict::Ok, None), "it cannot be");
        let little = Extent { huge: 0, all: 16 * MIB };
        let tended = Extent { huge: 16 * MIB, all: 16 * MIB };
        assert_eq!(verdict(&outlook(little, tended)), (Verdict::Ok, None), "it saves little");
        let mut beside = outlook(small, huge);
        beside.is_tended = true;
        assert_eq!(verdict(&beside), (Verdict::Ok, None), "it is tended");
    }

    #[test]
    fn what_keeps_a_process_from_being_tended_has_a_line_and_a_remedy() {
        let off = obstacle(&TendError::SwitchedOff { pid: 7 });
        assert!(off.verdict == Verdict::Missing && off.remedy.unwrap().contains("disable-thp"));
        let mut short = outlook(Extent::default(), Extent::default());
        short.sparse = 8 * MIB;
        short.excluded = vec![(Excluded::Locked, MIB)];
        short.hindrance = Some(Hindrance::NoFreeHugePages { free: 0 });
        let lines = lines(7, &short, None);
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        let expected = ["7", "memory", "fork", "holes", "left as it is", "a tender would wait"];
        assert_eq!(names, expected);
        assert!(lines.last().unwrap().remedy.as_ref().unwrap().contains("compact_memory"));
    }

    #[test]
    fn own_process_is_examined_and_one_that_is_gone_is_an_error() {
        let report = examine_process(std::process::id() as i32).unwrap();
        assert!(!report.lines.is_empty());
        assert!(matches!(examine_process(i32::MAX), Err(TendError::Gone { .. })));
    }
}
