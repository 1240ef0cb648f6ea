//! `hugekit image pack`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use hugekit_machine::size::Size;
use hugekit_terminal::text::{count, write_out};
use hugekit_vm::oci::{PackOptions, PackReport, pack};

use super::of_oci;
use crate::progress;

/// Pack a saved VM as an OCI image layout, which skopeo and oras copy to any registry.
///
/// SAVED is a folder of `hugekit checkpoint`. The files of any other snapshot of Firecracker are named by --state and
/// --memory. The layout has layers for the state, the memory, each delta, and the memory that the VM touches first, if
/// `hugekit pager` has recorded it. A registry stores each layer once.
#[derive(Debug, Args)]
#[command(after_help = "Example: hugekit image pack saved -o layout && skopeo copy \
    oci:layout docker://registry.example/vm:v1")]
pub(super) struct Pack {
    /// The folder of a full checkpoint
    #[arg(value_name = "SAVED", required_unless_present = "memory", conflicts_with = "memory")]
    saved: Option<PathBuf>,
    /// The state file of a snapshot, instead of SAVED
    #[arg(long, value_name = "FILE", requires = "memory")]
    state: Option<PathBuf>,
    /// The memory file of a snapshot, instead of SAVED
    #[arg(long, value_name = "FILE", requires = "state")]
    memory: Option<PathBuf>,
    /// Folders of later checkpoints with deltas, the oldest first
    #[arg(long = "delta", value_name = "FOLDER", num_args = 1..)]
    deltas: Vec<PathBuf>,
    /// The file with the memory that the VM touches first [default: MEMORY.working-set, if it is
    /// of this memory]
    #[arg(long, value_name = "FILE")]
    working_set: Option<PathBuf>,
    /// The tag of the image in the layout
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// The number of threads that compress [default: one for each CPU]
    #[arg(long, value_name = "COUNT")]
    threads: Option<NonZeroUsize>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// The folder that is made
    #[arg(short, long, value_name = "LAYOUT")]
    output: PathBuf,
}

impl Pack {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let bar = progress::of_bytes("packing", 0);
        let report = pack(&self.options(), &|done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let report = report.map_err(of_oci)?;
        let text = if self.json {
            serde_json::to_string_pretty(&report)? + "\n"
        } else {
            self.line(&report)
        };
        write_out(&text).context("cannot write to standard output")
    }

    fn options(&self) -> PackOptions {
        let output = self.output.clone();
        let files = match (&self.saved, &self.state, &self.memory) {
            (_, Some(state), Some(memory)) => {
                PackOptions::of_files(state.clone(), memory.clone(), output)
            }
            (saved, ..) => PackOptions::of_saved(&saved.clone().unwrap_or_default(), output),
        };
        PackOptions {
            deltas: self.deltas.clone(),
            working_set: self.working_set.clone(),
            tag: self.tag.clone(),
            threads: self.threads,
            ..files
        }
    }

    fn line(&self, report: &PackReport) -> String {
        let size = |bytes: u64| Size(usize::try_from(bytes).unwrap_or(usize::MAX)).to_string();
        let set = report
            .working_set_bytes
            .map_or("no working set".to_owned(), |bytes| format!("working set of {}", size(bytes)));
        let deltas: u64 = report.delta_bytes.iter().sum();
        format!(
            "{}: {} of memory, {} not zero, packed in {}; {} in {}; {set}\n{}\n",
            self.output.display(),
            size(report.memory_bytes),
            size(report.data_bytes),
            size(report.packed_bytes),
            size(deltas),
            count(report.delta_bytes.len() as u64, "delta"),
            report.digest,
        )
    }
}
