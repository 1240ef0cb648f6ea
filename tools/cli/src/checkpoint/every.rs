//! Checkpoints at an interval, until a signal ends them.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, bail};
use hugekit_vm::checkpoint::{
    CheckpointOptions, CheckpointReport, SeriesOptions, checkpoint_series,
};
use serde_json::{Value, json};

use super::explained;
use hugekit_daemon::EndingSignals;
use hugekit_terminal::file::{FileSink, cannot_write};
use hugekit_terminal::text::write_out;

/// The longest wait at the end for a reader of the lines.
const LONGEST_FLUSH: Duration = Duration::from_secs(2);

/// Tells of each checkpoint in a line: on standard output, or as JSON.
pub(super) fn run(
    options: &CheckpointOptions,
    series: &SeriesOptions,
    json: Option<&FileSink>,
) -> anyhow::Result<()> {
    let came = EndingSignals::new()?;
    let (lines, told) = channel::<String>();
    let mut lines_file = match json {
        Some(FileSink::File(path)) => Some(File::create(path).with_context(|| cannot_write(path))?),
        _ => None,
    };
    // Neither the VM nor the end of this command waits for a reader.
    let (end, ended) = channel();
    std::thread::spawn(move || {
        let written = told.iter().try_for_each(|line| match &mut lines_file {
            Some(file) => file.write_all(line.as_bytes()),
            None => write_out(&line),
        });
        let _ = end.send(written);
    });
    let is_json = json.is_some();
    checkpoint_series(options, series, came.as_fd(), &mut |folder, report| {
        let _ = lines.send(line(folder, report, is_json));
    })
    .map_err(explained)?;
    drop(lines);
    match ended.recv_timeout(LONGEST_FLUSH) {
        Ok(written) => Ok(written?),
        Err(_) => bail!("the last lines were not read within {} s", LONGEST_FLUSH.as_secs()),
    }
}

fn line(folder: &Path, report: &CheckpointReport, is_json: bool) -> String {
    if !is_json {
        return format!("{}: {report}\n", folder.display());
    }
    let mut line = serde_json::to_value(report).unwrap_or_default();
    if let Value::Object(fields) = &mut line {
        fields.insert("folder".to_owned(), json!(folder));
    }
    format!("{line}\n")
}
