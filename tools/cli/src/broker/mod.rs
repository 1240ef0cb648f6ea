//! `hugekit broker`: arguments, and the daemon in the foreground.

mod shortage;
mod status;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Args, Parser, Subcommand};
use hugekit_broker::{
    Broker, BrokerError, BrokerOptions, Fill, FillCommand, LoadOrder, fill, load,
};
use hugekit_machine::size::Size;
use hugekit_machine::{Node, Root, Topology};

use crate::base_pages;
use crate::log;
use crate::socket;
use hugekit_terminal::outcome::Remedied;
use hugekit_terminal::text::count;

/// Keep memory populated for leases, and hold images of memory.
///
/// Runs in the foreground until SIGTERM, SIGINT or SIGHUP. Programs keep their leases after that.
/// As root it serves all users, otherwise only its own. Programs request leases by `hugekit lease`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example: hugekit broker --unit 4GiB --ready 2"
)]
pub(crate) struct BrokerCommand {
    #[command(subcommand)]
    command: Option<BrokerTask>,
    #[command(flatten)]
    options: BrokerOptions,
    /// The socket to listen at [default: /run/hugekit/broker.sock for root, otherwise below
    /// `$XDG_RUNTIME_DIR`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum BrokerTask {
    Status(status::BrokerStatus),
}

/// The words that begin the arguments of a process that populates the file at standard input. A broker starts this.
pub(crate) const FILL: [&str; 2] = ["broker", "fill"];

/// The arguments behind these words.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct FillArguments {
    #[arg(long)]
    background: bool,
    #[arg(long)]
    thp: bool,
    #[arg(long)]
    node: Option<u32>,
    #[arg(long)]
    group: Vec<PathBuf>,
    /// Load an image into the file of this number, for the client on standard input.
    #[arg(long)]
    load: Option<i32>,
    #[arg(long, value_parser = owner)]
    owner: Option<(u32, u32)>,
}

fn owner(text: &str) -> Result<(u32, u32), String> {
    let ids = text
        .split_once(':')
        .and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
    ids.ok_or_else(|| "write USER:GROUP, two numbers".to_owned())
}

impl BrokerCommand {
    /// Returns true if it is the broker, and not a user's `status`.
    pub(crate) fn is_daemon(&self) -> bool {
        self.command.is_none()
    }

    /// Returns the exit code.
    pub(crate) fn run(&self) -> anyhow::Result<u8> {
        match &self.command {
            Some(BrokerTask::Status(status)) => status.run(),
            None => self.serve().map(|()| 0),
        }
    }

    fn serve(&self) -> anyhow::Result<()> {
        self.check_node()?;
        let options = &self.options;
        let socket = self.socket.clone().map_or_else(socket::to_listen_at, Ok)?;
        let filler = FillCommand {
            program: std::env::current_exe().context("cannot find this program")?,
            arguments: FILL.map(Into::into).to_vec(),
        };
        let keeps = match options.unit.map(Size::from) {
            None => "images only".to_owned(),
            Some(unit) => {
                let units = count(options.units_ahead() as u64, "unit");
                format!("{units} of {unit}, {}", options.backing)
            }
        };
        // A broker without units holds images, which are on transparent huge pages too.
        let needs_thp = options.unit.is_none() || options.backing.is_transparent();
        let no_huge_pages = needs_thp.then(base_pages::warning).flatten();
        let warnings: Vec<_> = small_quotas(options)
            .into_iter()
            .chain(shortage::warning(options))
            .chain(no_huge_pages)
            .collect();
        let broker = Broker::start(&socket, options.clone(), filler).map_err(explained)?;
        warnings.iter().for_each(|warning| log::line(warning));
        log::line(&format!("listening at {}: {keeps}", socket.display()));
        broker.run().map_err(explained)
    }

    fn check_node(&self) -> anyhow::Result<()> {
        let Some(node) = self.options.node else { return Ok(()) };
        let nodes = Topology::read(&Root::default())?.nodes;
        ensure!(
            nodes.iter().any(|one| one.id == node),
            "this machine has no node {node}; its nodes are {}",
            listed(&nodes)
        );
        Ok(())
    }
}

/// Returns the nodes by their numbers, as `0, 1`.
fn listed(nodes: &[Node]) -> String {
    nodes.iter().map(|node| node.id.to_string()).collect::<Vec<_>>().join(", ")
}

/// Warns of users that get no lease.
fn small_quotas(options: &BrokerOptions) -> Vec<String> {
    let warning = |quota| {
        let unit = Size::from(options.unit.unwrap_or_default());
        format!(
            "warning: --quota '{quota}' is less than one unit of {unit}, so it permits no lease: \
             choose at least {unit}"
        )
    };
    options.small_quotas().into_iter().map(warning).collect()
}

fn explained(error: BrokerError) -> anyhow::Error {
    let remedy = error.remedy();
    Remedied::error(error, remedy)
}

/// Populates the file at standard input.
pub(crate) fn run_fill(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    log::print_events();
    let code = FillArguments::parse_from(arguments).run();
    log::finish();
    code.into()
}

impl FillArguments {
    fn run(&self) -> u8 {
        let Self { background, thp, node, group, load: memory, owner } = self;
        if let Some(memory) = *memory {
            return load(&LoadOrder { memory, owner: *owner, groups: group.clone() });
        }
        let (background, thp) = (*background, *thp);
        fill(&Fill { background, thp, node: *node, groups: group.clone() })
    }
}
