//! Processes that share a target's memory: forked children that have not started another program,
//! and their children.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::target::Target;
use hugekit_machine::Root;
use hugekit_machine::processes::Program;
use hugekit_machine::processes::{self, ProcessFolder};

/// The number of bytes of a thread's name that the kernel keeps.
const NAME_BYTES: usize = 15;

/// The children that were seen, until they have ended. If a child ends, its children live on with
/// another parent.
#[derive(Debug, Default)]
pub(crate) struct Relatives {
    sharing: HashMap<i32, ProcessFolder>,
    seen: Seen,
    /// The number of children until now.
    forks: u64,
}

/// The numbers of the children at the last inspection, for other threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<i32>>>);

impl Seen {
    pub(crate) fn has(&self, pid: i32) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid)
    }
}

impl Relatives {
    /// Finds the processes that share the memory now, and returns their number.
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
/// child of a server that saves. `None` for other processes, and for a process that the caller may
/// not debug. The call blocks while the process makes the kernel wait.
#[must_use]
pub fn forked_from(pid: i32) -> Option<i32> {
    let stat = |pid| ProcessFolder::open(pid).and_then(|folder| folder.stat()).ok();
    let child = stat(pid).filter(|child| child.program.is_known())?;
    let is_same = stat(child.parent)?.program == child.program;
    is_same.then_some(child.parent)
}

/// Returns true if a process is a forked child of one of these processes and has not started
/// another program.
pub(crate) fn is_child(pid: i32, parents: &[(i32, Program)]) -> bool {
    let stat = ProcessFolder::open(pid).and_then(|folder| folder.stat());
    stat.is_ok_and(|stat| parents.contains(&(stat.parent, stat.program)))
}

/// Returns true if a process still runs the program of its parent. A process that has started
/// another program has its stack at other addresses.
fn shares(folder: &ProcessFolder, program: Program) -> bool {
    folder.stat().is_ok_and(|stat| !stat.is_zombie() && stat.program == program)
}

/// Returns the processes whose first thread, or whose program's file, has one of these names. The
/// file is needed because Node.js names its first thread `MainThread`. The kernel keeps only the
/// first 15 bytes of a thread's name, so only these are compared. The file of another user's
/// process is visible only with `CAP_SYS_PTRACE`. No process can delay the call.
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
