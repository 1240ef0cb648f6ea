//! `hugekit lease`: memory for a program that knows nothing of hugekit.

mod command;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use hugekit::error_chain;
use hugekit::pool::Backing;
use hugekit::{PopulateOptions, Threads};
use hugekit_lab::size::Size;
use hugekit_lease::{DEFAULT_WAIT, Lease, LeaseError, MemoryFile};
use indicatif::{ProgressBar, ProgressStyle};

use crate::broker::Pages;
use crate::socket;
use crate::text::say;
use crate::usage::Remedied;

/// Start a program with memory that is already populated, or make a file of it.
///
/// `{}` in the program's arguments becomes the path of the memory, /proc/self/fd/N, and `{fd}` the number alone.
/// The memory comes from `hugekit broker`; where none listens, this command populates it itself, and says so.
///
/// hugekit lease --size 4GiB -- qemu-system-x86_64 -m 4G
///   -object memory-backend-file,id=m,size=4G,mem-path={},share=on -machine memory-backend=m
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct LeaseCommand {
    /// How much, such as 4GiB: the size of the broker's units
    #[arg(long, value_name = "SIZE")]
    size: Size,
    /// Wait so many seconds for a unit to be ready
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    wait: Option<Duration>,
    /// Take a unit that is ready, or none
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    /// Where the broker listens
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Without a broker: what the memory is made of
    #[arg(long, value_enum, default_value_t)]
    backing: Pages,
    /// Make a file of this name, in a hugetlbfs or a tmpfs, and start no program; no broker is asked
    #[arg(long, value_name = "FILE", conflicts_with_all = ["command", "wait", "no_wait", "socket", "backing"])]
    path: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, value_name = "PROGRAM", required_unless_present = "path")]
    command: Vec<std::ffi::OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim_end_matches('s').parse().map_err(|_| "a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

impl LeaseCommand {
    /// Returns where no program is started, or where that cannot be done.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        if let Some(path) = &self.path {
            return make(path, self.size.0).map_err(explained);
        }
        let command = command::Prepared::new(&self.command)?;
        let (file, backing, huge) = self.memory().map_err(explained)?;
        if backing == Backing::Thp && huge > 0 {
            let huge = usize::try_from(huge).unwrap_or(usize::MAX);
            if huge < self.size.0 {
                say(&format!("warning: of {} only {} are on huge pages", self.size, Size(huge)));
            }
            if !command.is_aligned() {
                say("warning: without align=2M QEMU maps the memory where no huge page fits");
            }
        }
        Err(command.start(&file))
    }

    /// The memory, what it is made of, and how many bytes of it are on huge pages.
    fn memory(&self) -> Result<(OwnedFd, Backing, u64), LeaseError> {
        let wait = if self.no_wait { Duration::ZERO } else { self.wait.unwrap_or(DEFAULT_WAIT) };
        let socket = self.socket.clone().unwrap_or_else(socket::to_ask);
        match Lease::ask(&socket, self.size.0, wait) {
            Ok(lease) => {
                let (backing, huge) = (lease.backing(), lease.huge_bytes());
                Ok((lease.into_file(), backing, huge))
            }
            Err(error @ (LeaseError::NoBroker { .. } | LeaseError::HungUp)) => {
                let error = error_chain(&error);
                say(&format!("{error}; populating {} here instead", self.size));
                let memory = MemoryFile::create("lease", self.size.0, self.backing.into())?;
                let huge = populate(&memory)?;
                Ok((memory.into_file(), self.backing.into(), huge))
            }
            Err(error) => Err(error),
        }
    }
}

/// The file has its name only when all of it is there: no program finds a part.
fn make(path: &Path, bytes: usize) -> Result<(), LeaseError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let memory = MemoryFile::create_in(folder.unwrap_or(Path::new(".")), bytes)?;
    populate(&memory)?;
    memory.link(path)
}

/// In parallel, and with progress where a terminal shows it.
fn populate(memory: &MemoryFile) -> Result<u64, LeaseError> {
    let style = ProgressStyle::with_template("populating {wide_bar} {bytes} of {total_bytes}");
    let bar = ProgressBar::new(memory.bytes() as u64);
    let bar = bar.with_style(style.expect("the template is constant"));
    let progress = |done: usize, _: usize| bar.set_position(done as u64);
    let options = PopulateOptions::new().threads(Threads::Auto).progress(&progress);
    let populated = memory.populate(&options, None);
    bar.finish_and_clear();
    populated
}

fn explained(error: LeaseError) -> anyhow::Error {
    let remedy = error.remedy();
    Remedied::error(error, remedy)
}

/// Why the program could not be started.
pub(super) fn not_started(program: &std::ffi::OsStr, error: std::io::Error) -> anyhow::Error {
    let failed: anyhow::Result<()> =
        Err(error).with_context(|| format!("cannot start {}", program.display()));
    failed.expect_err("it is one")
}
