//! `hugekit image unpack`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use hugekit_machine::size::Size;
use hugekit_terminal::text::write_out;
use hugekit_vm::oci::{UnpackOptions, UnpackReport, unpack};

use super::of_oci;
use crate::progress;

/// Unpack a VM from an OCI image layout, into the folder of a checkpoint.
///
/// The folder has the files `vmstate` and `memory`. Each byte is compared with its hash, and each blob with its digest.
/// `hugekit pager --oci` serves a VM without unpacking it.
#[derive(Debug, Args)]
#[command(after_help = "Example: skopeo copy docker://registry.example/vm:v1 oci:layout && \
    hugekit image unpack layout -o saved")]
pub(super) struct Unpack {
    /// The layout; of a layout with several images, LAYOUT:TAG
    #[arg(value_name = "LAYOUT[:TAG]")]
    layout: PathBuf,
    /// Leave deltas as files, each in a folder of its own, such as `hugekit checkpoint --every` makes, instead of applying
    /// them
    #[arg(long)]
    keep_deltas: bool,
    /// The number of threads that decompress [default: one for each CPU]
    #[arg(long, value_name = "COUNT")]
    threads: Option<NonZeroUsize>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// The folder that is made
    #[arg(short, long, value_name = "SAVED")]
    output: PathBuf,
}

impl Unpack {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let bar = progress::of_bytes("unpacking", 0);
        let options = UnpackOptions {
            layout: self.layout.clone(),
            output: self.output.clone(),
            keep_deltas: self.keep_deltas,
            threads: self.threads,
        };
        let report = unpack(&options, &|done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let report = report.map_err(of_oci)?;
        let text = if self.json {
            serde_json::to_string_pretty(&report)? + "\n"
        } else {
            self.text(&report)
        };
        write_out(&text).context("cannot write to standard output")
    }

    fn text(&self, report: &UnpackReport) -> String {
        let size = |bytes: u64| Size(usize::try_from(bytes).unwrap_or(usize::MAX)).to_string();
        let memory: Vec<String> =
            report.memory.iter().map(|path| path.display().to_string()).collect();
        format!(
            "{}: {} of memory, {} written\nstate: {}\nmemory: {}\n",
            self.output.display(),
            size(report.memory_bytes),
            size(report.written_bytes),
            report.state.display(),
            memory.join(" "),
        )
    }
}
