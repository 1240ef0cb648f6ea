//! The conditions of a figure, and whether two figures share them.

use std::fmt;

use serde::Deserialize;

use super::{Difference, Elsewhere, Published};

/// The kernel whose code was timed, if any was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub struct Kernel {
    name: String,
    /// The way in which the kernel does the timed work. Kernels are the same if they do it alike, whatever their names.
    does: Option<String>,
}

impl Kernel {
    /// A kernel of this name, and how it does the timed work, if that is known.
    pub fn new(name: String, does: Option<&str>) -> Self {
        Self { name, does: does.map(str::to_owned) }
    }

    fn is_like(&self, other: &Self) -> bool {
        match (&self.does, &other.does) {
            (Some(one), Some(other)) => one == other,
            _ => self.name == other.name,
        }
    }
}

impl From<String> for Kernel {
    fn from(name: String) -> Self {
        Self { name, does: None }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.does.iter().try_for_each(|does| write!(f, ", {does}"))
    }
}

/// A workload. A published one says what its source says; what the source leaves out cannot differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// The program that ran, and the timed part of it.
    pub ran: String,
    /// The kernel that ran.
    pub kernel: Kernel,
    /// The bytes that it ran over.
    pub memory: Option<String>,
    /// The pages that they were on.
    pub pages: Option<String>,
    /// Threads, or processes, that did it at the same time.
    pub threads: Option<usize>,
    /// The node of the memory, seen from the CPU: `local`.
    pub node: Option<String>,
    /// `on` if a CPU may exceed its nominal frequency, or `off`.
    pub turbo: Option<String>,
    /// The policy that chooses a frequency.
    pub governor: Option<String>,
}

impl Conditions {
    /// Work of one thread in which no kernel has a part.
    pub fn without_kernel(ran: &str) -> Self {
        let (ran, kernel) = (ran.to_owned(), Kernel::new("none".to_owned(), None));
        Self { ran, kernel, threads: Some(1), ..Self::default() }
    }

    fn differences(&self, published: &Self) -> Vec<Difference> {
        let threads = |one: &Self| one.threads.map(|threads| threads.to_string());
        let kernel = (!self.kernel.is_like(&published.kernel))
            .then(|| difference("kernel", &self.kernel.to_string(), &published.kernel.to_string()));
        let (memory, pages) = (&self.memory, &self.pages);
        [
            said("ran", Some(&self.ran), Some(&published.ran)),
            kernel,
            said("memory", memory.as_ref(), published.memory.as_ref()),
            said("pages", pages.as_ref(), published.pages.as_ref()),
            said("threads", threads(self).as_ref(), threads(published).as_ref()),
            known("node", self.node.as_ref(), published.node.as_ref()),
            known("turbo", self.turbo.as_ref(), published.turbo.as_ref()),
            known("governor", self.governor.as_ref(), published.governor.as_ref()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

fn difference(aspect: &str, here: &str, there: &str) -> Difference {
    let [aspect, here, there] = [aspect, here, there].map(str::to_owned);
    Difference { aspect, here, there }
}

/// A part of the workload: it differs if it is not said here.
fn said(aspect: &str, here: Option<&String>, there: Option<&String>) -> Option<Difference> {
    let (here, there) = (here.map_or("unsaid", String::as_str), there?);
    (here != there).then(|| difference(aspect, here, there))
}

/// A setting of the machine, which most virtual machines hide: it differs if both are known.
fn known(aspect: &str, here: Option<&String>, there: Option<&String>) -> Option<Difference> {
    said(aspect, Some(here?), there)
}

/// A published figure with its workload.
#[derive(Clone, Debug)]
pub struct PublishedFigure {
    /// The published figure.
    pub published: Published,
    /// The workload there.
    pub workload: Conditions,
}

impl PublishedFigure {
    /// The differences from the workload of the case or ratio with this ID; `None` if there are none.
    pub fn elsewhere(&self, id: &str, ours: &Conditions) -> Option<Elsewhere> {
        let differs = ours.differences(&self.workload);
        let (beside, published) = (id.to_owned(), self.published.clone());
        (!differs.is_empty()).then_some(Elsewhere { beside, published, differs })
    }

    /// The same of a kernel that does the work in this way.
    pub(super) fn of_kernel(mut self, does: &str) -> Self {
        self.workload.kernel.does = Some(does.to_owned());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::{demand, stores};
    use super::*;

    fn aspects(figure: &PublishedFigure, ours: &Conditions) -> Vec<String> {
        let differs = figure.elsewhere("x", ours).map_or(Vec::new(), |one| one.differs);
        differs.into_iter().map(|one| one.aspect).collect()
    }

    #[test]
    fn a_figure_stands_beside_ours_only_where_all_of_the_workload_is_the_same() {
        let figure = &stores("movnti", "1GiB")[0];
        let same = figure.workload.clone();
        assert_eq!(figure.elsewhere("x", &same), None);
        let pages = Conditions { pages: Some("2MiB".into()), ..same.clone() };
        assert_eq!(figure.elsewhere("x", &pages), None, "the source does not say");
        let (ran, kernel) = ("clears".into(), Kernel::from("Linux 6.18".to_owned()));
        let ours = Conditions { ran, kernel, threads: Some(2), ..Conditions::default() };
        let elsewhere = figure.elsewhere("x", &ours).unwrap();
        let differs: Vec<_> = elsewhere
            .differs
            .iter()
            .map(|one| (one.aspect.as_str(), one.here.as_str(), one.there.as_str()))
            .collect();
        let there = "one pass over a buffer written before";
        let expected = [
            ("ran", "clears", there),
            ("kernel", "Linux 6.18", "none"),
            ("memory", "unsaid", "1GiB"),
            ("threads", "2", "1"),
        ];
        assert_eq!(differs, expected);
    }

    #[test]
    fn kernels_are_compared_by_what_they_do_and_else_by_name() {
        let [before, after] = &demand("2MiB")[..2] else { panic!("two kernels") };
        let of = |does| {
            let kernel = Kernel::new("Linux 9.1".to_owned(), does);
            Conditions { kernel, ..before.workload.clone() }
        };
        let pages = of(Some("clearing page by page"));
        assert_eq!(
            (aspects(before, &pages), aspects(after, &pages)),
            (vec![], vec!["kernel".into()])
        );
        assert_eq!(aspects(after, &of(Some("clearing in ranges"))), [""; 0]);
        assert_eq!(aspects(before, &of(None)), ["kernel"]);
    }

    #[test]
    fn settings_that_the_machine_hides_do_not_differ() {
        let figure = &demand("2MiB")[0];
        let of = |node: Option<&str>, turbo: Option<&str>| {
            let [node, turbo] = [node, turbo].map(|one| one.map(str::to_owned));
            Conditions { node, turbo, ..figure.workload.clone() }
        };
        assert_eq!(aspects(figure, &of(None, None)), [""; 0]);
        assert_eq!(aspects(figure, &of(Some("local"), Some("off"))), [""; 0]);
        assert_eq!(aspects(figure, &of(Some("several"), Some("on"))), ["node", "turbo"]);
    }
}
