//! Which processes share a target's memory: forked children that have not started another program, and theirs.

use std::collections::HashMap;

use procfs::process::Process;

use crate::target::{Program, Target};

/// Those that were seen, until they have ended: a child's children go on after it, with another parent.
#[derive(Debug, Default)]
pub(crate) struct Relatives {
    sharing: HashMap<i32, Process>,
    /// How many there were, ever.
    forks: u64,
}

impl Relatives {
    /// Looks who shares the memory now; how many.
    pub(crate) fn look(&mut self, target: &Target) -> usize {
        let program = target.program();
        self.sharing.retain(|_, process| shares(process, program));
        let mut parents: Vec<Process> = Process::new(target.pid()).into_iter().collect();
        parents.extend(self.sharing.keys().filter_map(|&pid| Process::new(pid).ok()));
        while let Some(parent) = parents.pop() {
            for pid in children(&parent) {
                if self.sharing.contains_key(&pid) {
                    continue;
                }
                let Ok(child) = Process::new(pid) else { continue };
                if shares(&child, program) {
                    self.forks += 1;
                    parents.extend(Process::new(pid));
                    self.sharing.insert(pid, child);
                }
            }
        }
        self.sharing.len()
    }

    /// Whether this one was seen, and has not ended.
    pub(crate) fn has(&self, pid: i32) -> bool {
        self.sharing.contains_key(&pid)
    }

    pub(crate) fn forks(&self) -> u64 {
        self.forks
    }
}

/// Whether a process is a forked child of a target that has not started another program.
pub(crate) fn is_child(target: &Target, pid: i32) -> bool {
    let stat = Process::new(pid).and_then(|process| process.stat());
    stat.is_ok_and(|stat| stat.ppid == target.pid() && Program::of(&stat) == target.program())
}

/// A process that has started another program has its stack elsewhere.
fn shares(process: &Process, program: Program) -> bool {
    process.stat().is_ok_and(|stat| stat.state != 'Z' && Program::of(&stat) == program)
}

/// Processes whose first thread has one of these names.
#[must_use]
pub fn named(names: &[String]) -> Vec<i32> {
    if names.is_empty() {
        return Vec::new();
    }
    let Ok(all) = procfs::process::all_processes() else { return Vec::new() };
    let is_named = |process: &Process| process.stat().is_ok_and(|stat| names.contains(&stat.comm));
    all.flatten().filter(is_named).map(|process| process.pid()).collect()
}

fn children(parent: &Process) -> Vec<i32> {
    let Ok(tasks) = parent.tasks() else { return Vec::new() };
    let of_task = |task: procfs::process::Task| task.children().unwrap_or_default();
    tasks.flatten().flat_map(of_task).filter_map(|pid| i32::try_from(pid).ok()).collect()
}
