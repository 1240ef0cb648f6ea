//! The findings about this machine, line by line, and a remedy for each missing one.
//!
//! The doctor first reads each fact separately. Lines are pure functions of facts. The doctor
//! prints nothing and changes no setting. It makes a pool of one huge page and frees it. A file that
//! it cannot read costs only the line that needed it. The command prints its [`Report`], the C
//! library returns it as JSON, and the Python package returns it as objects.
#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod caches;
mod cpus;
mod facts;
mod kvm;
mod line;
mod lines;
mod machine;
mod memory;
mod pools;
mod process;
mod routines;
mod thp;
mod units;
mod userfaultfd;

use hugekit_machine::Root;
use serde::Serialize;

use self::facts::Facts;
pub use self::facts::host::Host;
pub use self::line::{Line, Topic, Verdict};
pub use self::machine::Machine;
pub use self::process::{ProcessReport, examine_process};

/// All that the doctor has to say; serialised, what `hugekit doctor --json` prints.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Name and version of this form.
    pub schema: &'static str,
    /// Which machine it is.
    pub machine: Machine,
    /// The findings, by topic.
    pub lines: Vec<Line>,
}

/// Examines a machine. `None` if not even the first files of `/proc` and `/sys` can be read.
#[must_use]
pub fn examine(root: &Root) -> Option<Report> {
    let facts = Facts::read(root);
    (!facts.nothing_is_known()).then(|| Report {
        schema: "hugekit-doctor/1",
        machine: Machine::from(&facts),
        lines: lines::all(&facts),
    })
}

/// Runs the README's program as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
