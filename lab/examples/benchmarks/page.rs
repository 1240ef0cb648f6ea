//! The page: the text and rows of `benchmarks.toml`, with the figures of the kept records.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use hugekit_lab::record::archive::Archive;
use hugekit_lab::record::{Record, parts};
use hugekit_lab::table::{Cell, Column, Row, Table, markdown};
use serde::Deserialize;

use super::figure::find;
use super::pictures::{self, Picture, RatioRow, Times};

/// Losses that have no row are listed if their median is below this.
const LISTED: f64 = 0.97;

/// `benchmarks.toml`, with the records that it names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    head: String,
    /// The text of the page of losses, above its table.
    losses: String,
    /// The first words of the names of hugekit's own methods.
    ours: Vec<String>,
    /// The rows of the picture of all ratios.
    ratios: Vec<RatioRow>,
    #[serde(default)]
    picture: Vec<Times>,
    set: Vec<Set>,
    section: Vec<Section>,
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
    /// The name of a picture.
    picture: Option<String>,
    #[serde(default)]
    rows: Vec<FigureRow>,
    /// Figures whose records were not kept.
    #[serde(default)]
    earlier: Vec<EarlierRow>,
}

/// Name, and ID in the records.
#[derive(Clone, Debug, Deserialize)]
struct FigureRow(String, String);

/// Name, machine and figure.
#[derive(Debug, Deserialize)]
struct EarlierRow(String, String, String);

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

    fn rows(&self) -> impl Iterator<Item = &FigureRow> {
        self.section.iter().flat_map(|section| &section.rows)
    }

    /// True if a row has this ID.
    fn has_row(&self, id: &str) -> bool {
        self.rows().any(|row| row.1 == id)
    }

    /// True if a row or a picture has this ID.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.has_row(id) || self.picture.iter().flat_map(Times::cases).any(|case| case == id)
    }

    /// All pictures. The first has all ratios.
    pub(crate) fn pictures(&self) -> Result<Vec<Picture>> {
        let ratios = std::iter::once(pictures::ratios(self, &self.ratios));
        ratios.chain(self.picture.iter().map(|picture| picture.draw(self))).collect()
    }

    /// The whole page.
    pub(crate) fn text(&self, pictures: &[Picture]) -> Result<String> {
        let link = |name: &str| {
            let picture = pictures.iter().find(|picture| picture.name == name);
            picture
                .map(|picture| picture.link(""))
                .with_context(|| format!("no picture has the name {name}"))
        };
        let (machines, ratios) = (markdown::render(&self.machines()?), link("ratios")?);
        let mut text = format!("# Benchmarks\n\n{}\n{machines}\n{ratios}", self.head);
        for Section { title, text: words, picture, rows, earlier } in &self.section {
            let picture = picture.as_deref().map(link).transpose()?;
            let mut parts: Vec<String> = picture.into_iter().collect();
            if !words.is_empty() {
                parts.insert(0, words.clone());
            }
            if !rows.is_empty() {
                parts.push(self.table(rows)?);
            }
            if !earlier.is_empty() {
                parts.push(markdown::render(&table_of_earlier(earlier)));
            }
            // Writing to a String cannot fail.
            let _ = write!(text, "\n## {title}\n\n{}", parts.join("\n"));
        }
        Ok(text)
    }

    /// The page of the losses that the whole page has no row for.
    pub(crate) fn text_of_losses(&self) -> Result<String> {
        let losses = self.table(&self.other_losses())?;
        Ok(format!("# Other losses\n\n{}\n{losses}", self.losses))
    }

    fn machines(&self) -> Result<Table> {
        let mut rows = Vec::new();
        for set in &self.set {
            let first = set.runs.first().with_context(|| format!("{}: no records", set.folder))?;
            let (machine, date) = (&first.machine, first.made.strftime("%Y-%m-%d"));
            let cells = [
                set.cpu.clone(),
                format!("{}, {date}, commit {}", machine.kernel, set.commit),
                format!("{} of `{}`", set.runs.len(), first.command),
            ];
            let head = format!("{}, kept", set.name);
            rows.push(Row { head, cells: cells.map(Cell::Text).into() });
        }
        let columns = ["CPU", "Linux, date", "runs"].map(Column::words).into();
        Ok(Table { head: "machine".to_owned(), columns, rows, ..Table::default() })
    }

    /// The runs of each machine: sets of one name may be of different experiments and commits.
    pub(crate) fn by_machine(&self) -> Vec<(&str, Vec<&Record>)> {
        let mut machines: Vec<(&str, Vec<&Record>)> = Vec::new();
        for set in &self.set {
            match machines.iter_mut().find(|(name, _)| *name == set.name) {
                Some((_, runs)) => runs.extend(&set.runs),
                None => machines.push((&set.name, set.runs.iter().collect())),
            }
        }
        machines
    }

    /// Lines with the figures of each machine that has any.
    fn table(&self, lines: &[FigureRow]) -> Result<String> {
        let has_some = |runs: &[&Record]| lines.iter().any(|line| find(runs, &line.1).is_some());
        let kept: Vec<_> =
            self.by_machine().into_iter().filter(|(_, runs)| has_some(runs)).collect();
        let columns = kept.iter().map(|(name, _)| Column::numbers(format!("{name}, kept")));
        let mut rows = Vec::new();
        for FigureRow(what, id) in lines {
            let found: Vec<_> = kept.iter().map(|(_, runs)| find(runs, id)).collect();
            let is_found = found.iter().any(Option::is_some);
            ensure!(is_found, "row `{what}`: no kept record has {id}");
            let cells = found.into_iter().map(Cell::optional).collect();
            rows.push(Row { head: what.clone(), cells });
        }
        Ok(markdown::render(&Table {
            head: "before → hugekit".to_owned(),
            columns: columns.collect(),
            rows,
            ..Table::default()
        }))
    }

    /// Ratios of the records in which a method of hugekit loses and which no row has, by their ID.
    fn other_losses(&self) -> Vec<FigureRow> {
        let experiments =
            self.set.iter().flat_map(|set| &set.runs).flat_map(|run| &run.experiments);
        let ids = experiments.flat_map(|one| &one.ratios).map(|ratio| ratio.id.as_str());
        let ids: BTreeSet<&str> = ids.filter(|id| self.is_ours(id) && !self.has_row(id)).collect();
        let machines = self.by_machine();
        let is_loss = |runs: &[&Record], id: &str| {
            find(runs, id).is_some_and(|figure| figure.value() < LISTED)
        };
        let lost = ids.into_iter().filter(|id| machines.iter().any(|(_, runs)| is_loss(runs, id)));
        lost.map(|id| FigureRow(format!("`{id}`"), id.to_owned())).collect()
    }

    /// True if the subject of a ratio is a method of hugekit.
    fn is_ours(&self, id: &str) -> bool {
        sides(id).is_some_and(|(_, subject)| self.is_our_method(subject))
    }

    /// True if in addition the baseline is no method of hugekit.
    pub(crate) fn is_ours_against_others(&self, id: &str) -> bool {
        self.is_ours(id) && sides(id).is_some_and(|(baseline, _)| !self.is_our_method(baseline))
    }

    fn is_our_method(&self, method: &str) -> bool {
        let begins = |name: &String| {
            let rest = method.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        self.ours.iter().any(begins)
    }
}

fn table_of_earlier(lines: &[EarlierRow]) -> Table {
    let row = |EarlierRow(what, machine, figure): &EarlierRow| Row {
        head: what.clone(),
        cells: [machine, figure].map(|text| Cell::Text(text.clone())).into(),
    };
    Table {
        head: "before → hugekit, record not kept".to_owned(),
        columns: ["machine", "figure"].map(Column::words).into(),
        rows: lines.iter().map(row).collect(),
        ..Table::default()
    }
}

/// Baseline and subject of a ratio.
fn sides(id: &str) -> Option<(&str, &str)> {
    parts(id)?.0.split_once("-vs-")
}

#[cfg(test)]
mod tests {
    use hugekit_lab::record::Ratio;

    use super::*;

    fn page(rows: &str) -> Page {
        let text = format!(
            "head = 'Head.'\nlosses = 'Losses.'\nours = ['auto']\nratios = [['clear', ['stores']]]\n\
             set = [{{ name = 'A', folder = '', commit = 'c', cpu = 'x' }}]\n\
             [[section]]\ntitle = 'Title'\nrows = [{rows}]\nearlier = [['call', 'B', '3.0']]"
        );
        let mut page: Page = toml::from_str(&text).unwrap();
        let record = include_str!("../../tests/data/record.json");
        page.set[0].runs = vec![Record::parse(record).unwrap()];
        page
    }

    fn printed(page: &Page) -> Result<String> {
        page.text(&page.pictures()?)
    }

    const KEPT: &str = "['long', 'stores/memset-vs-auto/4KiB']";

    #[test]
    fn a_section_has_kept_and_earlier_figures() {
        let text = printed(&page(KEPT)).unwrap();
        assert!(text.contains("| before → hugekit | A, kept |\n"), "{text}");
        assert!(text.contains("| long | 1.52 ["), "{text}");
        assert!(text.contains("| call | B | 3.0 |"), "{text}");
        let earlier = printed(&page("")).unwrap();
        assert!(!earlier.contains("kept |\n") && earlier.contains("| call |"), "{earlier}");
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
        let table = |page: &Page| page.table(&page.section[0].rows).unwrap();
        assert!(table(&page).contains("| A, kept |\n"));
        page.set[2].runs = runs;
        assert!(table(&page).contains("| A, kept | B, kept |\n"));
    }

    #[test]
    fn a_row_without_a_figure_is_refused() {
        let error = printed(&page("['long', 'stores/none/4KiB']")).unwrap_err().to_string();
        assert!(error.contains("no kept record has stores/none/4KiB"), "{error}");
    }

    #[test]
    fn losses_of_ours_that_no_row_has_are_listed() {
        let lost = |rows: &str, ours: &str| {
            let mut page = page(rows);
            page.ours = vec![ours.to_owned()];
            page.set[0].runs[0].experiments[0].ratios[0].median = 0.5;
            page.other_losses().len()
        };
        assert_eq!(lost("", "auto"), 1);
        assert_eq!(lost(KEPT, "auto"), 0);
        assert_eq!(lost("", "memset"), 0);
    }

    #[test]
    fn the_picture_of_ratios_counts_gains_and_losses_of_ours_against_others() {
        let mut page = page(KEPT);
        let ratios = &mut page.set[0].runs[0].experiments[0].ratios;
        let ratio = |id: &str, median| Ratio { id: id.to_owned(), median, ..ratios[0].clone() };
        *ratios = vec![
            ratio("stores/memset-vs-auto/1", 2.0),
            ratio("stores/memset-vs-auto/2", 0.5),
            ratio("stores/memset-vs-auto-ahead/3", 1.0),
            ratio("stores/auto-vs-auto-ahead/4", 1.5),
            ratio("stores/memset-vs-movnti/5", 1.5),
            ratio("stores/memset-vs-automatic/6", 1.5),
        ];
        let picture = &page.pictures().unwrap()[0];
        let words = "3 ratios of hugekit to another method in the kept runs is a dot: hugekit is faster in 1, slower in 1, and \
                     equal in 1";
        assert!(picture.words.contains(words), "{}", picture.words);
        // Four more are in the legend.
        assert_eq!(picture.svg.matches("<circle").count(), 3 + 4, "{}", picture.svg);
        page.ratios = Vec::new();
        let error = page.pictures().err().unwrap().to_string();
        assert!(error.contains("stores is not in one row"), "{error}");
    }

    #[test]
    fn a_picture_of_times_has_the_medians_of_its_set() {
        let mut page = page(KEPT);
        let times = |set: &str, to: &str| {
            let text = format!(
                "name = 'times'\ntitle = 'Times'\nset = '{set}'\nlegend = ['ours', 'others']\n\
                 groups = [['All', [['kernel', 'fault/kernel-4k/4KiB', '{to}', false]]]]"
            );
            vec![toml::from_str(&text).unwrap()]
        };
        page.picture = times("A", "fault/kernel-4k/4KiB");
        let picture = &page.pictures().unwrap()[1];
        assert_eq!(picture.words, "Times. All: kernel 0.00 ms, 0.00 ms.");
        for (set, to, says) in [
            ("B", "fault/kernel-4k/4KiB", "no set has the name B"),
            ("A", "fault/none/4KiB", "no kept time has fault/none/4KiB"),
            ("A", "stores/memset-vs-auto/4KiB", "no kept time has stores/memset-vs-auto/4KiB"),
        ] {
            page.picture = times(set, to);
            let error = page.pictures().err().unwrap().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
