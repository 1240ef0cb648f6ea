//! How often a test repeats what chance decides.

/// Cases that a model has unless `PROPTEST_CASES` says another number.
const USUAL_CASES: usize = 256;

/// As often as is usual; in proportion less where `PROPTEST_CASES` has models have fewer cases, because a machine is slow;
/// `HUGEKIT_ROUNDS` times as often in the nightly run.
pub fn rounds(usual: usize) -> usize {
    let said = |name| std::env::var(name).ok().and_then(|said| said.parse::<usize>().ok());
    let times = said("HUGEKIT_ROUNDS").unwrap_or(1);
    said("PROPTEST_CASES")
        .map_or(usual * times, |cases| (usual * cases / USUAL_CASES).clamp(8.min(usual), usual))
}
