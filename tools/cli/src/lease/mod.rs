//! `hugekit lease`: memory for a program that knows nothing of hugekit.

mod command;
mod mistakes;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use hugekit::error_chain;
use hugekit::pool::Backing;
use hugekit::{HUGE_PAGE_BYTES, PopulateOptions, Threads};
use hugekit_broker::{BrokerOptions, backing_parser};
use hugekit_image::Image;
use hugekit_lease::protocol::ImageName;
use hugekit_lease::{DEFAULT_WAIT, Lease, LeaseError, MemoryFile};
use hugekit_machine::size::Size;
use indicatif::{ProgressBar, ProgressStyle};

use crate::base_pages;
use crate::image;
use crate::socket;
use hugekit_terminal::outcome::{Remedied, UsageError};
use hugekit_terminal::text::say;

/// Start a program with memory that is already populated
///
/// With --path it makes a file of such memory instead.
///
/// In the program's arguments, `{}` becomes the path of the memory (/proc/self/fd/N), and `{fd}`
/// only the number N. The memory comes from `hugekit broker`. If no broker listens, this command
/// prints so and populates the memory itself.
///
/// Example: hugekit lease --size 4GiB -- qemu-system-x86_64 -m 4G
///   -object memory-backend-file,id=m,size=4G,mem-path={},share=on -machine memory-backend=m
///
/// With --image the memory is an image that the broker holds. The program maps it privately, as
/// Firecracker does when it restores from a file. `$HUGEKIT_LEASE_PATH` is the path, too.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct LeaseCommand {
    /// Size of the memory, such as 4GiB; must be the size of the broker's units
    #[arg(long, value_name = "SIZE", required_unless_present = "image", conflicts_with = "image")]
    size: Option<Size>,
    /// An image that the broker holds, instead of zeroed memory
    #[arg(long, value_name = "NAME", conflicts_with_all = ["wait", "no_wait", "backing"])]
    image: Option<ImageName>,
    /// Wait at most this many seconds until a unit is ready [default: 30]; a broker that is stopped
    /// is given up 30 seconds later
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    wait: Option<Duration>,
    /// Fail if the broker has no unit ready; without a broker, the memory is populated here
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    /// The broker's socket [default: /run/hugekit/broker.sock, or below `$XDG_RUNTIME_DIR`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Without a broker: the pages of the memory
    #[arg(
        long,
        value_name = "BACKING",
        value_parser = backing_parser(),
        default_value = BrokerOptions::default().backing.option()
    )]
    backing: Backing,
    /// Make a file of this name in a hugetlbfs or tmpfs, and start no program; with --size without a broker
    #[arg(long, value_name = "FILE", conflicts_with_all = ["command", "wait", "no_wait", "backing"])]
    path: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, value_name = "PROGRAM", required_unless_present = "path")]
    command: Vec<std::ffi::OsString>,
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim_end_matches('s').parse().map_err(|_| "must be a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

impl LeaseCommand {
    /// Returns where no program is started, or where that cannot be done.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        match (self.image, self.size) {
            (Some(name), _) => self.run_with_image(name),
            (None, Some(size)) => self.run_with_memory(size),
            (None, None) => unreachable!("one of them is required"),
        }
    }

    fn run_with_image(&self, name: ImageName) -> anyhow::Result<()> {
        self.path.as_deref().map_or(Ok(()), refuse_taken)?;
        let image = Image::of_broker(self.socket(), name.as_str()).map_err(image::explained)?;
        if let Some(path) = &self.path {
            let source = Image::builder(name.as_str()).source(image.into_file().into());
            return source.load_to(path).map(drop).map_err(image::explained);
        }
        let command = command::Prepared::with_image(&self.command);
        // The last bytes of an image may be less than a huge page.
        let present = image.present().map_err(image::explained)?;
        self.warn_of_base_pages(present - present % HUGE_PAGE_BYTES as u64, image.huge_bytes());
        if image.huge_bytes() > 0 {
            warn_of_alignment(&command);
        }
        Err(command.start(&image.into_file()))
    }

    fn run_with_memory(&self, size: Size) -> anyhow::Result<()> {
        if let Some(path) = &self.path {
            if self.socket.is_some() {
                let message =
                    "--path makes the file here: no broker is asked, and --socket has no use";
                return Err(UsageError(message.to_owned()).into());
            }
            refuse_taken(path)?;
            return make(path, size.0).map_err(explained);
        }
        let command = command::Prepared::new(&self.command, size)?;
        command.unused(size).iter().for_each(|warning| say(warning));
        let (file, backing, huge) = self.memory(size).map_err(explained)?;
        if backing.is_transparent() && huge > 0 {
            self.warn_of_base_pages(size.0 as u64, huge);
            warn_of_alignment(&command);
        }
        Err(command.start(&file))
    }

    fn warn_of_base_pages(&self, bytes: u64, huge: u64) {
        let size = |bytes: u64| Size(usize::try_from(bytes).unwrap_or(usize::MAX));
        if huge < bytes {
            let (bytes, huge) = (size(bytes), size(huge));
            let reason = base_pages::reason(&self.socket());
            say(&format!("warning: {bytes} requested, only {huge} are on huge pages; {reason}"));
        }
    }

    fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(socket::to_ask)
    }

    /// Returns the memory, its backing, and how many bytes of it are on huge pages.
    fn memory(&self, size: Size) -> Result<(OwnedFd, Backing, u64), LeaseError> {
        let wait = if self.no_wait { Duration::ZERO } else { self.wait.unwrap_or(DEFAULT_WAIT) };
        let asked = print_if_it_waits(wait);
        let answer = Lease::ask(&self.socket(), size.0, wait);
        drop(asked);
        match answer {
            Ok(lease) => {
                let (backing, huge) = (lease.backing(), lease.huge_bytes());
                Ok((lease.into_file(), backing, huge))
            }
            Err(error @ (LeaseError::NoBroker { .. } | LeaseError::HungUp)) => {
                say(&format!("{}; populating {size} here instead", error_chain(&error)));
                error.remedy().iter().for_each(|remedy| say(&format!("remedy: {remedy}")));
                let memory = MemoryFile::create("lease", size.0, self.backing)?;
                let huge = populate(&memory)?;
                Ok((memory.into_file(), self.backing, huge))
            }
            Err(error) => Err(error),
        }
    }
}

/// Without an alignment, QEMU maps a file where no huge page can begin.
fn warn_of_alignment(command: &command::Prepared<'_>) {
    if !command.is_aligned() {
        say("warning: QEMU maps the memory where huge pages do not fit: add align=2M");
    }
}

/// Prints after one second that the broker has sent no unit, unless the returned value is dropped before.
fn print_if_it_waits(wait: Duration) -> mpsc::Sender<()> {
    let (asked, answered) = mpsc::channel();
    thread::spawn(move || {
        if answered.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
            say(&match wait {
                Duration::ZERO => "the broker has not answered yet".to_owned(),
                _ => format!("the broker has sent no unit yet: waiting for at most {wait:?}"),
            });
        }
    });
    asked
}

/// Refuses a path that has a file, before memory is populated for it.
fn refuse_taken(path: &Path) -> anyhow::Result<()> {
    match path.symlink_metadata() {
        Ok(_) => Err(Remedied {
            message: format!("{} exists", path.display()),
            remedy: "remove it, or choose another --path".to_owned(),
        }
        .into()),
        Err(_) => Ok(()),
    }
}

/// The file gets its name when it is complete, so no program finds a part.
fn make(path: &Path, bytes: usize) -> Result<(), LeaseError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let memory = MemoryFile::create_in(folder.unwrap_or(Path::new(".")), bytes)?;
    populate(&memory)?;
    memory.link(path)
}

/// In parallel, with progress if there is a terminal.
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

pub(crate) fn explained(error: LeaseError) -> anyhow::Error {
    let remedy = error.remedy();
    Remedied::error(error, remedy)
}

/// Returns the error of a program that could not be started.
pub(super) fn not_started(program: &std::ffi::OsStr, error: std::io::Error) -> anyhow::Error {
    let failed: anyhow::Result<()> =
        Err(error).with_context(|| format!("cannot start {}", program.display()));
    failed.expect_err("it is one")
}
