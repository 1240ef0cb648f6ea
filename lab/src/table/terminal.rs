//! Prints tables for a terminal of 80 columns.

use comfy_table::{Attribute, CellAlignment, ColumnConstraint, ContentArrangement, presets};
use hugekit_terminal::text::{COLUMNS, wrap};

use crate::record::Published;

use super::{Cell, Table};

/// The space around a column.
const SPACE: usize = 2;

/// The least room for the heads of rows, and the most room for words, which are broken into lines.
const WORDS: usize = 26;

/// The title, the table and its notes. A table that is too wide is printed in parts, each with some of the columns.
#[must_use]
pub fn render(table: &Table) -> String {
    let turned = table.turns.then(|| Layout::of(&table.turned()));
    let fits = |layout: &Layout| layout.groups().len() == 1;
    let layout = turned.filter(fits).unwrap_or_else(|| Layout::of(table));
    let mut lines = wrap(&table.title, COLUMNS);
    lines.extend(layout.groups().iter().map(|group| layout.part(group)));
    for (index, note) in table.notes.iter().enumerate() {
        lines.extend(wrap(&format!("{} {note}", table.mark(index)), COLUMNS));
    }
    lines.join("\n") + "\n"
}

/// A table as text, with the room that its parts need.
struct Layout {
    head: String,
    /// The heads of rows.
    heads: Vec<String>,
    columns: Vec<PrintedColumn>,
}

/// A column as it is printed.
struct PrintedColumn {
    name: String,
    is_words: bool,
    width: usize,
    /// The text of each row, and whether it is a loss.
    cells: Vec<(String, bool)>,
}

impl Layout {
    fn of(table: &Table) -> Self {
        let columns: Vec<PrintedColumn> =
            (0..table.columns.len()).map(|index| PrintedColumn::of(table, index)).collect();
        let used: usize = columns.iter().map(|column| column.width).sum();
        let room = COLUMNS.saturating_sub(used + SPACE).max(WORDS);
        let broken = |head: &str| match width(head) > room {
            true => wrap(head, room.saturating_sub(2)).join("\n  "),
            false => head.to_owned(),
        };
        let heads = table.rows.iter().map(|row| broken(&row.head)).collect();
        Self { head: table.head.clone(), heads, columns }
    }

    /// The columns of each part: as many as fit beside the heads of rows.
    fn groups(&self) -> Vec<Vec<&PrintedColumn>> {
        let heads = self.heads.iter().map(|head| width(head)).max().unwrap_or(0);
        let room = COLUMNS.saturating_sub(heads + SPACE);
        let mut groups: Vec<(usize, Vec<&PrintedColumn>)> = Vec::new();
        for column in &self.columns {
            match groups.last_mut() {
                Some((used, group)) if *used + column.width <= room => {
                    *used += column.width;
                    group.push(column);
                }
                _ => groups.push((column.width, vec![column])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    fn part(&self, group: &[&PrintedColumn]) -> String {
        let mut printed = comfy_table::Table::new();
        printed
            .load_preset(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(COLUMNS as u16)
            .enforce_styling()
            .set_header(std::iter::once(&self.head).chain(group.iter().map(|column| &column.name)));
        // A method has no cells in a part without its workloads.
        let is_empty = |row: usize| group.iter().all(|column| column.cells[row].0.is_empty());
        for (row, head) in self.heads.iter().enumerate().filter(|(row, _)| !is_empty(*row)) {
            let cells = group.iter().map(|column| {
                let (text, is_loss) = &column.cells[row];
                let cell = comfy_table::Cell::new(text);
                if *is_loss { cell.add_attribute(Attribute::Bold) } else { cell }
            });
            printed.add_row(std::iter::once(comfy_table::Cell::new(head)).chain(cells));
        }
        if let Some(heads) = printed.column_mut(0) {
            heads.set_constraint(ColumnConstraint::ContentWidth);
        }
        for (column, of) in printed.column_iter_mut().skip(1).zip(group) {
            if !of.is_words {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        printed.to_string()
    }
}

impl PrintedColumn {
    fn of(table: &Table, index: usize) -> Self {
        let super::Column { name, is_words } = table.columns[index].clone();
        let cells = || table.rows.iter().map(|row| row.cells.get(index).unwrap_or(&Cell::Empty));
        // Figures without a mark have spaces there, so that decimals stay aligned.
        let room = cells().map(|cell| width(&mark(cell, table))).max().unwrap_or(0);
        let cells: Vec<(String, bool)> = cells()
            .map(|cell| match cell {
                Cell::Empty => (String::new(), false),
                Cell::Text(text) => (text.clone(), false),
                Cell::Figure(figure) => {
                    (format!("{}{:room$}", figure.text(), mark(cell, table)), figure.is_loss())
                }
                Cell::Published(all) => {
                    (all.iter().map(short).collect::<Vec<_>>().join(", "), false)
                }
            })
            .collect();
        let widest = cells.iter().map(|(text, _)| width(text)).max().unwrap_or(0);
        let most = if is_words { WORDS } else { COLUMNS };
        let width = widest.min(most).max(width(&name)) + SPACE;
        Self { name, is_words, width, cells }
    }
}

/// The mark of a figure with the space before it.
fn mark(cell: &Cell, table: &Table) -> String {
    let note = if let Cell::Figure(figure) = cell { figure.note } else { None };
    note.map_or(String::new(), |note| format!(" {}", table.mark(note)))
}

/// The length of the longest line.
fn width(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

/// The value with the short name of its CPU: the second word, after the maker.
fn short(one: &Published) -> String {
    let cpu = one.cpu.split(' ').nth(1).unwrap_or(&one.cpu);
    format!("{} {cpu}", super::figure(one.value))
}

#[cfg(test)]
mod tests {
    use super::super::{Column, Figure, Row};
    use super::*;

    fn table(heads: &[&str], columns: &[&str], turns: bool) -> Table {
        let cells = || columns.iter().map(|_| Cell::Figure(Figure::plain(1234.0))).collect();
        Table {
            columns: columns.iter().map(|&name| Column::numbers(name)).collect(),
            rows: heads.iter().map(|&head| Row { head: head.to_owned(), cells: cells() }).collect(),
            turns,
            ..Table::default()
        }
    }

    fn groups(heads: &[&str], columns: &[&str]) -> Vec<usize> {
        Layout::of(&table(heads, columns, false)).groups().iter().map(Vec::len).collect()
    }

    #[test]
    fn a_part_has_the_columns_that_fit_beside_the_heads() {
        assert_eq!(
            groups(&["a-head-of-30-letters-and-more--"], &["123456789012345678"; 5]),
            [2, 2, 1]
        );
        let wide = "w".repeat(100);
        assert_eq!(groups(&["row"], &[&wide, &wide]), [1, 1]);
    }

    #[test]
    fn a_table_is_turned_if_it_fits_then() {
        let names: Vec<String> = (0..12).map(|n| format!("column-{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let turned = render(&table(&["a", "b"], &names, true));
        assert_eq!(turned.lines().count(), 2 + names.len(), "{turned}");
        let parts = render(&table(&["a", "b"], &names, false));
        assert_eq!(parts.lines().count(), 1 + 2 * 3, "{parts}");
    }

    #[test]
    fn a_part_has_only_rows_with_cells() {
        let wide = ["123456789012345678"; 5];
        let mut table = table(&["first-of-two-names-of-30-letters", "second"], &wide, false);
        table.rows[1].cells[..4].fill(Cell::Empty);
        let printed = render(&table);
        assert_eq!(printed.matches("first").count(), 3, "{printed}");
        assert_eq!(printed.matches("second").count(), 1, "{printed}");
    }

    #[test]
    fn a_long_head_is_broken_and_leaves_room_for_the_numbers() {
        let head = format!("{} → {}, {}", "a".repeat(22), "b".repeat(22), "c".repeat(40));
        let printed = render(&table(&[&head], &["median", "min", "max", "pairs"], false));
        assert!(printed.lines().all(|line| line.chars().count() <= COLUMNS), "{printed}");
        assert_eq!(printed.matches("1234").count(), 4, "{printed}");
    }

    #[test]
    fn decimals_are_aligned_beside_marks_and_losses_are_bold() {
        let figure = |figure| Row { head: "x".into(), cells: vec![Cell::Figure(figure)] };
        let table = Table {
            title: "Title".into(),
            columns: vec![Column::numbers("median")],
            rows: vec![figure(Figure::ratio(2.0)), figure(Figure::ratio(0.5).noted(1))],
            notes: vec!["first".into(), "second".into()],
            ..Table::default()
        };
        let printed = render(&table);
        assert!(printed.contains("\u{1b}[1m"), "{printed:?}");
        let plain = anstream::adapter::strip_str(&printed).to_string();
        let lines: Vec<&str> = plain.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            ["Title", "     median", " x  2.00", " x  0.50 *2", "*1 first", "*2 second"]
        );
    }
}
