//! `hugekit report`: one page of one or more records.

use clap::Args;
use hugekit_record::Record;

use crate::file::Sink;
use crate::operand::Operand;

/// Make a page of charts from records, for a browser.
///
/// All records are compared with the first one.
#[derive(Debug, Args)]
#[command(after_help = "Example: hugekit report last --html page.html")]
pub(crate) struct Report {
    /// Records, by file, by ID or its first characters, or `last`
    #[arg(value_name = "RECORD", required = true)]
    records: Vec<Operand>,
    /// The page; `-` prints it
    #[arg(long, value_name = "FILE|-")]
    html: Sink,
}

impl Report {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let records: Vec<(String, Record)> =
            self.records.iter().map(Operand::read).collect::<anyhow::Result<_>>()?;
        self.html.open()?.write(&hugekit_report::page(&records))
    }
}
