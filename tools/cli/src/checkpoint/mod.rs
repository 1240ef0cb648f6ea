//! `hugekit checkpoint`: arguments, and the report.

mod every;

use clap::Args;
use hugekit_vm::checkpoint::{CheckpointError, CheckpointOptions, SeriesOptions, checkpoint};

use hugekit_terminal::file::FileSink;
use hugekit_terminal::outcome::Remedied;
use hugekit_terminal::text::write_out;

/// Save a running Firecracker VM: paused for milliseconds.
///
/// The VM must have been restored by `hugekit pager`, and the pager must have left the VM ("left to
/// the kernel"). Its memory is protected in the pause, and copied while the VM runs. A write of the
/// VM to memory that is not copied yet waits until 2 MiB are copied.
///
/// Makes the folder DIR with the files `vmstate` and `memory`, which Firecracker restores by `File`
/// and by `Uffd`. The folder is complete or absent. If the command is killed, the VM runs on.
///
/// With --delta, DIR has `memory.delta` instead of `memory`: the blocks of 4 KiB that differ from
/// the last of the named checkpoints. `hugekit pager` and `hugekit image load` restore `memory` with
/// the deltas after it.
///
/// With --every, the command saves the VM again and again until a signal ends it: into DIR/000001,
/// DIR/000002 and so on. It notes what the VM writes, so each delta reads only that.
#[derive(Debug, Args)]
#[command(after_help = "Example: hugekit checkpoint --api /tmp/vm1.sock --output saved")]
pub(crate) struct CheckpointCommand {
    #[command(flatten)]
    options: CheckpointOptions,
    #[command(flatten)]
    series: Option<SeriesOptions>,
    /// Write times and bytes as JSON; `-` prints them
    #[arg(long, value_name = "FILE|-")]
    json: Option<FileSink>,
}

impl CheckpointCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        if let Some(series) = &self.series {
            return every::run(&self.options, series, self.json.as_ref());
        }
        let json = self.json.as_ref().map(FileSink::open).transpose()?;
        let report = checkpoint(&self.options).map_err(explained)?;
        match json {
            Some(sink) => sink.write_json(&report),
            None => Ok(write_out(&format!("{report}\n"))?),
        }
    }
}

fn explained(error: CheckpointError) -> anyhow::Error {
    let remedy = error.remedy().map(str::to_owned);
    Remedied::error(error, remedy)
}
