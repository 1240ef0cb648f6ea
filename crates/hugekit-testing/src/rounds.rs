//! How often a test repeats what chance decides.

/// Cases that a model has unless `PROPTEST_CASES` says another number.
const USUAL_CASES: usize = 256;

/// As often as is usual; in proportion less where models are to have fewer cases, because a machine is slow.
pub fn rounds(usual: usize) -> usize {
    let said = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse::<usize>().ok());
    said.map_or(usual, |cases| (usual * cases / USUAL_CASES).clamp(8.min(usual), usual))
}
