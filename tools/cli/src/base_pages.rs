//! Why memory is on base pages although it was to be on transparent huge pages.
//!
//! The process that populates it decides: the broker, or this command. `hugekit doctor` examines the
//! machine and its own process, so it cannot see that huge pages are switched off for the broker.

use std::path::Path;

use hugekit_machine::Root;
use hugekit_machine::process::Process;
use hugekit_sys::seqpacket;

const REMEDY: &str = "start it from a parent that did not call prctl(PR_SET_THP_DISABLE, 1)";

/// Returns the warning of a process that is about to populate memory and gets no huge pages, if so.
pub(crate) fn warning() -> Option<String> {
    let process = Process::read(&Root::default()).ok()?;
    (!process.thp_allowed).then(|| {
        format!(
            "warning: transparent huge pages are disabled for this process and its children \
             (PR_SET_THP_DISABLE), so all memory will be on base pages: {REMEDY}"
        )
    })
}

/// Returns the reason of memory that the broker at this socket has populated, or where to find the
/// reason.
pub(crate) fn reason(broker: &Path) -> String {
    of_broker(broker).unwrap_or_else(|| "`hugekit doctor` names the reason".to_owned())
}

/// Returns the reason if it is the broker's own.
pub(crate) fn of_broker(broker: &Path) -> Option<String> {
    let connected = seqpacket::connect_to(broker).ok();
    let pid = connected.and_then(|connected| Some(seqpacket::peer(connected).ok()?.pid));
    let pid = pid.filter(|&pid| Process::thp_allowed_of(&Root::default(), pid) == Some(false))?;
    Some(format!(
        "transparent huge pages are disabled for the broker, process {pid} \
         (PR_SET_THP_DISABLE): {REMEDY}"
    ))
}
