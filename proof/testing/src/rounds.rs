//! How often a test repeats what chance decides.

/// Cases that a model has unless `PROPTEST_CASES` says another number.
const USUAL_CASES: usize = 256;

/// The nightly run repeats a test this many times as often.
const NIGHTLY: usize = 4;

/// As often as is usual; in proportion less where `PROPTEST_CASES` has models have fewer cases, because a machine is slow;
/// more often in the nightly run, which sets `HUGEKIT_NIGHTLY`.
pub fn rounds(usual: usize) -> usize {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|said| said.parse::<usize>().ok());
    let times = if std::env::var_os("HUGEKIT_NIGHTLY").is_some() { NIGHTLY } else { 1 };
    cases.map_or(usual * times, |cases| (usual * cases / USUAL_CASES).clamp(8.min(usual), usual))
}
