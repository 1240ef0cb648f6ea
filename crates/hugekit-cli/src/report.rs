//! `hugekit report`: one page of one or more records.

use clap::Args;
use hugekit_lab::record::Record;
use hugekit_lab::report;

use crate::file::Sink;
use crate::operand::Operand;

/// Make a page of records, which needs nothing but a browser; the others are compared with the first.
#[derive(Debug, Args)]
pub(crate) struct Report {
    /// Records, by file or ID (or how it begins, or `last`)
    #[arg(value_name = "RECORD", required = true)]
    records: Vec<Operand>,
    /// Where to write it; `-` prints it
    #[arg(long, value_name = "FILE|-")]
    html: Sink,
}

impl Report {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let records: Vec<(String, Record)> =
            self.records.iter().map(Operand::read).collect::<anyhow::Result<_>>()?;
        self.html.open()?.write(&report::page(&records))
    }
}
