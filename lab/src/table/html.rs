//! Prints tables for a browser.

use maud::{Markup, html};

use crate::record::Published;

use super::{Cell, Figure, Table};

/// The table in a box that scrolls on a narrow screen, and its notes below it.
#[must_use]
pub fn render(table: &Table) -> Markup {
    let class = |is_words: bool| is_words.then_some("words");
    html! {
        div.scroll tabindex="0" role="region" aria-label=(table.title) {
            table {
                caption { (table.title) }
                thead {
                    tr {
                        th { (table.head) }
                        @for column in &table.columns { th class=[class(column.is_words)] scope="col" { (column.name) } }
                    }
                }
                tbody {
                    @for row in &table.rows {
                        tr {
                            th scope="row" { (row.head) }
                            @for (cell, column) in row.cells.iter().zip(&table.columns) {
                                td class=[class(column.is_words)] { (content(cell, table)) }
                            }
                        }
                    }
                }
            }
        }
        @for (index, note) in table.notes.iter().enumerate() {
            p.hint { sup { (table.mark(index)) } " " (note) }
        }
    }
}

fn content(cell: &Cell, table: &Table) -> Markup {
    match cell {
        Cell::Empty => html! {},
        Cell::Text(text) => html! { (text) },
        Cell::Figure(figure) => with_mark(figure, table),
        Cell::Published(all) => html! { @for one in all { div { (with_source(one)) } } },
    }
}

/// Losses are bold.
fn with_mark(figure: &Figure, table: &Table) -> Markup {
    html! {
        @for (text, is_loss) in figure.pieces() { @if is_loss { b { (text) } } @else { (text) } }
        @if let Some(note) = figure.note { sup { (table.mark(note)) } }
    }
}

/// The value, the CPU with the spread if the source has it, and the source.
fn with_source(one: &Published) -> Markup {
    let spread = one.spread_percent;
    let spread = spread.map_or(String::new(), |percent| format!(", ± {percent:.1} %"));
    html! { (super::figure(one.value)) " " (one.cpu) (spread) ", " cite { (one.source) } }
}
