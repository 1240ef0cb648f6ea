//! Where the real programs are: on the path, or where `cargo xtask test --install` unpacks them.

use std::path::Path;
use std::process::Command;

use hugekit_programs::Unpacked;

/// A command that runs one of redis' programs; `Err` says how to get it.
pub fn program(name: &str) -> Result<Command, String> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let found = Unpacked::new(target.join("redis/root")).find(name);
    found.ok_or_else(|| format!("no {name} (apt-get install redis-tools redis-server)"))
}
