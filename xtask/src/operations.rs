//! Random operations through the C interface, which a test of that crate generates, checks and shortens.

use anyhow::Result;

/// Runs sequences for so long, from this seed or another one each time. Whether nothing was found.
pub(crate) fn run(seconds: u32, seed: Option<u32>) -> Result<bool> {
    let mut cargo = crate::command(&["test", "--package", "hugekit-c", "--test", "operations"]);
    cargo.env("HUGEKIT_FUZZ_SECONDS", seconds.to_string());
    if let Some(seed) = seed {
        cargo.env("HUGEKIT_FUZZ_SEED", seed.to_string());
    }
    Ok(cargo.status()?.success())
}
