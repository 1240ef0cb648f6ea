//! Whether a VM can be saved and put on huge pages, found out without a change of anything.

use std::io;

use hugekit_machine::Root;
use hugekit_machine::process::Process as ProcessStatus;
use hugekit_sys::other_process::check_collapse;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::handover::PlannedHandover;
use crate::checkpoint::vm::{claim, find_userfaultfd};
use crate::vmm::Process;
use crate::vmm::kept_layout;
use crate::vmm::mappings::{is_served, mappings_of};

/// A VMM's descriptor for its VM, as the kernel names it.
const KVM: &str = "anon_inode:kvm-vm";

/// The prospects of a running VM.
#[derive(Debug)]
#[non_exhaustive]
pub struct VmProspects {
    /// The reason why `hugekit checkpoint` and `hugekit fork` would refuse it, if they would.
    pub save: Result<(), CheckpointError>,
    /// True if the VM keeps its layout, which its pager has handed over. Otherwise the layout must follow from the VM's
    /// size.
    pub keeps_layout: bool,
    /// The reason why its memory cannot be put on huge pages, if it cannot.
    pub huge_pages: Result<(), NoHugePages>,
}

/// The reason why memory of a VM stays on base pages.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoHugePages {
    /// The VMM or a parent of it has switched them off by `PR_SET_THP_DISABLE`.
    #[error("transparent huge pages are switched off for the VMM (PR_SET_THP_DISABLE)")]
    SwitchedOff,
    /// The kernel does not let this process collapse memory of another one.
    #[error("process_madvise is refused")]
    Refused(#[source] io::Error),
}

impl NoHugePages {
    /// Returns a step for the user.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::SwitchedOff => "start the VMM by a program that does not switch them off",
            Self::Refused(_) => "run the pager as root, or with CAP_SYS_PTRACE and CAP_SYS_NICE",
        }
    }
}

impl VmProspects {
    /// Examines a process; `None` if it has no VM, or if this process may not look at its descriptors.
    ///
    /// # Errors
    /// The process has ended.
    pub fn of(pid: i32) -> io::Result<Option<Self>> {
        let mut process = Process::running(pid)?;
        let links = process.links().unwrap_or_default();
        if !links.iter().any(|(_, link)| link.as_os_str() == KVM) {
            return Ok(None);
        }
        let keeps_layout = kept_layout::find(&process).is_ok_and(|layout| layout.is_some());
        let save = check_save(&mut process);
        Ok(Some(Self { save, keeps_layout, huge_pages: check_huge_pages(&process) }))
    }
}

fn check_save(process: &mut Process) -> Result<(), CheckpointError> {
    let pid = process.pid();
    find_userfaultfd(process)?;
    claim(process)?;
    let mappings = mappings_of(pid).map_err(|source| CheckpointError::Process { pid, source })?;
    if mappings.iter().any(is_served) {
        return Err(CheckpointError::Incomplete { pid });
    }
    PlannedHandover::of(process).map(drop)
}

fn check_huge_pages(process: &Process) -> Result<(), NoHugePages> {
    if ProcessStatus::thp_allowed_of(&Root::default(), process.pid()) == Some(false) {
        return Err(NoHugePages::SwitchedOff);
    }
    check_collapse(process.as_fd()).map_err(|errno| NoHugePages::Refused(errno.into()))
}
