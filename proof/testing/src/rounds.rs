//! How often a test repeats what chance decides.

/// Cases that a model has unless `PROPTEST_CASES` says another number.
const USUAL_CASES: usize = 256;

/// The nightly run repeats a test this many times as often.
const NIGHTLY: usize = 4;

/// Returns the number of rounds of a test: the usual one, fewer in proportion if `PROPTEST_CASES` gives models fewer
/// cases because a machine is slow, and more in the nightly run, which sets `HUGEKIT_NIGHTLY`.
pub fn rounds(usual: usize) -> usize {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|said| said.parse::<usize>().ok());
    let times = if std::env::var_os("HUGEKIT_NIGHTLY").is_some() { NIGHTLY } else { 1 };
    cases.map_or(usual * times, |cases| (usual * cases / USUAL_CASES).clamp(8.min(usual), usual))
}
