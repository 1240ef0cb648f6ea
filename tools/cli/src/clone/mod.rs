//! `hugekit clone`: arguments, and the report.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Args;
use hugekit_image::Image;
use hugekit_vm::checkpoint::{CloneMemory, CloneOptions, MOST_CHILDREN, start_clones};
use hugekit_vm::pager::{PagerError, Source};

use crate::children::{ChildApis, ChildDevices, ChildPattern};
use crate::{fork, image, pager, socket};
use hugekit_sys::input;
use hugekit_terminal::file::FileSink;
use hugekit_terminal::outcome::UsageError;
use hugekit_terminal::text::write_out;
use hugekit_warm::{WarmMode, WarmOptions, Warmer};

/// The command of a clone if none is named.
const FIRECRACKER: [&str; 3] = ["firecracker", "--api-sock", "{api}"];

/// Start Firecrackers that restore clones of one snapshot.
///
/// COMMAND is started once for each clone. In its arguments, `{}` is the number of the clone, from 1 on, and `{api}` is
/// the socket of its API. Its input and output are empty, unless COMMAND is a shell that redirects them.
///
/// If all of the memory file is in the page cache on huge pages (`hugekit warm`), or with an image, the clones map it:
/// they share its huge pages, and copy the pages that they write. Otherwise each clone gets a copy of the memory file on
/// huge pages, those parts first that it touches.
///
/// Returns when the clones have all of their memory. They run on without this command. If one clone fails, or the
/// command is killed before it returns, all clones end.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: hugekit clone --state vmstate --memory memory -n 4 --api /tmp/vm{}.sock"
)]
pub(crate) struct CloneCommand {
    #[command(flatten)]
    options: CloneOptions,
    /// The memory file of the snapshot
    #[arg(long, value_name = "FILE", required_unless_present = "image")]
    memory: Option<PathBuf>,
    /// Give each clone a copy of the memory file, also if the page cache has the file on huge pages. Only
    /// such clones can be saved and forked while they run
    #[arg(long, conflicts_with = "image")]
    copy: bool,
    /// An image of a broker instead of a memory file (`hugekit image load`)
    #[arg(long, value_name = "NAME", conflicts_with = "memory")]
    image: Option<String>,
    /// The broker's socket [default: /run/hugekit/broker.sock, or below `XDG_RUNTIME_DIR`]
    #[arg(long, value_name = "PATH", requires = "image")]
    broker: Option<PathBuf>,
    /// The number of clones
    #[arg(
        short = 'n',
        long = "clones",
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=MOST_CHILDREN as i64)
    )]
    clones: u16,
    /// The sockets of the clones' APIs, with `{}` for the number
    #[arg(long, value_name = "SOCKET", default_value = "clone-{}.sock")]
    api: OsString,
    #[command(flatten)]
    devices: ChildDevices,
    /// Write times, bytes and clones as JSON; `-` prints them
    #[arg(long, value_name = "FILE|-")]
    json: Option<FileSink>,
    /// The program that starts the Firecracker of a clone [default: firecracker --api-sock {api}]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl CloneCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let options = self.options()?;
        let json = self.json.as_ref().map(FileSink::open).transpose()?;
        let cloned = match (start_clones(&options, self.memory()?), &self.memory) {
            // No clone was started, because the VMM maps no file.
            (Err(error), Some(path)) if error.needs_copies() => {
                start_clones(&options, copied(path)?)
            }
            (cloned, _) => cloned,
        };
        let cloned = cloned.map_err(fork::explained)?;
        match json {
            Some(sink) => sink.write_json(&cloned.report),
            None => Ok(write_out(&format!("{}\n", cloned.report))?),
        }
    }

    fn memory(&self) -> anyhow::Result<CloneMemory> {
        if let Some(path) = &self.memory {
            return match self.copy || !is_warm(path) {
                true => copied(path),
                false => Ok(CloneMemory::Mapped(input::open(path)?)),
            };
        }
        let broker = self.broker.clone().unwrap_or_else(socket::to_ask);
        let name = self.image.as_deref().unwrap_or_default();
        let image = Image::of_broker(&broker, name).map_err(image::explained)?;
        Ok(CloneMemory::Mapped(File::from(image.into_file())))
    }

    fn options(&self) -> Result<CloneOptions, UsageError> {
        let usual = FIRECRACKER.map(OsString::from);
        let command = if self.command.is_empty() { &usual[..] } else { &self.command };
        let api = ChildApis::named("--api", &self.api, self.clones)?;
        let pattern = ChildPattern { api, devices: &self.devices, command };
        Ok(CloneOptions { children: pattern.children(self.clones)?, ..self.options.clone() })
    }
}

/// Returns true if a file is in the page cache on huge pages. Of a file that this user may not
/// examine, nobody knows.
fn is_warm(path: &Path) -> bool {
    let options = WarmOptions { mode: WarmMode::Check, ..WarmOptions::default() };
    Warmer::new(options).run(path).is_ok_and(|warmed| warmed.report.is_warm())
}

fn copied(path: &Path) -> anyhow::Result<CloneMemory> {
    let opened = Source::open(path).map_err(PagerError::from);
    Ok(CloneMemory::Copied(Box::new(opened.map_err(pager::explained)?)))
}
