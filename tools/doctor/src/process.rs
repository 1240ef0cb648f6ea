//! One process: what its forks cost, whether tending would help, and what stands in the way.

use std::fmt::Write;
use std::time::Duration;

use hugekit::error_chain;
use hugekit_tend::{Excluded, Extent, ForkCost, Hindrance, Outlook, TendError};
use serde::Serialize;

use crate::line::{Line, Topic};
use crate::units;

const TOPIC: Topic = Topic("process");

/// Less than this is not worth a tender, however many times as fast a fork would be.
const WORTH_IT: Duration = Duration::from_millis(1);

/// More than these are named: of memory that was given back, whose tables each fork copies.
const MANY_TABLES: u64 = 1 << 20;

/// Less than this on small pages is no reason to start a process again.
const MUCH_MEMORY: u64 = 256 << 20;

/// The explanation of the figures of forks.
const ESTIMATES: &str = "CPU time, calculated from the page tables of the process and from forks \
    of this command; a fork that waits for a CPU or for memory takes longer";

/// The fraction of a process's memory with holes, 1/10, from which a remedy is printed.
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
/// The forks' times are estimates, for which the calling process is forked 128 times
/// ([`ForkCost::measure`]).
///
/// # Errors
/// There is no such process, its number is that of a thread, or the caller may not examine it.
pub fn examine_process(pid: i32) -> Result<ProcessReport, TendError> {
    let lines = match Outlook::of(pid) {
        Ok(outlook) => lines(pid, &outlook, ForkCost::measure().ok()),
        Err(error) if is_out_of_reach(&error) => return Err(error),
        Err(error) => vec![obstacle(&error)],
    };
    Ok(ProcessReport { schema: "hugekit-doctor-process/1", pid, lines })
}

/// Nothing can be said of it.
fn is_out_of_reach(error: &TendError) -> bool {
    matches!(
        error,
        TendError::Gone { .. }
            | TendError::Thread { .. }
            | TendError::Kernel { .. }
            | TendError::NotPermitted { .. }
    )
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
    lines.extend(cost.map(|_| TOPIC.note("estimates", ESTIMATES)));
    lines.extend(outlook.forked_from.map(child_of));
    if outlook.filled > 0 {
        let value =
            format!("fills holes of {}: the process grows by it", units::bytes(outlook.filled));
        lines.push(TOPIC.note("tending", value));
    }
    if outlook.sparse > 0 {
        let value = format!(
            "{} in 2 MiB ranges with too many holes: not collapsed",
            units::bytes(outlook.sparse)
        );
        let line = TOPIC.note("holes", value);
        lines.push(if outlook.is_limit_unknown {
            line.remedy("run the tender where it can read the memory limit of the process's cgroup")
        } else if !has_many_holes(outlook) {
            line
        } else {
            line.remedy(format!(
                "hugekit tend --growth 50 {pid} fills more holes: the process has up to 50 % more memory"
            ))
        });
    }
    let left = |&(reason, bytes): &(Excluded, u64)| {
        TOPIC.note("left as it is", format!("{} {}", units::bytes(bytes), reason))
    };
    lines.extend(outlook.excluded.iter().map(left));
    lines.extend(allocator(outlook));
    lines.extend(outlook.hindrance.as_ref().map(hindrance));
    lines
}

/// New memory is then on huge pages at once, and a tender repairs what saves split.
fn allocator(outlook: &Outlook) -> Option<Line> {
    let gain = outlook.tended.huge.saturating_sub(outlook.now.huge);
    (outlook.could_ask_for_huge_pages && gain >= MUCH_MEMORY).then(|| {
        let value = "jemalloc, which can ask for huge pages itself, without root; saves split them, and only a tender \
                     joins them again";
        TOPIC.note("allocator", value).remedy(
            "start the process with MALLOC_CONF=thp:always in its environment, and tend it",
        )
    })
}

fn has_many_holes(outlook: &Outlook) -> bool {
    outlook.sparse > 0 && outlook.sparse >= outlook.now.all / MANY_HOLES
}

fn memory(now: Extent) -> String {
    let mut text = format!(
        "{} private, {} of it on huge pages",
        units::bytes(now.all),
        units::bytes(now.huge)
    );
    if now.spare_tables > MANY_TABLES {
        let _ = write!(
            text,
            "; {} of page tables that are nearly empty",
            units::bytes(now.spare_tables)
        );
    }
    text
}

fn fork(pid: i32, outlook: &Outlook, cost: ForkCost) -> Line {
    let (now, tended) = (cost.estimate(outlook.now), cost.estimate(outlook.tended));
    let millis = |duration: Duration| format!("{:.1} ms", duration.as_secs_f64() * 1e3);
    let (now_in, tended_in) = (millis(now), millis(tended));
    let value = format!("takes about {now_in} of CPU time, tended about {tended_in}");
    if outlook.is_tended {
        TOPIC.ok("fork", format!("{value}; it is tended"))
    } else if let Some(Hindrance::Child { .. }) = outlook.hindrance {
        // What the child shares is not counted as memory that a tender would collapse.
        let again = format!("hugekit doctor --pid {pid}    # again when the child has ended");
        TOPIC.limited("fork", format!("takes about {now_in} of CPU time")).remedy(again)
    } else if now > 2 * tended && now > tended + WORTH_IT {
        TOPIC.limited("fork", value).remedy(tend(pid, &outlook.name))
    } else {
        let why = match has_many_holes(outlook) {
            true => "little to gain while holes are not filled",
            false => "nothing to gain",
        };
        TOPIC.ok("fork", format!("{value}: {why}"))
    }
}

/// By the name, which is still right when the server was started again. A name that a shell would change is not used.
fn tend(pid: i32, name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_plain) {
        format!("hugekit tend --name {name}    # all of this name; only this one: tend {pid}")
    } else {
        format!("hugekit tend {pid}    # again after each start of the process")
    }
}

/// A save forks such a child, which ends soon.
fn child_of(parent: i32) -> Line {
    let value = format!("of process {parent}, which has forked it (to save?): examine {parent}");
    TOPIC.limited("a child", value).remedy(format!("hugekit doctor --pid {parent}"))
}

/// A tender would wait.
fn hindrance(hindrance: &Hindrance) -> Line {
    let remedy = match hindrance {
        Hindrance::NoFreeHugePages { .. } => "echo 1 > /proc/sys/vm/compact_memory",
        Hindrance::LittleMemory { .. } => "end other programs, or lower --keep-free",
        Hindrance::ControlGroup { .. } => "raise the memory limit of the control group",
        Hindrance::SwitchedOff => "start the process without PR_SET_THP_DISABLE",
        Hindrance::Gone => "none: the process has ended",
        Hindrance::Child { .. }
        | Hindrance::Pressure { .. }
        | Hindrance::Swapping { .. }
        | Hindrance::Loading { .. }
        | Hindrance::Stopped
        | Hindrance::Stuck
        | Hindrance::Unreadable
        | Hindrance::NoThread => "none: a tender waits and continues later",
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
        ForkCost {
            process: nanos(100_000),
            base_page: nanos(50),
            huge_page: nanos(500),
            spare_table: nanos(300),
        }
    }

    fn verdict(outlook: &Outlook) -> (Verdict, Option<String>) {
        let line = fork(7, outlook, cost());
        (line.verdict, line.remedy)
    }

    #[test]
    fn tending_is_advised_where_it_saves_much_and_nowhere_else() {
        let small = Extent { all: 2048 * MIB, ..Extent::default() };
        let huge = Extent { huge: 2048 * MIB, ..small };
        let advised = (Verdict::Limited, Some(tend(7, "")));
        assert_eq!(verdict(&outlook(small, huge)), advised);
        assert_eq!(verdict(&outlook(huge, huge)), (Verdict::Ok, None), "it is so already");
        assert_eq!(verdict(&outlook(small, small)), (Verdict::Ok, None), "it cannot be");
        let little = Extent { all: 16 * MIB, ..Extent::default() };
        let tended = Extent { huge: 16 * MIB, ..little };
        assert_eq!(verdict(&outlook(little, tended)), (Verdict::Ok, None), "it saves little");
        let mut beside = outlook(small, huge);
        beside.hindrance = Some(Hindrance::Child { count: 1 });
        let again = "hugekit doctor --pid 7    # again when the child has ended".to_owned();
        assert_eq!(verdict(&beside), (Verdict::Limited, Some(again)), "a save runs");
        beside.is_tended = true;
        assert_eq!(verdict(&beside), (Verdict::Ok, None), "it is tended");
    }

    #[test]
    fn what_keeps_a_process_from_being_tended_has_a_line_and_a_remedy() {
        let off = obstacle(&TendError::SwitchedOff { pid: 7 });
        assert!(off.verdict == Verdict::Missing && off.remedy.unwrap().contains("disable-thp"));
        let mut short = outlook(Extent::default(), Extent::default());
        (short.sparse, short.forked_from) = (8 * MIB, Some(6));
        short.excluded = vec![(Excluded::Locked, MIB)];
        short.hindrance = Some(Hindrance::NoFreeHugePages { free: 0, available: 0 });
        let lines = lines(7, &short, None);
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        let expected =
            ["7", "memory", "fork", "a child", "holes", "left as it is", "a tender would wait"];
        assert_eq!(names, expected);
        assert!(lines.last().unwrap().remedy.as_ref().unwrap().contains("compact_memory"));
    }

    #[test]
    fn setting_of_the_allocator_is_advised_for_much_memory_on_small_pages() {
        let all = 1024 * MIB;
        let (small, huge) =
            (Extent { all, ..Extent::default() }, Extent { all, huge: all, ..Extent::default() });
        let advice = |now, tended, could_ask| {
            let mut outlook = outlook(now, tended);
            outlook.could_ask_for_huge_pages = could_ask;
            allocator(&outlook).and_then(|line| line.remedy)
        };
        assert!(advice(small, huge, true).unwrap().contains("MALLOC_CONF=thp:always"));
        assert_eq!(advice(small, huge, false), None);
        assert_eq!(advice(huge, huge, true), None, "it is on huge pages already");
    }

    #[test]
    fn tending_is_advised_by_a_name_that_a_shell_leaves_as_it_is() {
        assert!(tend(7, "redis-server").starts_with("hugekit tend --name redis-server  "));
        for name in ["", "-x", "a b", "a;b", "$(a)", "a/b", "\u{e9}"] {
            assert!(tend(7, name).starts_with("hugekit tend 7  "), "{name}");
        }
    }

    #[test]
    fn own_process_is_examined_and_one_that_is_gone_is_an_error() {
        match examine_process(std::process::id() as i32) {
            Err(TendError::NotPermitted { .. }) => {}
            report => assert!(!report.unwrap().lines.is_empty()),
        }
        assert!(matches!(examine_process(i32::MAX), Err(TendError::Gone { .. })));
    }
}
