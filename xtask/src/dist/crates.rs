//! The crates as their registry would get them.

use anyhow::Result;

use super::Tried;

/// Packages and compiles all that is published, as `cargo publish` does, and uploads nothing.
pub(super) fn rehearse() -> Result<Tried> {
    crate::cargo(&["publish", "--workspace", "--dry-run", "--allow-dirty"])?;
    Ok(Tried::Works("each is packaged and compiles from its package".to_owned()))
}
