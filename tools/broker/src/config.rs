//! What a broker is told.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use hugekit::pool::Backing;
use hugekit_lease::protocol::Refusal;
use hugekit_machine::Root;

use crate::pages::Pages;

/// The settings of a broker. All sizes are bytes.
#[derive(Clone, Debug)]
pub struct Config {
    /// The socket that it listens at.
    pub socket: PathBuf,
    /// The backing of units.
    pub backing: Backing,
    /// The size of a unit, a multiple of the backing's page size; 0 of a broker that holds images only.
    pub unit: usize,
    /// Units that are populated before any client asks.
    pub ready: usize,
    /// The node that they come from.
    pub node: Option<u32>,
    /// The quotas of users.
    pub quotas: Quotas,
    /// The memory that is left free: no unit is populated that would leave less, of huge pages or of available memory.
    pub keep_free: u64,
    /// Whose control group pays.
    pub charge: Charge,
    /// The limits of clients on the broker itself.
    pub limits: Limits,
    /// The command that populates.
    pub filler: FillCommand,
}

impl Config {
    /// Bytes that the ready units and `keep_free` need, and free bytes, if those are fewer now.
    #[must_use]
    pub fn shortage(&self) -> Option<(u64, u64)> {
        let units = (self.ready as u64).saturating_mul(self.unit as u64);
        let wanted = units.saturating_add(self.keep_free);
        let free = Pages::default().next(&Root::default(), self.backing).free;
        (self.ready > 0 && free < wanted).then_some((wanted, free))
    }
}

/// The most bytes of leases that users may have.
#[derive(Clone, Debug, Default)]
pub struct Quotas {
    /// Users that have one of their own.
    pub of: BTreeMap<u32, u64>,
    /// The others; `None` for no limit.
    pub of_others: Option<u64>,
}

impl Quotas {
    /// Returns the quota of a user; `u64::MAX` for no limit.
    #[must_use]
    pub fn quota_of(&self, uid: u32) -> u64 {
        self.of.get(&uid).copied().or(self.of_others).unwrap_or(u64::MAX)
    }
}

/// Whose control group the memory is charged to: the process's that populates it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Charge {
    /// The broker's.
    Broker,
    /// The one of this directory.
    Group(PathBuf),
    /// Each client's own, where the broker may place a process there, and the broker's where not. Nothing is
    /// populated before a client asks then.
    Client,
}

/// The limits of clients on the broker itself.
///
/// A user's ranges of `/etc/subuid` count as that user.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of all users but root. When more come, the user with the most loses one: one without a request
    /// first.
    pub connections: usize,
    /// Connections of one user. Root's count apart from those of the others.
    pub connections_of_user: usize,
    /// Processes that populate or load images for clients of one user: as many of each.
    pub fillers_of_user: usize,
    /// Processes that load images for all users but root.
    pub loads: usize,
    /// Leases of all users: the kernel keeps two notices for each that ends unread.
    pub leases: usize,
    /// The longest time that a connection may stay without a request.
    pub request_within: Duration,
    /// The longest time that a client may wait.
    pub longest_wait: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            connections_of_user: 64,
            fillers_of_user: 2,
            loads: 8,
            leases: 4096,
            request_within: Duration::from_secs(2),
            longest_wait: Duration::from_secs(3600),
        }
    }
}

impl Limits {
    /// Returns why a client is not served now.
    pub(crate) fn busy(self) -> Refusal {
        let (most, most_of_user) = (self.connections as u64, self.connections_of_user as u64);
        Refusal::Busy { most, most_of_user }
    }

    /// With no more connections than `descriptors` suffice for, if each needs so many.
    pub(crate) fn within(self, descriptors: u64, each: u64) -> Self {
        let most = usize::try_from(descriptors / each).unwrap_or(usize::MAX);
        let of_user = self.connections_of_user.min(most / 4).max(1);
        let connections = self.connections.min(most.saturating_sub(of_user)).max(1);
        Self { connections, connections_of_user: of_user, ..self }
    }
}

/// The program that populates a unit, and its first arguments: it calls [`fill`](crate::fill()).
#[derive(Clone, Debug)]
pub struct FillCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments, before those of [`Fill`](crate::Fill).
    pub arguments: Vec<OsString>,
}
