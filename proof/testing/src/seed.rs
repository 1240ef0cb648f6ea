//! The seed of a test's random choices.

/// The environment variable that names another seed than 1. `cargo xtask nightly` sets it to a new number each time.
const VARIABLE: &str = "HUGEKIT_SEED";

/// Returns a generator that makes the same choices in every run, and prints how to repeat them. The test harness shows
/// the line if the test fails.
///
/// # Panics
/// If the environment variable `HUGEKIT_SEED` is not a number.
pub fn random() -> fastrand::Rng {
    let seed = std::env::var(VARIABLE).map_or(1, |seed| {
        seed.parse().unwrap_or_else(|_| panic!("{VARIABLE}={seed:?} is not a number"))
    });
    println!("{VARIABLE}={seed} repeats the random choices");
    fastrand::Rng::with_seed(seed)
}
