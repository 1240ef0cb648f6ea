//! The ledger: leases and claims by account, against quotas. This file makes no system call.

use std::collections::BTreeMap;
use std::time::Instant;

use hugekit_lease::protocol::{LeaseRow, Payer, Refusal};

use crate::leased::CountedLease;
use crate::options::Quotas;
use crate::returns::{Live, Returns};
use crate::watch::Watched;

/// Memory that a waiting client counts for. [`Ledger::withdraw`] returns the claim, or
/// [`Ledger::record_lease`] makes it a lease.
#[derive(Debug)]
#[must_use = "what is claimed counts until it is withdrawn"]
pub(crate) struct Claim {
    pub(crate) account: u32,
    pub(crate) bytes: u64,
}

/// Leases and claims.
#[derive(Debug)]
pub(crate) struct Ledger {
    quotas: Quotas,
    claimed: BTreeMap<u32, u64>,
    /// The leases that have not ended. The flag is true if the lease ever had holes.
    live: BTreeMap<Watched, (CountedLease, bool)>,
    returns: Returns,
}

impl Ledger {
    pub(crate) fn new(quotas: Quotas) -> Self {
        let (claimed, live, returns) = Default::default();
        Self { quotas, claimed, live, returns }
    }

    /// Returns the bytes that count against an account's quota.
    pub(crate) fn used(&self, account: u32) -> u64 {
        let live = self.live.values().map(|(lease, _)| lease);
        let leases = live.chain(self.returns.counted()).filter(|lease| lease.account == account);
        let leased: u64 = leases.map(|lease| lease.bytes).sum();
        leased + self.claimed.get(&account).copied().unwrap_or(0)
    }

    /// Checks that an account may have more memory, up to its quota.
    pub(crate) fn check(&self, account: u32, asked: u64) -> Result<(), Refusal> {
        let (used, quota) = (self.used(account), self.quotas.quota_of(account));
        let is_over = used.saturating_add(asked) > quota;
        if is_over { Err(Refusal::OverQuota { asked, used, quota }) } else { Ok(()) }
    }

    /// Counts the memory that a client requests.
    pub(crate) fn claim(&mut self, account: u32, asked: u64) -> Result<Claim, Refusal> {
        self.check(account, asked)?;
        *self.claimed.entry(account).or_default() += asked;
        Ok(Claim { account, bytes: asked })
    }

    /// Reduces a claim to fewer bytes.
    pub(crate) fn reduce(&mut self, claim: Claim, bytes: u64) -> Claim {
        let (account, bytes) = (claim.account, claim.bytes.min(bytes));
        *self.claimed.entry(account).or_default() += bytes;
        self.withdraw(claim);
        Claim { account, bytes }
    }

    pub(crate) fn withdraw(&mut self, claim: Claim) {
        let claimed = self.claimed.get_mut(&claim.account).expect("a claim was counted");
        *claimed -= claim.bytes;
        if *claimed == 0 {
            self.claimed.remove(&claim.account);
        }
    }

    pub(crate) fn record_lease(
        &mut self,
        claim: Claim,
        (uid, pid): (u32, u32),
        watched: Watched,
        payer: Payer,
    ) {
        let (account, bytes) = (claim.account, claim.bytes);
        self.withdraw(claim);
        let lease = CountedLease { account, uid, pid, bytes, given: Instant::now(), payer };
        self.live.insert(watched, (lease, false));
    }

    /// Records that a hole was made in a lease's file.
    pub(crate) fn punched(&mut self, watched: Watched) {
        if let Some((_, was_punched)) = self.live.get_mut(&watched) {
            *was_punched = true;
        }
    }

    /// Records that a file is gone. Its memory counts until its return is observed, if it can be
    /// observed.
    pub(crate) fn record_end(&mut self, watched: Watched, elsewhere_before: Option<i128>) {
        let ended = self.live.remove(&watched);
        if let (Some((lease, was_punched)), Some(before)) = (ended, elsewhere_before) {
            self.returns.record_end(lease, was_punched, before);
        }
    }

    /// Finds the ended leases whose memory has returned, if this can be observed.
    pub(crate) fn reconcile(&mut self, elsewhere: Option<i128>, now: Instant) {
        let Some(elsewhere) = elsewhere else { return };
        let mut live: BTreeMap<u32, Live> = BTreeMap::new();
        for (lease, was_punched) in self.live.values() {
            let of_account = live.entry(lease.account).or_default();
            of_account.all += lease.bytes;
            of_account.punched += if *was_punched { lease.bytes } else { 0 };
        }
        self.returns.look(elsewhere, &live, now);
    }

    /// Returns the number of leases that have not ended.
    pub(crate) fn count(&self) -> usize {
        self.live.len()
    }

    /// Returns the number of bytes of leases that have not ended.
    pub(crate) fn leased(&self) -> u64 {
        self.live.values().map(|(lease, _)| lease.bytes).sum()
    }

    /// Returns the number of bytes of ended leases that count.
    pub(crate) fn unreturned(&self) -> u64 {
        self.returns.counted().map(|lease| lease.bytes).sum()
    }

    /// Returns the leases of some accounts, the oldest first.
    pub(crate) fn rows(&self, is_of: impl Fn(u32) -> bool) -> Vec<LeaseRow> {
        let live = self.live.values().map(|(lease, _)| (lease, false));
        let all = live.chain(self.returns.counted().map(|lease| (lease, true)));
        let mut leases: Vec<_> = all.filter(|(lease, _)| is_of(lease.account)).collect();
        leases.sort_by_key(|(lease, _)| lease.given);
        leases.into_iter().map(|(lease, has_ended)| lease.row(has_ended)).collect()
    }
}
