//! Orphans: VMMs that had connected to an earlier pager, which was killed before it had recorded
//! them.
//!
//! When a socket is closed, the kernel drops messages in it that were not received. But Firecracker
//! keeps its end of the connection open. That end still has the address of the pager's socket, and
//! the process that listened there. So an orphan is a process with a userfaultfd, with a connection
//! to a pager whose record is in the state folder, and without a record of its own. The search runs
//! before the new pager listens, so that no VMM of the new pager is found.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hugekit_machine::{Root, processes};
use hugekit_sys::seqpacket;
use rustix::net::{SocketAddrUnix, getpeername};

use crate::pager::pager_record::PagerRecord;
use crate::vmm::process::Process;
use crate::vmm::userfaultfd::is_userfaultfd;

/// The longest wait for the end of an earlier pager, because its lock is free before its socket is
/// closed.
const ENDING: Duration = Duration::from_secs(5);

/// A VMM that waits for a pager that has ended.
#[derive(Debug)]
pub(crate) struct Orphan {
    pub(crate) process: Process,
    pub(crate) pager: Arc<PagerRecord>,
    /// True if the log already reports that the VM waits.
    pub(crate) is_told: bool,
    /// The number of the connection's descriptor, and its target.
    connection: (i32, PathBuf),
}

impl Orphan {
    /// Returns true if the VMM still has its connection and a userfaultfd. A VMM that has failed
    /// closes them.
    pub(crate) fn still_waits(&self) -> bool {
        let links = self.process.links().unwrap_or_default();
        !self.process.has_ended()
            && links.contains(&self.connection)
            && links.iter().any(|(_, link)| is_userfaultfd(link))
    }
}

/// Waits until these pagers have ended. Their locks are free already. Connections to them fail
/// afterwards.
pub(crate) fn await_end(pagers: &[Arc<PagerRecord>]) {
    let own = rustix::process::getpid().as_raw_pid();
    for pager in pagers.iter().filter(|pager| pager.pid != own) {
        if let Ok(process) = Process::find(pager.pid, pager.started) {
            process.await_end(ENDING);
        }
    }
}

/// Searches all processes of users that are served. `is_recorded` is called for each process.
pub(crate) fn find(
    pagers: &[Arc<PagerRecord>],
    is_served: impl Fn(u32) -> bool,
    is_recorded: impl Fn(&Process) -> bool,
) -> Vec<Orphan> {
    if pagers.is_empty() {
        return Vec::new();
    }
    let numbers = processes::numbers(&Root::default()).unwrap_or_default();
    let is_of_users =
        |pid: &i32| fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| is_served(found.uid()));
    let own = rustix::process::getpid().as_raw_pid();
    let others = numbers.into_iter().filter(|&pid| pid != own).filter(is_of_users);
    let processes = others.filter_map(|pid| Process::running(pid).ok());
    processes
        .filter(|process| is_served(process.uid()) && !is_recorded(process))
        .filter_map(|process| orphan(process, pagers))
        .collect()
}

fn orphan(process: Process, pagers: &[Arc<PagerRecord>]) -> Option<Orphan> {
    let links = process.links().ok()?;
    links.iter().find(|(_, link)| is_userfaultfd(link))?;
    let is_socket = |link: &PathBuf| link.to_str().is_some_and(|link| link.starts_with("socket:"));
    let mut sockets = links.into_iter().filter(|(_, link)| is_socket(link));
    let (connection, pager) = sockets.find_map(|connection| {
        let pager = peer_among(&process.copy(connection.0).ok()?, pagers)?;
        Some((connection, pager))
    })?;
    Some(Orphan { process, pager, is_told: false, connection })
}

/// Returns the pager that listened at the other end. Connections keep its address after its end.
fn peer_among(socket: &OwnedFd, pagers: &[Arc<PagerRecord>]) -> Option<Arc<PagerRecord>> {
    let address = SocketAddrUnix::try_from(getpeername(socket).ok()??).ok()?;
    let listened = seqpacket::peer(socket).ok()?;
    let is_peer = |pager: &&Arc<PagerRecord>| {
        address.path_bytes() == Some(&pager.socket[..]) && listened.pid == pager.pid
    };
    pagers.iter().find(is_peer).cloned()
}
