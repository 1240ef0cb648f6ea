//! One pass, for scripts: the exit status is 0 only if every process had all of its pass.

use std::sync::atomic::AtomicBool;

use anyhow::{anyhow, bail};
use hugekit::error_chain;
use hugekit_machine::size::Size;
use hugekit_tend::{Hindrance, PassReport, TendError, Tender};

use super::stamp::say;
use super::wanted::{self, Wanted};
use hugekit_terminal::outcome::Remedied;

/// # Errors
/// No process can be tended, one that is named by its number cannot, a pass ended early, or a process grew meanwhile. All
/// others had their pass.
pub(super) fn pass(
    mut tender: Tender,
    wanted: &Wanted,
    stop: &AtomicBool,
    print: &mut dyn FnMut(&PassReport) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let refused = add(&mut tender, wanted)?;
    let reports = tender.pass(stop)?;
    for report in &reports {
        print(report)?;
    }
    outcome(&reports, refused)
}

fn outcome(reports: &[PassReport], refused: usize) -> anyhow::Result<()> {
    match reports.iter().find_map(|report| Some((report, report.hindrance?))) {
        Some((report, hindrance)) => Err(early(report, hindrance)),
        None if refused > 0 => bail!("processes that were not tended: {refused}"),
        None => reports.iter().find(|report| report.has_grown()).map_or(Ok(()), |r| Err(grown(r))),
    }
}

/// Adds the wanted processes. Returns how many of those that are named by their numbers cannot be tended.
fn add(tender: &mut Tender, wanted: &Wanted) -> anyhow::Result<usize> {
    let mut refused = Vec::new();
    for &pid in &wanted.pids {
        match tender.add(pid) {
            Ok(()) => wanted.check_parent(pid)?,
            Err(error) => refused.push(error),
        }
    }
    let mut found = wanted::find_processes(&wanted.names, &wanted.groups);
    found.retain(|&pid| pid != std::process::id() as i32);
    if found.is_empty() && wanted.pids.is_empty() {
        bail!("no process to tend: {}", wanted.unmatched());
    }
    if wanted.pids.len() == 1
        && found.is_empty()
        && let Some(error) = refused.pop()
    {
        return Err(match wanted::tender_of(&error) {
            Some(other) => anyhow!("{error} (process {other})"),
            None => error.into(),
        });
    }
    for error in &refused {
        say_of(error);
    }
    for error in found.into_iter().filter_map(|pid| tender.add(pid).err()) {
        if !matches!(error, TendError::Kernel { .. }) {
            say_of(&error);
        }
    }
    if tender.processes().is_empty() {
        bail!("none of the processes can be tended");
    }
    Ok(refused.len())
}

fn say_of(error: &TendError) {
    let other = wanted::tender_of(error).map(|other| format!(" (process {other})"));
    say(&format!("note: {:#}{}", error_chain(error), other.unwrap_or_default()));
}

fn early(report: &PassReport, hindrance: Hindrance) -> anyhow::Error {
    let (huge, all) = (Size(report.after.huge as usize), Size(report.after.all as usize));
    let message = format!(
        "the pass over {} ended early: {huge} of {all} are on huge pages; {hindrance}",
        report.pid
    );
    let again = match hindrance {
        Hindrance::SwitchedOff => "start the process without PR_SET_THP_DISABLE",
        Hindrance::Loading { .. } => "run it again when the program has loaded its data",
        Hindrance::Gone => return anyhow::Error::msg(message),
        Hindrance::Child { .. } => {
            "run it again when its children have ended: a save, or its workers"
        }
        Hindrance::ControlGroup { .. } => "raise the memory limit, or lower --keep-free",
        Hindrance::LittleMemory { .. } => "end other programs, or lower --keep-free",
        Hindrance::NoFreeHugePages { .. } => {
            "run it again after: echo 1 > /proc/sys/vm/compact_memory"
        }
        Hindrance::Pressure { .. }
        | Hindrance::Swapping { .. }
        | Hindrance::Stopped
        | Hindrance::Stuck
        | Hindrance::Unreadable
        | Hindrance::NoThread => "run it again later",
    };
    Remedied { message, remedy: again.to_owned() }.into()
}

fn grown(report: &PassReport) -> anyhow::Error {
    let (pid, came) = (report.pid, Size(report.grown() as usize));
    let message = format!("the pass over {pid} left out {came} that came while it ran");
    Remedied { message, remedy: "run it again when the program has loaded its data".to_owned() }
        .into()
}

#[cfg(test)]
mod tests {
    use hugekit_tend::Extent;

    use super::*;

    #[test]
    fn pass_that_ended_early_says_how_far_it_came_and_when_to_run_it_again() {
        let after = Extent { huge: 10 << 20, all: 64 << 20, ..Extent::default() };
        let report = PassReport { pid: 7, after, ..PassReport::default() };
        let error = early(&report, Hindrance::Child { count: 1 });
        let said = error.to_string();
        assert!(
            said.starts_with("the pass over 7 ended early: 10MiB of 64MiB are on huge pages"),
            "{said}"
        );
        assert!(error.downcast_ref::<Remedied>().unwrap().remedy.contains("children have ended"));
        let error = early(&report, Hindrance::Pressure { percent: 9.0 });
        assert_eq!(error.downcast_ref::<Remedied>().unwrap().remedy, "run it again later");
        assert!(early(&report, Hindrance::Gone).downcast_ref::<Remedied>().is_none());
    }

    #[test]
    fn pass_over_a_process_that_grew_meanwhile_says_by_how_much() {
        let [before, after] =
            [40 << 20, 64 << 20].map(|all| Extent { huge: 10 << 20, all, ..Extent::default() });
        let report = PassReport { pid: 7, before, after, ..PassReport::default() };
        let said = outcome(&[report], 0).unwrap_err().to_string();
        assert!(said.starts_with("the pass over 7 left out 24MiB that came"), "{said}");
    }
}
