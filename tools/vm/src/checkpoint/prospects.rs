//! Prospects of a VM: if it can be saved, and if it can be put on huge pages. Nothing is changed to
//! find this out.

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

/// A VMM's descriptor of its VM, as the kernel names it.
const KVM: &str = "anon_inode:kvm-vm";

/// The prospects of a running VM.
#[derive(Debug)]
#[non_exhaustive]
pub struct VmProspects {
    /// The error that `hugekit checkpoint` and `hugekit fork` would return, if they would refuse
    /// the VM.
    pub save: Result<(), CheckpointError>,
    /// True if the VM keeps the layout that its pager has handed over. Otherwise the layout must be
    /// derived from the VM's size.
    pub keeps_layout: bool,
    /// The reason why the VM's memory cannot be put on huge pages, if it cannot.
    pub huge_pages: Result<(), NoHugePages>,
}

/// The reason why the memory of a VM stays on base pages.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoHugePages {
    /// The VMM, or a parent of it, has disabled huge pages by `PR_SET_THP_DISABLE`.
    #[error("transparent huge pages are switched off for the VMM (PR_SET_THP_DISABLE)")]
    SwitchedOff,
    /// The kernel does not let this process collapse memory of another process.
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
    /// Inspects a process. `None` if the process has no VM, or if this process may not inspect its
    /// descriptors.
    ///
    /// # Errors
    /// An error if the process has ended.
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
