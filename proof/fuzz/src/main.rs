//! One target under libFuzzer: the one that the environment names.
#![no_main]

use std::sync::OnceLock;

use hugekit_fuzz::Target;

/// Names the target; libFuzzer has all arguments.
const VARIABLE: &str = "HUGEKIT_FUZZ_TARGET";

fn target() -> &'static Target {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = std::env::var(VARIABLE).unwrap_or_default();
        Target::named(&name).unwrap_or_else(|| panic!("{VARIABLE} is {name:?}, no target"))
    })
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target().run(bytes));
