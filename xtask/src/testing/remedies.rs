//! What has a skipped test run, by the reason that it gives.

/// Parts of reasons, and what to do. Reasons that name their remedy themselves are not here.
const REMEDIES: [(&str, &str); 5] = [
    (
        "huge page",
        "`cargo xtask test` reserves them as root, where a quarter of the available memory has room",
    ),
    (
        "this CPU lacks",
        "on a CPU that has it: `cargo xtask fleet --list` names those that are emulated",
    ),
    ("one node", "in a guest of several nodes: `cargo xtask fleet --only two-nodes`"),
    ("/dev/kvm", "where this machine, or the host of this guest, lends it"),
    ("no faults can be served", "`cargo run --release -- doctor` says what permits them"),
];

pub(super) fn of(reason: &str) -> Option<&'static str> {
    let (_, remedy) = REMEDIES.iter().find(|(part, _)| reason.contains(part))?;
    Some(remedy)
}
