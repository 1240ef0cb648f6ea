//! `hugekit warm`: files whose page cache is on huge pages.

mod stop;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use hugekit::{Cancel, error_chain};
use hugekit_daemon::Notices;
use hugekit_machine::plain;
use hugekit_terminal::outcome::INTERRUPTED;
use hugekit_terminal::text::{say, write_out};
use hugekit_warm::{CacheLock, FileUsers, WarmError, WarmMode, WarmOptions, WarmReport, Warmer};
use serde_json::{Value, json};

use crate::progress;
use stop::StopSignals;

/// Put the page cache of files on huge pages, for every process.
///
/// A file that is in the page cache in pieces of 2 MiB costs a process that maps it one page fault for each 2 MiB. The
/// process needs no change: a VM that is restored from a memory file, numpy.memmap, or a loader of model weights. The
/// file is dropped from the cache and read again, unless it is huge already. Needs no root; XFS, or ext4 of Linux 6.16.
///
/// The exit code is 1 unless all of each file is huge.
#[derive(Debug, Args)]
#[command(after_help = "Example: hugekit warm model.safetensors")]
pub(crate) struct WarmCommand {
    /// Files of at least 2 MiB
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    options: WarmOptions,
    /// Print JSON and nothing else
    #[arg(long)]
    json: bool,
}

/// The results so far.
#[derive(Default)]
struct Results {
    /// Files that are not huge in whole.
    cold: usize,
    locks: Vec<CacheLock>,
    rows: Vec<Value>,
}

impl WarmCommand {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let stop = StopSignals::new().context("cannot catch signals")?;
        let mut results = Results::default();
        for file in &self.files {
            match self.warm(file, stop.cancel()) {
                Ok((report, lock)) => {
                    results.cold += usize::from(!report.is_warm());
                    results.locks.extend(lock);
                    self.tell(&mut results, file, &report)?;
                }
                Err(error) => {
                    results.cold += 1;
                    let is_over = matches!(error, WarmError::Cancelled { .. });
                    self.tell_error(&mut results, file, &error);
                    if is_over {
                        return self.end(&results, ExitCode::from(INTERRUPTED));
                    }
                }
            }
        }
        let code = ExitCode::from(u8::from(results.cold > 0));
        let code = self.end(&results, code)?;
        if !results.locks.is_empty() {
            keep(&stop)?;
        }
        Ok(code)
    }

    fn warm(
        &self,
        file: &Path,
        cancel: &Cancel,
    ) -> Result<(WarmReport, Option<CacheLock>), WarmError> {
        let bar = progress::of_bytes(&plain(&file.display().to_string()), 0);
        let tell = |done: usize, all: usize| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        };
        let note = |users: &FileUsers| {
            say(&format!(
                "note: {} is mapped by {users}: until it is read again, their reads may wait for the disk",
                file.display()
            ));
        };
        let warmer = Warmer::new(self.options).progress(&tell).before_drop(&note).cancel(cancel);
        let warmed = warmer.run(file);
        bar.finish_and_clear();
        warmed.map(|warmed| (warmed.report, warmed.lock))
    }

    fn tell(&self, results: &mut Results, file: &Path, report: &WarmReport) -> anyhow::Result<()> {
        if self.json {
            let mut row = serde_json::to_value(report)?;
            row["file"] = json!(file.display().to_string());
            results.rows.push(row);
            return Ok(());
        }
        let locked = if self.options.mode == WarmMode::Keep { "locked, " } else { "" };
        let line = format!("{}: {locked}{report}", plain(&file.display().to_string()));
        write_out(&format!("{line}\n")).context("cannot write to standard output")
    }

    fn tell_error(&self, results: &mut Results, file: &Path, error: &WarmError) {
        let (message, remedy) = (error_chain(error).to_string(), error.remedy());
        if self.json {
            let file = file.display().to_string();
            results.rows.push(json!({"file": file, "error": message, "remedy": remedy}));
            return;
        }
        say(&format!("error: {}: {message}", file.display()));
        if let Some(remedy) = remedy {
            say(&format!("remedy: {remedy}"));
        }
    }

    fn end(&self, results: &Results, code: ExitCode) -> anyhow::Result<ExitCode> {
        if self.json {
            let text = serde_json::to_string_pretty(&results.rows)? + "\n";
            write_out(&text).context("cannot write to standard output")?;
        }
        Ok(code)
    }
}

/// Stays until a signal comes. The service manager gets a notice that the files are warmed.
fn keep(stop: &StopSignals) -> anyhow::Result<()> {
    let mut notices = Notices::new();
    notices.send("READY=1");
    stop.wait(&mut notices).context("cannot wait for a signal")
}
