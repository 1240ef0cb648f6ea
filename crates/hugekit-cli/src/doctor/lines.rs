//! All lines in the order of the report.

use super::facts::Facts;
use super::line::Line;
use super::routines::{Row, routine_lines};
use super::{caches, cpus, kvm, machine, memory, pools, thp, userfaultfd};

pub(super) fn all<'a>(facts: &Facts, routines: impl IntoIterator<Item = Row<'a>>) -> Vec<Line> {
    let topics = [
        machine::lines,
        caches::lines,
        cpus::lines,
        memory::lines,
        pools::lines,
        thp::lines,
        userfaultfd::lines,
        kvm::lines,
    ];
    let facts_lines = topics.iter().flat_map(|lines| lines(facts));
    facts_lines.chain(routine_lines(routines)).collect()
}
