//! `hugekit demo`: each way is gone and checked; how fast is no matter here.

use assert_cmd::Command;

/// What a demonstration prints, or the remedy for what this machine refuses.
fn demo(which: &str) -> Result<String, String> {
    let mut demo = Command::cargo_bin("hugekit").unwrap();
    let output = demo.args(["demo", which, "--size", "8MiB"]).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[test]
fn demo_of_memory_has_every_way_within_80_columns() {
    let said = demo("memory").unwrap();
    for way in [
        "vec![0; n], from the kernel",
        "pool.region(n), from hugekit",
        "the same, cleared only then",
    ] {
        assert!(said.contains(way), "{said}");
    }
    assert!(said.contains("1.0 times as fast"), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
}

#[test]
fn demo_of_forks_and_snapshots_has_every_way_or_a_remedy() {
    for (which, way) in [("fork", "region.fork()"), ("snapshot", "Snapshot::of_region()")] {
        match demo(which) {
            Ok(said) => assert!(said.contains(way), "{said}"),
            Err(said) => assert!(said.contains("remedy: "), "{said}"),
        }
    }
}
