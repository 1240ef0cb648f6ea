//! The record of one lease.

use std::time::Instant;

use hugekit_lease::protocol::{LeaseRow, Payer};

/// A lease that counts against a quota.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedLease {
    /// The account whose quota is charged.
    pub(crate) account: u32,
    pub(crate) uid: u32,
    pub(crate) pid: u32,
    pub(crate) bytes: u64,
    pub(crate) given: Instant,
    pub(crate) payer: Payer,
}

impl CountedLease {
    pub(crate) fn row(&self, is_unreturned: bool) -> LeaseRow {
        LeaseRow {
            uid: self.uid,
            pid: self.pid,
            bytes: self.bytes,
            age_ms: u64::try_from(self.given.elapsed().as_millis()).unwrap_or(u64::MAX),
            payer: self.payer,
            is_unreturned,
        }
    }
}
