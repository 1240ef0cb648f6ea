//! Prints tables as Markdown.

use super::{Cell, Figure, Table};

/// The table without its title and notes, which stand in the text around it.
#[must_use]
pub fn render(table: &Table) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let names = table.columns.iter().map(|column| column.name.clone());
    let heads = line(std::iter::once(table.head.clone()).chain(names).collect());
    let rule = format!("|{}\n", "---|".repeat(table.columns.len() + 1));
    let rows = table.rows.iter().map(|row| {
        let cells = row.cells.iter().map(|cell| text(cell, table));
        line(std::iter::once(row.head.clone()).chain(cells).collect())
    });
    [heads, rule].into_iter().chain(rows).collect()
}

fn text(cell: &Cell, table: &Table) -> String {
    match cell {
        Cell::Empty => String::new(),
        Cell::Text(text) => text.clone(),
        Cell::Figure(figure) => with_mark(figure, table),
        Cell::Published(all) => {
            let each = all.iter().map(|one| format!("{} {}", super::figure(one.value), one.cpu));
            each.collect::<Vec<_>>().join(", ")
        }
    }
}

/// Losses are bold.
fn with_mark(figure: &Figure, table: &Table) -> String {
    let bold = |(text, is_loss)| if is_loss { format!("**{text}**") } else { text };
    let mark = figure.note.map(|note| format!(" {}", table.mark(note).replace('*', "\\*")));
    figure.pieces().into_iter().map(bold).chain(mark).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Column, Row};
    use super::*;

    #[test]
    fn losses_are_bold_and_marks_are_no_emphasis() {
        let of = |value, runs, rounds| {
            Cell::Figure(Figure::ratio(value).within_runs(runs).within_rounds(rounds).noted(0))
        };
        let table = Table {
            head: "before → after".to_owned(),
            columns: vec![Column::numbers("A"), Column::words("B")],
            rows: vec![
                Row {
                    head: "one".into(),
                    cells: vec![of(1.0, (0.9, 1.2), (0.5, 132.4)), Cell::Empty],
                },
                Row {
                    head: "two".into(),
                    cells: vec![of(0.75, (0.7, 0.8), (0.994, 0.991)), Cell::Text("c".into())],
                },
            ],
            ..Table::default()
        };
        let expected = "| before → after | A | B |\n|---|---|---|\n\
             | one | 1.00 (**0.90**–1.20) [**0.50**–132] \\* |  |\n\
             | two | **0.75** (**0.70–0.80**) [**0.99**] \\* | c |\n";
        assert_eq!(render(&table), expected);
    }
}
