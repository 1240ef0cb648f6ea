//! `hugekit delta`: saved states of memory, put together again.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use hugekit_delta::{Contents, StateId, apply, inspect, merge};
use hugekit_machine::size::Size;
use serde::Serialize;

use hugekit_sys::input;
use hugekit_sys::new_file::NewFile;
use hugekit_terminal::file::cannot_write;
use hugekit_terminal::text::write_out;

/// Inspect, merge and restore saved states of memory.
///
/// A delta contains the changes from one state to the next; a full delta contains a whole state.
/// `docs/delta.md` describes the format. A delta is checked completely before it is used. A result
/// replaces an existing file only when it is complete.
#[derive(Debug, Args)]
pub(crate) struct DeltaCommand {
    #[command(subcommand)]
    what: DeltaTask,
}

#[derive(Debug, Subcommand)]
enum DeltaTask {
    /// Print the contents of deltas, and check them completely.
    #[command(after_help = "Example: hugekit delta info *.delta")]
    Info {
        /// Deltas.
        #[arg(required = true, value_name = "DELTA")]
        deltas: Vec<PathBuf>,
        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Merge deltas that follow on each other into one.
    #[command(after_help = "Example: hugekit delta merge 0.delta 1.delta -o merged.delta")]
    Merge {
        /// Deltas, the oldest first.
        #[arg(required = true, value_name = "DELTA")]
        deltas: Vec<PathBuf>,
        /// The merged delta.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Restore a state as an image, a file of its bytes.
    #[command(after_help = "Example: hugekit delta apply 0.delta 1.delta -o image")]
    Apply {
        /// Deltas, the oldest first. Without --base the first must be a full one.
        #[arg(required = true, value_name = "DELTA")]
        deltas: Vec<PathBuf>,
        /// The new image.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// The image of the state before the first delta.
        #[arg(long, value_name = "FILE", requires = "state")]
        base: Option<PathBuf>,
        /// The state of that image, as `info` and `apply` print it.
        #[arg(long, value_name = "STATE", requires = "base")]
        state: Option<StateId>,
    },
}

impl DeltaCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        match &self.what {
            DeltaTask::Info { deltas, json } => info(deltas, *json),
            DeltaTask::Merge { deltas, output } => merged(deltas, output),
            DeltaTask::Apply { deltas, output, base, state } => {
                applied(deltas, output, base.as_deref().zip(*state))
            }
        }
    }
}

/// The contents of a delta, as in JSON.
#[derive(Debug, Serialize)]
struct DeltaContents {
    file: PathBuf,
    base: Option<String>,
    state: String,
    length: u64,
    changes: u64,
    bytes: u64,
    zeroes: u64,
    size: u64,
}

impl DeltaContents {
    fn of(path: &Path) -> anyhow::Result<Self> {
        let Contents { header, state, changes, bytes, zeroes, size } = contents(path)?;
        Ok(Self {
            file: path.to_owned(),
            base: header.base.map(|base| base.to_string()),
            state: state.to_string(),
            length: header.length,
            changes,
            bytes,
            zeroes,
            size,
        })
    }

    fn line(&self) -> String {
        let base = self.base.as_deref().map_or("full".to_owned(), |base| format!("from {base}"));
        format!(
            "{}: {base} to {}, {} of memory; {} in {} changes, {} zero",
            hugekit_machine::plain(&self.file.display().to_string()),
            self.state,
            Size(self.length as usize),
            Size(self.bytes as usize),
            self.changes,
            Size(self.zeroes as usize),
        )
    }
}

fn info(deltas: &[PathBuf], json: bool) -> anyhow::Result<()> {
    let entries: Vec<DeltaContents> =
        deltas.iter().map(|path| DeltaContents::of(path)).collect::<anyhow::Result<_>>()?;
    let text = if json {
        serde_json::to_string_pretty(&entries)? + "\n"
    } else {
        entries.iter().map(|entry| entry.line() + "\n").collect()
    };
    write_out(&text).context("cannot write to standard output")
}

fn merged(deltas: &[PathBuf], output: &Path) -> anyhow::Result<()> {
    let sources = deltas.iter().map(|path| opened(path)).collect::<anyhow::Result<_>>()?;
    let file = NewFile::beside(output).with_context(|| cannot_write(output))?;
    merge(sources, file.file())?;
    file.put(true).with_context(|| cannot_write(output))
}

fn applied(
    deltas: &[PathBuf],
    output: &Path,
    base: Option<(&Path, StateId)>,
) -> anyhow::Result<()> {
    let mut file = NewFile::beside(output).with_context(|| cannot_write(output))?;
    let mut state = match base {
        Some((base, state)) => {
            let mut from = input::open(base).with_context(|| base.display().to_string())?;
            io::copy(&mut from, &mut file).with_context(|| cannot_write(output))?;
            Some(state)
        }
        None => {
            let first = deltas.first().context("no delta: name at least one")?;
            make_room(file.file(), &contents(first)?).with_context(|| cannot_write(output))?;
            None
        }
    };
    for path in deltas {
        let applied = apply(file.file_mut(), state, &mut opened(path)?);
        state = Some(applied.with_context(|| path.display().to_string())?);
    }
    file.put(true).with_context(|| cannot_write(output))?;
    let state = state.map_or(String::new(), |state| format!("{state}\n"));
    write_out(&state).context("cannot write to standard output")
}

/// Makes a file of zeroes, all of it a hole, as long as the state of a full delta: its bytes must find room there.
fn make_room(file: &File, delta: &Contents) -> anyhow::Result<()> {
    let length = delta.header.length;
    file.set_len(length).with_context(|| {
        format!(
            "the state has {length} bytes, longer than a file can be here: use another file system"
        )
    })?;
    let found = rustix::fs::fstatvfs(file).context("cannot read the free space")?;
    let (needed, free) = (delta.bytes, found.f_bavail.saturating_mul(found.f_frsize));
    ensure!(
        needed <= free,
        "no space for the image: {needed} bytes needed, {free} free: use another file system"
    );
    Ok(())
}

fn contents(path: &Path) -> anyhow::Result<Contents> {
    inspect(opened(path)?).with_context(|| path.display().to_string())
}

fn opened(path: &Path) -> anyhow::Result<BufReader<File>> {
    let file = input::open(path).with_context(|| path.display().to_string())?;
    Ok(BufReader::new(file))
}
