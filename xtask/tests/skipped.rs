//! No test: the last program of `cargo test` prints how many tests the others skipped, why, and what has them run.
//!
//! Cargo runs test programs in the order of their packages' names, and `xtask/runner.sh` keeps the lines of skipped tests.

#[path = "../src/count.rs"]
#[allow(dead_code, unused_imports, reason = "`cargo xtask` uses the rest")]
mod count;

use std::fs;

use count::Count;

fn main() -> std::io::Result<()> {
    let program = std::env::current_exe()?;
    let folder = program.ancestors().nth(2).unwrap_or(&program).join("skipped");
    let mut count = Count::default();
    for kept in fs::read_dir(&folder).into_iter().flatten() {
        fs::read_to_string(kept?.path())?.lines().for_each(|line| count.read(line));
    }
    // A program that is renamed or removed leaves nothing for the next run.
    let _ = fs::remove_dir_all(folder);
    println!("\nSkipped tests, and why:");
    count.print_skipped();
    Ok(())
}
