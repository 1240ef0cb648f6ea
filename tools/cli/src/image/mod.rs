//! `hugekit image`: sealed memory that a broker holds by name, for programs that map it privately; and saved VMs as OCI
//! images, for other hosts.

mod list;
mod load;
mod pack;
mod save;
mod unpack;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hugekit_image::ImageError;
use hugekit_lease::images;
use hugekit_lease::protocol::ImageName;
use hugekit_vm::oci::OciError;

use crate::socket;
use hugekit_terminal::outcome::Remedied;

/// Hold memory that programs map privately; pack VMs for registries.
///
/// A broker (`hugekit broker`) holds the images of `load`, `list`, `drop` and `save`. `hugekit lease --image NAME` starts a
/// program with one. `pack` and `unpack` need no broker: they make and read OCI image layouts, which registries store.
#[derive(Debug, Args)]
pub(crate) struct ImageCommand {
    #[command(subcommand)]
    what: ImageTask,
}

#[derive(Debug, Subcommand)]
enum ImageTask {
    Load(load::LoadImage),
    List(list::List),
    /// Hold an image no longer; programs that have it keep it.
    Drop {
        #[arg(value_name = "NAME")]
        name: ImageName,
        #[command(flatten)]
        broker: AskedBroker,
    },
    Save(save::Save),
    Pack(pack::Pack),
    Unpack(unpack::Unpack),
}

/// The broker that is asked.
#[derive(Debug, Args)]
struct AskedBroker {
    /// The socket of the broker
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl AskedBroker {
    fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(socket::to_ask)
    }
}

impl ImageCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        match &self.what {
            ImageTask::Load(load) => load.run(),
            ImageTask::List(list) => list.run(),
            ImageTask::Drop { name, broker } => {
                images::drop(&broker.socket(), *name).map_err(crate::lease::explained)
            }
            ImageTask::Save(save) => save.run(),
            ImageTask::Pack(pack) => pack.run(),
            ImageTask::Unpack(unpack) => unpack.run(),
        }
    }
}

pub(crate) fn explained(error: ImageError) -> anyhow::Error {
    let remedy = error.remedy();
    Remedied::error(error, remedy)
}

pub(crate) fn of_oci(error: OciError) -> anyhow::Error {
    let remedy = error.remedy().map(str::to_owned);
    Remedied::error(error, remedy)
}
