//! The page for users of Redis, who have the command and no checkout.

use hugekit_testing::checks;
use hugekit_testing::trials::Checks;
use std::path::Path;

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn page_has_the_files_of_the_side_car() {
    let page = read("../../docs/redis.md");
    for path in ["container/compose.yaml", "container/Containerfile"] {
        let file = read(path);
        let lines = file.lines().filter(|line| !line.trim_start().starts_with('#'));
        let text = lines.collect::<Vec<_>>().join("\n");
        assert!(page.contains(text.trim()), "{path} differs from the page:\n{text}");
    }
    assert!(!page.contains("](../tools/cli"), "a user has no checkout");
}

/// The fields of a pass and of its hindrance, as `--json` prints them.
fn page_explains_each_field_of_a_pass() {
    let page = read("../../docs/redis.md");
    let report = serde_json::to_value(hugekit_tend::PassReport::default()).unwrap();
    for field in report.as_object().unwrap().keys().filter(|field| *field != "pid") {
        assert!(page.contains(&format!("`{field}`")), "{field}");
    }
}

pub(crate) const CHECKS: Checks =
    checks![page_has_the_files_of_the_side_car, page_explains_each_field_of_a_pass,];
