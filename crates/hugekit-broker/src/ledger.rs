//! Who has what: leases and claims by user, against quotas. No system call is made here.

use std::collections::BTreeMap;
use std::time::Instant;

use hugekit::lease::protocol::{Payer, Refusal, Row};

use crate::config::Quotas;
use crate::watch::Watched;

/// Memory that a waiting client counts for: given back by [`Ledger::withdraw`], or made a lease by [`Ledger::give`].
#[derive(Debug)]
#[must_use = "what is claimed counts until it is withdrawn"]
pub(crate) struct Claim {
    pub(crate) uid: u32,
    bytes: u64,
}

#[derive(Debug)]
struct Leased {
    uid: u32,
    pid: u32,
    bytes: u64,
    given: Instant,
    payer: Payer,
    /// Of one whose file is gone: what was taken elsewhere before that.
    ended: Option<u64>,
}

/// Leases and claims.
#[derive(Debug)]
pub(crate) struct Ledger {
    quotas: Quotas,
    claimed: BTreeMap<u32, u64>,
    leases: BTreeMap<Watched, Leased>,
}

impl Ledger {
    pub(crate) fn new(quotas: Quotas) -> Self {
        Self { quotas, claimed: BTreeMap::new(), leases: BTreeMap::new() }
    }

    /// What counts against a user's quota.
    pub(crate) fn used(&self, uid: u32) -> u64 {
        let leased = self.leases.values().filter(|lease| lease.uid == uid);
        let leased: u64 = leased.map(|lease| lease.bytes).sum();
        leased + self.claimed.get(&uid).copied().unwrap_or(0)
    }

    /// Counts what a client asks for.
    pub(crate) fn claim(&mut self, uid: u32, asked: u64) -> Result<Claim, Refusal> {
        let (used, quota) = (self.used(uid), self.quotas.of(uid));
        if used.saturating_add(asked) > quota {
            return Err(Refusal::OverQuota { asked, used, quota });
        }
        *self.claimed.entry(uid).or_default() += asked;
        Ok(Claim { uid, bytes: asked })
    }

    pub(crate) fn withdraw(&mut self, claim: Claim) {
        let claimed = self.claimed.get_mut(&claim.uid).expect("a claim was counted");
        *claimed -= claim.bytes;
        if *claimed == 0 {
            self.claimed.remove(&claim.uid);
        }
    }

    pub(crate) fn give(&mut self, claim: Claim, pid: u32, watched: Watched, payer: Payer) {
        let (uid, bytes) = (claim.uid, claim.bytes);
        self.withdraw(claim);
        let lease = Leased { uid, pid, bytes, given: Instant::now(), payer, ended: None };
        self.leases.insert(watched, lease);
    }

    /// A file is gone. Its memory counts until it is seen to have come back, where that can be seen.
    pub(crate) fn end(&mut self, watched: Watched, elsewhere_before: Option<u64>) {
        match (self.leases.get_mut(&watched), elsewhere_before) {
            (Some(lease), Some(before)) => lease.ended = Some(before),
            _ => drop(self.leases.remove(&watched)),
        }
    }

    /// Lets go of ended leases whose memory is no longer seen as taken elsewhere.
    pub(crate) fn reconcile(&mut self, elsewhere: Option<u64>) {
        self.leases.retain(|_, lease| match (lease.ended, elsewhere) {
            (Some(before), Some(now)) => now > before,
            (Some(_), None) => false,
            (None, _) => true,
        });
    }

    /// Leases that have not ended.
    pub(crate) fn count(&self) -> u64 {
        self.leases.values().filter(|lease| lease.ended.is_none()).count() as u64
    }

    /// Leases, and those of which memory is not back.
    pub(crate) fn count_all(&self) -> usize {
        self.leases.len()
    }

    /// Bytes of leases that have not ended.
    pub(crate) fn leased(&self) -> u64 {
        self.leases.values().filter(|lease| lease.ended.is_none()).map(|lease| lease.bytes).sum()
    }

    /// Bytes of ended leases that are not back.
    pub(crate) fn unreturned(&self) -> u64 {
        self.leases.values().filter(|lease| lease.ended.is_some()).map(|lease| lease.bytes).sum()
    }

    /// The leases, the oldest first.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut leases: Vec<_> = self.leases.values().collect();
        leases.sort_by_key(|lease| lease.given);
        leases.into_iter().map(Leased::row).collect()
    }
}

impl Leased {
    fn row(&self) -> Row {
        Row {
            uid: self.uid,
            pid: self.pid,
            bytes: self.bytes,
            age_ms: u64::try_from(self.given.elapsed().as_millis()).unwrap_or(u64::MAX),
            payer: self.payer,
            is_unreturned: self.ended.is_some(),
        }
    }
}
