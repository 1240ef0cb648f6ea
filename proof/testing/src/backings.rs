//! Tests that run on every backing, and count as skipped if the machine does not have it.
use hugekit::pool::{Backing, PoolBuilder};
use hugekit::{HUGE_PAGE_BYTES, Pool};
use libtest_mimic::{Completion, Failed, Trial};

use super::trials;
pub use super::trials::unless_lacking;

/// Folios of a test's pool.
pub const FOLIOS: usize = 8;

/// A pool of `folios` folios on exactly this backing. It begins with holes, and allocations populate them.
pub fn builder(backing: Backing, folios: usize) -> PoolBuilder<'static> {
    let pool = Pool::builder(folios * backing.page_size()).backing(backing).strict(true);
    pool.populate_on_allocation(true)
}

/// A pool that clears only at allocation, or on request.
pub fn unscrubbed(backing: Backing) -> Pool {
    builder(backing, FOLIOS).scrub_threads(0).build().unwrap()
}

pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

pub type Check = (&'static str, fn(Backing));

/// The backings that all tests use: those whose pages are small enough for many of them.
pub fn usual() -> impl Iterator<Item = Backing> {
    let is_usual = |backing: &Backing| backing.page_size() <= HUGE_PAGE_BYTES;
    Backing::ALL.iter().rev().copied().filter(is_usual)
}

/// The backings whose pages are too large for most tests.
pub fn gigantic() -> impl Iterator<Item = Backing> {
    Backing::ALL.iter().copied().filter(|backing| backing.page_size() > HUGE_PAGE_BYTES)
}

/// Each check as a test on each of the usual backings.
pub fn trials(checks: &[Check]) -> Vec<Trial> {
    usual().flat_map(|backing| trials_on(backing, FOLIOS, checks)).collect()
}

/// Each check as a test of one page of each gigantic backing.
pub fn trials_on_gigantic(checks: &[Check]) -> Vec<Trial> {
    gigantic().flat_map(|backing| trials_on(backing, 1, checks)).collect()
}

/// Returns the reason if this machine does not have this many folios of this backing.
pub fn lacking(backing: Backing, folios: usize) -> Option<String> {
    let populated = builder(backing, folios).populate_on_allocation(false).build();
    populated.err().map(|error| error.to_string())
}

/// A test of that label and name. A name that begins with `[nightly: REASON] ` makes an ignored test, which
/// `--ignored` runs.
pub fn marked(
    label: &str,
    name: &str,
    run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let label = format!("{label}::").to_lowercase();
    trials::marked(&label, name, || run().map(|()| Completion::Completed))
}

/// Each check as a test that needs as many folios.
pub fn trials_on(backing: Backing, folios: usize, checks: &[Check]) -> Vec<Trial> {
    let lacking = lacking(backing, folios);
    let trial = |&(name, check): &Check| {
        let label = format!("{backing:?}::").to_lowercase();
        let trial = trials::marked(&label, name, move || trials::completion(|| check(backing)));
        unless_lacking(trial, lacking.as_deref())
    };
    checks.iter().map(trial).collect()
}
