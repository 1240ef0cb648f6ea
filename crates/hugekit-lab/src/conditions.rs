//! The workload that a figure is of, as data: two figures may stand beside each other only where it is the
//! same, the kernel included.

use serde::{Deserialize, Serialize};

/// Of a workload in whose time no kernel has a part.
pub(crate) const NO_KERNEL: &str = "none";

/// What was measured. A published one says what its source says; what the source leaves out cannot differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conditions {
    /// What ran, and what of it was timed.
    pub(crate) ran: String,
    /// The kernel whose code was timed, or [`NO_KERNEL`].
    pub(crate) kernel: String,
    /// The bytes that it ran over.
    pub(crate) memory: Option<String>,
    /// The pages that they were on.
    pub(crate) pages: Option<String>,
    /// Threads, or processes, that did it at the same time.
    pub(crate) threads: Option<usize>,
}

impl Conditions {
    /// What differs from a published workload.
    pub(crate) fn differences(&self, published: &Self) -> Vec<Difference> {
        let pairs = self.aspects().into_iter().zip(published.aspects());
        let differs = |((aspect, here), (_, there)): (Aspect, Aspect)| {
            let here = here.unwrap_or_else(|| "unsaid".to_owned());
            let there = there.filter(|there| *there != here)?;
            Some(Difference { aspect: aspect.to_owned(), here, there })
        };
        pairs.filter_map(differs).collect()
    }

    fn aspects(&self) -> [Aspect; 5] {
        [
            ("ran", Some(self.ran.clone())),
            ("kernel", Some(self.kernel.clone())),
            ("memory", self.memory.clone()),
            ("pages", self.pages.clone()),
            ("threads", self.threads.map(|threads| threads.to_string())),
        ]
    }
}

/// One thing that two workloads may differ in: its name, and what it is, if that is said.
type Aspect = (&'static str, Option<String>);

/// One thing in which a published workload is not the one that was measured here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// What differs: `kernel`, `memory`.
    pub aspect: String,
    /// What it is here.
    pub here: String,
    /// What it was there.
    pub there: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions() -> Conditions {
        Conditions {
            ran: "demand faults".into(),
            kernel: "Linux of 2023-04".into(),
            memory: Some("64GiB".into()),
            pages: Some("2MiB".into()),
            threads: Some(1),
        }
    }

    #[test]
    fn a_workload_that_is_the_same_differs_in_nothing() {
        assert_eq!(conditions().differences(&conditions()), []);
    }

    #[test]
    fn every_aspect_may_differ_the_kernel_among_them() {
        let ours = Conditions {
            ran: "clears".into(),
            kernel: "Linux 6.18.5".into(),
            memory: Some("1GiB".into()),
            pages: None,
            threads: Some(2),
        };
        let differences = ours.differences(&conditions());
        let differences: Vec<_> = differences
            .iter()
            .map(|d| (d.aspect.as_str(), d.here.as_str(), d.there.as_str()))
            .collect();
        let expected = [
            ("ran", "clears", "demand faults"),
            ("kernel", "Linux 6.18.5", "Linux of 2023-04"),
            ("memory", "1GiB", "64GiB"),
            ("pages", "unsaid", "2MiB"),
            ("threads", "2", "1"),
        ];
        assert_eq!(differences, expected);
    }

    #[test]
    fn what_a_source_does_not_say_cannot_differ() {
        let published = Conditions { memory: None, pages: None, threads: None, ..conditions() };
        assert_eq!(conditions().differences(&published), []);
    }
}
