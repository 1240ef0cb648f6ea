//! Text and bytes that a stranger may hand to hugekit, each kind with the properties that hold for all of it.
//!
//! A target takes any bytes and panics where a property does not hold. `cargo xtask fuzz` lets libFuzzer look for such
//! bytes; every test run replays those that were kept (`corpus/`).

mod delta;
mod layout;
mod lease;
mod machine;
mod record;

/// Something that reads what strangers write.
#[derive(Debug)]
pub struct Target {
    /// Its name, and that of its folder of kept inputs.
    pub name: &'static str,
    run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "record", run: record::run },
    Target { name: "machine", run: machine::run },
    Target { name: "lease", run: lease::run },
    Target { name: "delta", run: delta::run },
    Target { name: "layout", run: layout::run },
];

impl Target {
    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Gives it these bytes.
    ///
    /// # Panics
    /// If a property does not hold for them.
    pub fn run(&self, bytes: &[u8]) {
        (self.run)(bytes);
    }
}
