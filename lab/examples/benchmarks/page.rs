//! The page: the text and rows of `benchmarks.toml`, with the figures of the kept records.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use hugekit_lab::record::archive::Archive;
use hugekit_lab::record::{Record, parts};
use serde::Deserialize;

use super::figure::Figure;

/// Other losses of hugekit are listed if their median is below this.
const LISTED: f64 = 0.97;

/// `benchmarks.toml`, with the records that it names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    head: String,
    /// The text above the list of other losses.
    losses: String,
    /// The beginnings of the names of hugekit's own methods.
    ours: Vec<String>,
    set: Vec<Set>,
    section: Vec<Section>,
    readme: Vec<Chosen>,
}

/// Kept records of one machine, kernel and commit.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    name: String,
    folder: String,
    commit: String,
    cpu: String,
    #[serde(skip)]
    runs: Vec<Record>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    title: String,
    #[serde(default)]
    text: String,
    rows: Vec<Row>,
}

/// Name, ID in the records or nothing, and earlier figures.
#[derive(Clone, Debug, Deserialize)]
struct Row(String, String, String);

/// A row of the README: its name there, and the ID or the name of the row that has its figures.
#[derive(Debug, Deserialize)]
struct Chosen(String, String);

impl Page {
    /// Reads the page and all records that it names, in this folder.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("benchmarks.toml");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let mut page: Self = toml::from_str(&text).with_context(|| path.display().to_string())?;
        for set in &mut page.set {
            let records = Archive::within(folder.join(&set.folder)).list()?;
            set.runs = records.into_iter().map(|kept| kept.record).collect::<Result<_, _>>()?;
        }
        Ok(page)
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.section.iter().flat_map(|section| &section.rows)
    }

    /// Whether a row has this ID.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.rows().any(|row| row.1 == id)
    }

    /// The whole page.
    pub(crate) fn text(&self) -> Result<String> {
        let mut text = format!("# Benchmarks\n\n{}\n{}", self.head, self.machines()?);
        for Section { title, text: words, rows } in &self.section {
            let words = if words.is_empty() { String::new() } else { format!("{words}\n") };
            // Writing to a String cannot fail.
            let _ = write!(text, "\n## {title}\n\n{words}{}", self.table(rows)?);
        }
        let losses = self.table(&self.other_losses())?;
        Ok(format!("{text}\n## Other losses\n\n{}\n{losses}", self.losses))
    }

    /// The README's table.
    pub(crate) fn results(&self) -> Result<String> {
        let find = |Chosen(name, key): &Chosen| {
            let rows: Vec<&Row> =
                self.rows().filter(|row| [&row.0, &row.1].contains(&key)).collect();
            let [row] = rows[..] else { bail!("README: {} rows are `{key}`, not one", rows.len()) };
            Ok(Row(name.clone(), row.1.clone(), row.2.clone()))
        };
        self.table(&self.readme.iter().map(find).collect::<Result<Vec<_>>>()?)
    }

    fn machines(&self) -> Result<String> {
        let mut rows = Vec::new();
        for set in &self.set {
            let first = set.runs.first().with_context(|| format!("{}: no records", set.folder))?;
            let (machine, date) = (&first.machine, first.made.strftime("%Y-%m-%d"));
            rows.push(vec![
                format!("{}, kept", set.name),
                set.cpu.clone(),
                format!("{}, {date}, commit {}", machine.kernel, set.commit),
                format!("{} of `{}`", set.runs.len(), first.command),
            ]);
        }
        Ok(markdown(&["machine", "CPU", "Linux, date", "runs"], &rows))
    }

    /// The runs of each machine: sets of one name may be of different experiments and commits.
    fn by_machine(&self) -> Vec<(&str, Vec<&Record>)> {
        let mut machines: Vec<(&str, Vec<&Record>)> = Vec::new();
        for set in &self.set {
            match machines.iter_mut().find(|(name, _)| *name == set.name) {
                Some((_, runs)) => runs.extend(&set.runs),
                None => machines.push((&set.name, set.runs.iter().collect())),
            }
        }
        machines
    }

    /// Rows with the figures of each machine that has any, and earlier figures.
    fn table(&self, rows: &[Row]) -> Result<String> {
        let is_earlier = rows.iter().any(|row| !row.2.is_empty());
        let has_some =
            |runs: &[&Record]| rows.iter().any(|row| Figure::find(runs, &row.1).is_some());
        let kept: Vec<_> =
            self.by_machine().into_iter().filter(|(_, runs)| has_some(runs)).collect();
        let names: Vec<String> = kept.iter().map(|(name, _)| format!("{name}, kept")).collect();
        let mut heads = vec!["before → hugekit"];
        heads.extend(names.iter().map(String::as_str));
        heads.extend(is_earlier.then_some("earlier"));
        let mut cells = Vec::new();
        for Row(what, id, earlier) in rows {
            let found: Vec<_> = kept.iter().map(|(_, runs)| Figure::find(runs, id)).collect();
            let is_found = found.iter().any(Option::is_some);
            ensure!(id.is_empty() || is_found, "row `{what}`: no kept record has {id}");
            ensure!(is_found || !earlier.is_empty(), "row `{what}` has no figure");
            let found =
                found.iter().map(|one| one.as_ref().map_or(String::new(), Figure::to_string));
            let earlier = is_earlier.then(|| earlier.clone());
            cells.push(std::iter::once(what.clone()).chain(found).chain(earlier).collect());
        }
        Ok(markdown(&heads, &cells))
    }

    /// Ratios of the records in which a method of hugekit loses and which no row has, by their ID.
    fn other_losses(&self) -> Vec<Row> {
        let experiments =
            self.set.iter().flat_map(|set| &set.runs).flat_map(|run| &run.experiments);
        let ids = experiments.flat_map(|one| &one.ratios).map(|ratio| ratio.id.as_str());
        let ids: BTreeSet<&str> = ids.filter(|id| self.is_ours(id) && !self.has(id)).collect();
        let machines = self.by_machine();
        let is_loss = |runs: &[&Record], id: &str| {
            Figure::find(runs, id).is_some_and(|figure| figure.median() < LISTED)
        };
        let lost = ids.into_iter().filter(|id| machines.iter().any(|(_, runs)| is_loss(runs, id)));
        lost.map(|id| Row(format!("`{id}`"), id.to_owned(), String::new())).collect()
    }

    /// Whether a ratio's subject is a method of hugekit's.
    fn is_ours(&self, id: &str) -> bool {
        let subject = parts(id).and_then(|(methods, _)| Some(methods.split_once("-vs-")?.1));
        subject.is_some_and(|subject| self.ours.iter().any(|name| subject.starts_with(name)))
    }
}

/// A table in Markdown.
fn markdown(heads: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let heads: Vec<String> = heads.iter().map(|&head| head.to_owned()).collect();
    let rule = format!("|{}\n", "---|".repeat(heads.len()));
    [line(&heads), rule].into_iter().chain(rows.iter().map(|row| line(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(rows: &str) -> Page {
        let text = format!(
            "head = 'Head.'\nlosses = 'Losses.'\nours = ['auto']\nreadme = [['short', 'long']]\n\
             set = [{{ name = 'A', folder = '', commit = 'c', cpu = 'x' }}]\n\
             [[section]]\ntitle = 'Title'\nrows = [{rows}]"
        );
        let mut page: Page = toml::from_str(&text).unwrap();
        let record = include_str!("../../tests/data/record.json");
        page.set[0].runs = vec![Record::parse(record).unwrap()];
        page
    }

    const KEPT: &str = "['long', 'stores/memset-vs-auto/4KiB', 'B 3.0']";

    #[test]
    fn a_row_has_kept_and_earlier_figures() {
        let text = page(KEPT).text().unwrap();
        assert!(text.contains("| before → hugekit | A, kept | earlier |"), "{text}");
        assert!(text.contains("| long | 1.52 ("), "{text}");
        assert!(text.contains("] | B 3.0 |"), "{text}");
        let earlier = page("['long', '', 'B 3.0']").text().unwrap();
        assert!(earlier.contains("| long | B 3.0 |"), "{earlier}");
    }

    #[test]
    fn sets_of_one_machine_have_one_column_and_other_machines_one_if_they_have_a_figure() {
        let mut page = page(KEPT);
        let set = |name: &str, runs: Vec<Record>| {
            let (folder, commit, cpu) = (String::new(), "d".to_owned(), "y".to_owned());
            Set { name: name.to_owned(), folder, commit, cpu, runs }
        };
        let runs = page.set[0].runs.clone();
        page.set.push(set("A", Vec::new()));
        page.set.push(set("B", Vec::new()));
        assert!(page.results().unwrap().contains("| A, kept | earlier |"));
        page.set[2].runs = runs;
        assert!(page.results().unwrap().contains("| A, kept | B, kept | earlier |"));
    }

    #[test]
    fn a_row_without_a_figure_is_refused() {
        for (row, says) in [
            ("['long', 'stores/none/4KiB', 'B 3.0']", "no kept record has stores/none/4KiB"),
            ("['long', '', '']", "has no figure"),
        ] {
            let error = page(row).text().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn the_readme_has_the_figures_of_its_rows() {
        assert!(page(KEPT).results().unwrap().contains("| short | 1.52 ("));
        let error = page("['other', '', 'B 3.0']").results().unwrap_err().to_string();
        assert!(error.contains("0 rows are `long`, not one"), "{error}");
    }

    #[test]
    fn losses_of_ours_that_no_row_has_are_listed() {
        let lost = |rows: &str, ours: &str| {
            let mut page = page(rows);
            page.ours = vec![ours.to_owned()];
            page.set[0].runs[0].experiments[0].ratios[0].median = 0.5;
            page.other_losses().len()
        };
        assert_eq!(lost("['long', '', 'B 3.0']", "auto"), 1);
        assert_eq!(lost(KEPT, "auto"), 0);
        assert_eq!(lost("['long', '', 'B 3.0']", "memset"), 0);
    }
}
