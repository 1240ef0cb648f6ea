//! A table as data: built once from a record (`record.rs`), and printed for a terminal, a browser or a Markdown page.

mod figure;
pub mod html;
pub mod markdown;
pub mod record;
pub mod terminal;

pub use figure::{Figure, figure};

use crate::record::Published;

/// A title, heads of columns, and rows of as many cells.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The line above the table, which names the unit if all figures have the same. A Markdown page has a heading there.
    pub title: String,
    /// The name of the rows' heads; often empty.
    pub head: String,
    /// The heads of columns: one for each cell of a row.
    pub columns: Vec<Column>,
    /// The rows, from the top down.
    pub rows: Vec<Row>,
    /// Texts below the table, to which figures refer by index.
    pub notes: Vec<String>,
    /// True if rows and columns may change places, which a terminal does if the table fits better then.
    pub turns: bool,
}

/// The head of a column, and how its cells are aligned.
#[derive(Clone, Debug)]
pub struct Column {
    name: String,
    is_words: bool,
}

impl Column {
    /// Cells are aligned to the right and are never broken.
    pub fn numbers(name: impl Into<String>) -> Self {
        Self { name: name.into(), is_words: false }
    }

    /// Cells are aligned to the left and are broken into lines.
    pub fn words(name: impl Into<String>) -> Self {
        Self { name: name.into(), is_words: true }
    }
}

/// The name of a row, and its cells.
#[derive(Clone, Debug)]
pub struct Row {
    /// The first cell.
    pub head: String,
    /// The others, one for each column.
    pub cells: Vec<Cell>,
}

/// The content of one cell.
#[derive(Clone, Debug)]
pub enum Cell {
    /// Nothing was measured.
    Empty,
    /// Words, or a number that has its own form. A Markdown page prints it as Markdown.
    Text(String),
    /// A measured value.
    Figure(Figure),
    /// Values of published works. A terminal prints them without their sources.
    Published(Vec<Published>),
}

impl Cell {
    /// A figure if there is one.
    pub fn optional(figure: Option<Figure>) -> Self {
        figure.map_or(Self::Empty, Self::Figure)
    }
}

impl Table {
    /// The mark of a note: a star, numbered if there are several notes.
    fn mark(&self, note: usize) -> String {
        if self.notes.len() > 1 { format!("*{}", note + 1) } else { "*".to_owned() }
    }

    /// The same table with its rows as columns.
    fn turned(&self) -> Self {
        let cell = |row: &Row, column: usize| row.cells.get(column).cloned().unwrap_or(Cell::Empty);
        let row = |(index, column): (usize, &Column)| Row {
            head: column.name.clone(),
            cells: self.rows.iter().map(|row| cell(row, index)).collect(),
        };
        Self {
            columns: self.rows.iter().map(|row| Column::numbers(&row.head)).collect(),
            rows: self.columns.iter().enumerate().map(row).collect(),
            ..self.clone()
        }
    }
}

/// The ID of a case or ratio as tables print it: `stores/memset-vs-auto/4KiB` is `memset → auto, 4KiB`.
#[must_use]
pub fn name(id: &str) -> String {
    let rest = id.split_once('/').map_or(id, |(_, rest)| rest);
    match rest.split_once('/') {
        Some((methods, workload)) => format!("{}, {workload}", sides(methods)),
        None => sides(rest),
    }
}

/// `memset-vs-auto` as `memset → auto`.
#[must_use]
pub fn sides(methods: &str) -> String {
    methods.replacen("-vs-", " → ", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_methods_and_the_workload() {
        for (id, expected) in [
            ("stores/memset-vs-auto/4KiB", "memset → auto, 4KiB"),
            ("parallel/serial-vs-threads/clear/16", "serial → threads, clear/16"),
            ("fault/clean/2MiB", "clean, 2MiB"),
            ("learn/1GiB", "1GiB"),
            ("alone", "alone"),
        ] {
            assert_eq!(name(id), expected);
        }
    }
}
