//! Leases for all objects of a guest, or for none.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use hugekit::pool::Backing;
use hugekit_lease::{Lease, LeaseError, give_back};
use hugekit_machine::size::Size;
use hugekit_machine::{Root, Topology};
use hugekit_sys::input::path_of;

use super::memory::GuestMemory;
use super::not_leased::NotLeased;

/// The longest time for the answer of a broker, in addition to the time that it is asked to wait.
const ANSWER: Duration = Duration::from_secs(1);

/// Memory that QEMU gets by a descriptor.
#[derive(Debug)]
pub(super) struct LeasedMemory {
    pub(super) file: OwnedFd,
    pub(super) backing: Backing,
}

impl LeasedMemory {
    /// Returns the path at which QEMU opens it.
    pub(super) fn path(&self) -> String {
        path_of(&self.file)
    }

    /// # Errors
    /// This process may not open it, so QEMU, which will be this process, may not either: a security profile forbids it.
    fn check_opens(self) -> Result<Self, NotLeased> {
        let opened = File::options().read(true).write(true).open(self.path());
        opened.map(|_| self).map_err(|error| {
            NotLeased::because(format!("this process may not open its lease: {error}"))
                .remedied("permit what `hugekit qemu --apparmor` prints")
        })
    }
}

/// Brokers, asked in this order until a moment.
#[derive(Debug)]
pub(super) struct Lessors {
    sockets: Vec<PathBuf>,
    until: Instant,
}

impl Lessors {
    pub(super) fn new(sockets: Vec<PathBuf>, wait: Duration) -> Self {
        let now = Instant::now();
        Self { sockets, until: now.checked_add(wait).unwrap_or(now) }
    }

    /// Gets a lease for each object, in the order of the objects. If one is refused, those before it are given back.
    ///
    /// # Errors
    /// The reason why one of the objects gets no lease.
    pub(super) fn lease_all(&self, memory: &[GuestMemory]) -> Result<Vec<LeasedMemory>, NotLeased> {
        memory.iter().map(|memory| self.lease_one(memory)).collect()
    }

    fn lease_one(&self, memory: &GuestMemory) -> Result<LeasedMemory, NotLeased> {
        let mut reasons = Vec::new();
        for socket in &self.sockets {
            match lease(socket, memory, self.until) {
                Ok(leased) => return Ok(leased),
                Err(reason) => reasons.push(reason),
            }
        }
        let beginning = format!("no lease of {} for {}", Size(memory.bytes), memory.id);
        Err(NotLeased::of_all(&beginning, reasons))
    }

    /// Has brokers give back memory that QEMU needs now, as far as they hold it ready. Returns the bytes.
    pub(super) fn give_back(&self, memory: &[GuestMemory]) -> Size {
        let mut needs: BTreeMap<u64, u64> = BTreeMap::new();
        for memory in memory {
            *needs.entry(memory.page_size).or_default() += memory.bytes as u64;
        }
        let asks = |socket: &PathBuf, page_size, bytes| {
            let asked = socket.clone();
            let asks = move || Ok(give_back(&asked, bytes, page_size)?);
            // Without an answer QEMU starts all the same.
            within(ANSWER, socket, asks).unwrap_or(0)
        };
        let given = needs.into_iter().map(|(page_size, bytes)| {
            self.sockets.iter().map(|socket| asks(socket, page_size, bytes)).sum::<u64>()
        });
        Size(usize::try_from(given.sum::<u64>()).unwrap_or(usize::MAX))
    }
}

fn lease(socket: &Path, memory: &GuestMemory, until: Instant) -> Result<LeasedMemory, NotLeased> {
    let wait = until.saturating_duration_since(Instant::now());
    let (asked, bytes, nodes) = (socket.to_owned(), memory.bytes, memory.nodes.clone());
    within(wait.saturating_add(ANSWER), socket, move || {
        is_on_node(&asked, &nodes)?;
        ask(&asked, bytes, wait)
    })
}

/// Asks in a thread of its own, so that a broker that does not answer cannot keep QEMU from starting.
fn within<T: Send + 'static>(
    within: Duration,
    socket: &Path,
    asks: impl FnOnce() -> Result<T, NotLeased> + Send + 'static,
) -> Result<T, NotLeased> {
    let (answers, answer) = mpsc::channel();
    // No receiver is left if the answer comes too late.
    let asks = move || drop(answers.send(asks()));
    let no_thread = |error| NotLeased::because(format!("no thread: {error}"));
    thread::Builder::new().spawn(asks).map_err(no_thread)?;
    let late = |_| Err(LeaseError::NoAnswer { socket: socket.to_owned(), within }.into());
    answer.recv_timeout(within).unwrap_or_else(late)
}

fn ask(socket: &Path, bytes: usize, wait: Duration) -> Result<LeasedMemory, NotLeased> {
    let lease = Lease::ask(socket, bytes, wait)?;
    let backing = lease.backing();
    LeasedMemory { file: lease.into_file(), backing }.check_opens()
}

/// Checks that the units of a broker are on one of these nodes. A machine of one node has no other.
fn is_on_node(socket: &Path, nodes: &[u32]) -> Result<(), NotLeased> {
    let has_one = || Topology::read(&Root::default()).is_ok_and(|found| found.nodes.len() == 1);
    if nodes.is_empty() || has_one() {
        return Ok(());
    }
    let node = hugekit_lease::status(socket)?.node;
    let elsewhere = |place| format!("the units of {} {place}", socket.display());
    fits(nodes, node).map_err(|place| NotLeased::because(elsewhere(place)))
}

/// Checks that units of one node, or of any node, are on one of these nodes. The error says where they are.
fn fits(nodes: &[u32], node: Option<u32>) -> Result<(), String> {
    match node {
        Some(node) if nodes.contains(&node) => Ok(()),
        Some(node) => Err(format!("are on node {node}")),
        None => Err("may be on any node".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_another_node_is_no_lease_for_an_object_of_a_node() {
        assert_eq!(fits(&[0, 2], Some(2)), Ok(()));
        assert_eq!(fits(&[0, 2], Some(1)), Err("are on node 1".to_owned()));
        assert_eq!(fits(&[0], None), Err("may be on any node".to_owned()));
    }
}
