//! Which processes share a target's memory: forked children that have not started another program, and theirs.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::target::Target;
use hugekit_machine::Root;
use hugekit_machine::processes::Program;
use hugekit_machine::processes::{self, ProcessFolder};

/// The kernel keeps this many bytes of a thread's name.
const NAME_BYTES: usize = 15;

/// The children that were seen, until they have ended. A child's children go on after it, with another parent.
#[derive(Debug, Default)]
pub(crate) struct Relatives {
    sharing: HashMap<i32, ProcessFolder>,
    seen: Seen,
    /// The number of children so far.
    forks: u64,
}

/// Numbers of those that were seen at the last look, for other threads to read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<i32>>>);

impl Seen {
    pub(crate) fn has(&self, pid: i32) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid)
    }
}

impl Relatives {
    /// Looks who shares the memory now; how many.
    pub(crate) fn look(&mut self, target: &Target) -> usize {
        let program = target.program();
        self.sharing.retain(|_, folder| shares(folder, program));
        let mut unseen = target.folder().children();
        unseen.extend(self.sharing.values().flat_map(ProcessFolder::children));
        while let Some(pid) = unseen.pop() {
            if self.sharing.contains_key(&pid) {
                continue;
            }
            let Ok(child) = ProcessFolder::open(pid) else { continue };
            if shares(&child, program) {
                self.forks += 1;
                unseen.extend(child.children());
                self.sharing.insert(pid, child);
            }
        }
        *self.seen.0.lock().unwrap_or_else(PoisonError::into_inner) =
            self.sharing.keys().copied().collect();
        self.sharing.len()
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen.clone()
    }

    pub(crate) fn forks(&self) -> u64 {
        self.forks
    }
}

/// Returns the parent of a process that was forked and has not started another program, such as the
/// child of a server that saves. `None` of other processes, and of a process that the caller may
/// not debug. Like all that is read of a process, the answer waits while the process keeps the
/// kernel waiting.
#[must_use]
pub fn forked_from(pid: i32) -> Option<i32> {
    let stat = |pid| ProcessFolder::open(pid).and_then(|folder| folder.stat()).ok();
    let child = stat(pid).filter(|child| child.program.is_known())?;
    let is_same = stat(child.parent)?.program == child.program;
    is_same.then_some(child.parent)
}

/// Returns whether a process is a forked child of one of these that has not started another program.
pub(crate) fn is_child(pid: i32, parents: &[(i32, Program)]) -> bool {
    let stat = ProcessFolder::open(pid).and_then(|folder| folder.stat());
    stat.is_ok_and(|stat| parents.contains(&(stat.parent, stat.program)))
}

/// A process that has started another program has its stack elsewhere.
fn shares(folder: &ProcessFolder, program: Program) -> bool {
    folder.stat().is_ok_and(|stat| !stat.is_zombie() && stat.program == program)
}

/// Processes whose first thread has one of these names, or whose program's file has: Node.js names its first thread
/// `MainThread`. Of a longer name of a thread the first 15 bytes count, which is all that the kernel keeps. The file of
/// another user's process is seen with `CAP_SYS_PTRACE` only. No process can delay the answer.
#[must_use]
pub fn named(names: &[impl AsRef<OsStr>]) -> Vec<i32> {
    if names.is_empty() {
        return Vec::new();
    }
    let wanted = |name: &[u8]| names.iter().any(|wanted| kept(wanted.as_ref()) == name);
    let is_named = |&pid: &i32| {
        let Ok(folder) = ProcessFolder::open(pid) else { return false };
        let name = folder.read("comm").unwrap_or_default();
        let is_of_thread = wanted(name.strip_suffix(b"\n").unwrap_or(&name));
        let is_of_file = || {
            let program = folder.link("exe").unwrap_or_default();
            let file = Path::new(&program).file_name();
            file.is_some_and(|file| names.iter().any(|wanted| wanted.as_ref() == file))
        };
        (is_of_thread || is_of_file()) && !folder.is_zombie()
    };
    processes::numbers(&Root::default()).unwrap_or_default().into_iter().filter(is_named).collect()
}

fn kept(name: &OsStr) -> &[u8] {
    let name = name.as_bytes();
    &name[..name.len().min(NAME_BYTES)]
}
