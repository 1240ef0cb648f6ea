//! The options of a broker. With the feature `clap`, they are arguments of the command.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use hugekit::pool::Backing;
use hugekit_lease::protocol::Refusal;
use hugekit_machine::Root;
use hugekit_machine::size::{Size, parse_bytes};
use serde::{Deserialize, Serialize};

use crate::backing_names;
use crate::memory_state::MemoryState;

/// The memory that a broker populates, and its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default, deny_unknown_fields)]
pub struct BrokerOptions {
    /// Size of a unit, such as 4GiB; every lease is one unit. By default only images are held.
    #[cfg_attr(feature = "clap", arg(long, value_name = "SIZE", value_parser = parse_bytes))]
    pub unit: Option<u64>,
    /// Units to keep populated for future leases.
    ///
    /// Without a unit, and if the memory is charged to clients, there are none.
    #[cfg_attr(feature = "clap", arg(
        long,
        value_name = "N",
        requires = "unit",
        default_value_t = BrokerOptions::default().ready
    ))]
    pub ready: usize,
    /// The pages of units.
    #[cfg_attr(feature = "clap", arg(
        long,
        value_name = "BACKING",
        value_parser = backing_names::backing_parser(),
        default_value = BrokerOptions::default().backing.option()
    ))]
    #[serde(with = "backing_names")]
    pub backing: Backing,
    /// The NUMA node that the memory comes from.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub node: Option<u32>,
    /// The most memory in leases of a user, by number; `*` is for users without a quota [default:
    /// no limit]
    #[cfg_attr(feature = "clap", arg(long = "quota", value_name = "UID=SIZE"))]
    pub quotas: Vec<Quota>,
    /// Memory of that kind to leave free for other programs.
    #[cfg_attr(feature = "clap", arg(
        long,
        value_name = "SIZE",
        value_parser = parse_bytes,
        default_value = Size::from(BrokerOptions::default().keep_free).to_string()
    ))]
    pub keep_free: u64,
    /// The control group to charge: `broker`, `client`, or a group's directory.
    #[cfg_attr(feature = "clap", arg(
        long,
        value_name = "WHO",
        default_value_t = BrokerOptions::default().charge
    ))]
    pub charge: Charge,
    /// The limits of clients on the broker itself.
    #[cfg_attr(feature = "clap", arg(skip))]
    pub limits: Limits,
}

impl Default for BrokerOptions {
    fn default() -> Self {
        Self {
            unit: None,
            ready: 1,
            backing: Backing::Hugetlb2M,
            node: None,
            quotas: Vec::new(),
            keep_free: 0,
            charge: Charge::Broker,
            limits: Limits::default(),
        }
    }
}

impl BrokerOptions {
    /// Returns the number of units to populate before a client requests one.
    #[must_use]
    pub fn units_ahead(&self) -> usize {
        if self.unit.is_none() || self.charge == Charge::Client { 0 } else { self.ready }
    }

    /// Returns the number of bytes that the ready units and `keep_free` need, and the free bytes,
    /// if there are fewer free bytes now.
    #[must_use]
    pub fn shortage(&self) -> Option<(u64, u64)> {
        let units = (self.units_ahead() as u64).saturating_mul(self.unit_bytes());
        let wanted = units.saturating_add(self.keep_free);
        let free = MemoryState::default().next(&Root::default(), self.backing, self.payer()).free;
        (units > 0 && free < wanted).then_some((wanted, free))
    }

    /// Returns this process, if its control groups count the units.
    pub(crate) fn payer(&self) -> Option<u32> {
        (self.charge == Charge::Broker).then(std::process::id)
    }

    /// Returns the quotas that permit no lease, because they are less than a unit. A quota of 0
    /// permits no lease on purpose, and is not returned.
    #[must_use]
    pub fn small_quotas(&self) -> Vec<Quota> {
        let Quotas(quotas) = self.quotas();
        let quotas = quotas.into_iter().map(|(user, bytes)| Quota { user, bytes });
        quotas.filter(|quota| (1..self.unit_bytes()).contains(&quota.bytes)).collect()
    }

    pub(crate) fn quotas(&self) -> Quotas {
        Quotas(self.quotas.iter().map(|&Quota { user, bytes }| (user, bytes)).collect())
    }

    /// Returns the size of a unit; 0 if there are no units.
    pub(crate) fn unit_bytes(&self) -> u64 {
        self.unit.unwrap_or(0)
    }
}

/// The quota of a user: the highest number of bytes of its leases. It is written as `1000=16GiB`,
/// or `*=16GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// The user; `None` for each user without a quota.
    pub user: Option<u32>,
    /// The highest number of bytes.
    pub bytes: u64,
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = Size::from(self.bytes);
        match self.user {
            Some(user) => write!(f, "{user}={size}"),
            None => write!(f, "*={size}"),
        }
    }
}

impl FromStr for Quota {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, size) = text.split_once('=').ok_or("write UID=SIZE, such as 1000=16GiB")?;
        let user = match user {
            "*" => None,
            number => {
                Some(number.parse().map_err(|_| "the user must be a number, or * for all others")?)
            }
        };
        let bytes = parse_bytes(size).map_err(|error| error.to_string())?;
        Ok(Self { user, bytes })
    }
}

/// The quotas by user. If a user has several, the last one counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quotas(BTreeMap<Option<u32>, u64>);

impl Quotas {
    /// Returns the quota of a user; `u64::MAX` for no limit.
    pub(crate) fn quota_of(&self, uid: u32) -> u64 {
        let quota = self.0.get(&Some(uid)).or_else(|| self.0.get(&None));
        quota.copied().unwrap_or(u64::MAX)
    }

    /// Returns the users with a quota of their own.
    pub(crate) fn users(&self) -> impl Iterator<Item = u32> {
        self.0.keys().filter_map(|&user| user)
    }
}

/// The control group that is charged for the memory: the group of the populating process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Charge {
    /// The broker's group.
    Broker,
    /// The group of this directory.
    Group(PathBuf),
    /// Each client's own group. If the broker may not place a process in that group, the broker's
    /// group is charged. With this setting, nothing is populated before a client requests memory.
    Client,
}

impl fmt::Display for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broker => f.write_str("broker"),
            Self::Group(directory) => directory.display().fmt(f),
            Self::Client => f.write_str("client"),
        }
    }
}

impl FromStr for Charge {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "broker" => Ok(Self::Broker),
            "client" => Ok(Self::Client),
            path if path.starts_with('/') => Ok(Self::Group(path.into())),
            _ => Err("must be broker, client, or the directory of a control group"),
        }
    }
}

/// The limits of clients on the broker itself.
///
/// A user's ranges of `/etc/subuid` count as that user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// The highest number of connections of all users except root. If there are more, the user with
    /// the most connections loses one, beginning with connections without a request.
    pub connections: usize,
    /// The highest number of connections of one user. Root's connections are counted separately.
    pub connections_of_user: usize,
    /// The highest number of processes that populate for clients of one user, and of processes that
    /// load images for them.
    pub fillers_of_user: usize,
    /// The highest number of processes that load images for all users except root.
    pub loads: usize,
    /// The highest number of leases of all users. The kernel keeps two notices for each lease whose
    /// end is not read yet.
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
    /// Returns the reason why a client is not served now.
    pub(crate) fn busy(self) -> Refusal {
        let (most, most_of_user) = (self.connections as u64, self.connections_of_user as u64);
        Refusal::Busy { most, most_of_user }
    }

    /// Reduces the number of connections to the number for which `descriptors` suffice, if each
    /// connection needs `each` descriptors.
    pub(crate) fn within(self, descriptors: u64, each: u64) -> Self {
        let most = usize::try_from(descriptors / each).unwrap_or(usize::MAX);
        let of_user = self.connections_of_user.min(most / 4).max(1);
        let connections = self.connections.min(most.saturating_sub(of_user)).max(1);
        Self { connections, connections_of_user: of_user, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(unit: u64, quotas: &[&str]) -> BrokerOptions {
        let quotas = quotas.iter().map(|quota| quota.parse().unwrap()).collect();
        BrokerOptions { unit: Some(unit), quotas, ..BrokerOptions::default() }
    }

    #[test]
    fn last_quota_of_a_user_counts_and_a_small_one_is_found() {
        let options = options(4 << 20, &["1=1MiB", "*=2MiB", "1=8MiB", "2=0"]);
        let quotas = options.quotas();
        assert_eq!([0, 1, 2].map(|user| quotas.quota_of(user) >> 20), [2, 8, 0]);
        assert_eq!(quotas.users().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(options.small_quotas(), [Quota { user: None, bytes: 2 << 20 }]);
        assert_eq!(Quotas::default().quota_of(1), u64::MAX);
    }

    #[test]
    fn no_units_are_ahead_without_a_size_or_of_clients_that_pay() {
        let options = options(4 << 20, &[]);
        assert_eq!(options.units_ahead(), 1);
        assert_eq!(BrokerOptions { charge: Charge::Client, ..options.clone() }.units_ahead(), 0);
        assert_eq!(BrokerOptions { unit: None, ..options }.units_ahead(), 0);
    }
}
