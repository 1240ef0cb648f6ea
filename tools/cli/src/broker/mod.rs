//! `hugekit broker`: arguments, and the daemon in the foreground.

mod shortage;
mod status;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand, ValueEnum};
use hugekit::pool::Backing;
use hugekit_broker::{
    Broker, BrokerError, Charge, Config, Fill, FillCommand, Limits, LoadOrder, Quotas, fill, load,
};
use hugekit_lease::MemoryFile;
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
    command: Option<Command>,
    /// Size of a unit, such as 4GiB; every lease is one unit. By default only images are held
    #[arg(long, value_name = "SIZE")]
    unit: Option<Size>,
    /// Units to keep populated for future leases [default: 1]
    #[arg(long, value_name = "N", requires = "unit")]
    ready: Option<usize>,
    /// The pages of units
    #[arg(long, value_enum, default_value_t)]
    backing: Pages,
    /// The NUMA node that the memory comes from
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// The most memory in leases of a user, by number; `*` is for users without a quota [default:
    /// no limit]
    #[arg(long, value_name = "UID=SIZE", value_parser = quota)]
    quota: Vec<(Option<u32>, u64)>,
    /// Memory of that kind to leave free for other programs
    #[arg(long, value_name = "SIZE", default_value_t = Size(0))]
    keep_free: Size,
    /// The control group to charge: `broker`, `client`, or a group's directory
    #[arg(long, value_name = "WHO", default_value = "broker", value_parser = charge)]
    charge: Charge,
    /// The socket to listen at [default: /run/hugekit/broker.sock for root, otherwise below
    /// `$XDG_RUNTIME_DIR`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// The pages of units.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Pages {
    /// Reserved huge pages of 2 MiB
    #[default]
    Hugetlb,
    /// Reserved huge pages of 1 GiB
    #[value(name = "hugetlb-1g")]
    Hugetlb1G,
    /// Shared memory on transparent huge pages
    Thp,
    /// Shared memory on base pages
    Base,
}

impl From<Pages> for Backing {
    fn from(pages: Pages) -> Self {
        match pages {
            Pages::Hugetlb => Self::Hugetlb2M,
            Pages::Hugetlb1G => Self::Hugetlb1G,
            Pages::Thp => Self::Thp,
            Pages::Base => Self::Base,
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Status(status::Status),
    Fill(FillArguments),
}

/// Populate the file at standard input. A broker starts this.
#[derive(Debug, Args)]
#[command(hide = true)]
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

fn quota(text: &str) -> Result<(Option<u32>, u64), String> {
    let (user, size) = text.split_once('=').ok_or("write UID=SIZE, such as 1000=16GiB")?;
    let user = match user {
        "*" => None,
        number => {
            Some(number.parse().map_err(|_| "the user must be a number, or * for all others")?)
        }
    };
    let Size(bytes) =
        size.parse().map_err(|error: hugekit_machine::size::ParseSizeError| error.to_string())?;
    Ok((user, bytes as u64))
}

fn charge(text: &str) -> Result<Charge, String> {
    match text {
        "broker" => Ok(Charge::Broker),
        "client" => Ok(Charge::Client),
        path if path.starts_with('/') => Ok(Charge::Group(path.into())),
        _ => Err("must be broker, client, or the directory of a control group".to_owned()),
    }
}

impl BrokerCommand {
    /// Returns whether it is the broker or its populating child, and not a user's `status`.
    pub(crate) fn is_daemon(&self) -> bool {
        !matches!(self.command, Some(Command::Status(_)))
    }

    /// Returns the exit code.
    pub(crate) fn run(&self) -> anyhow::Result<u8> {
        match &self.command {
            Some(Command::Status(status)) => status.run(),
            Some(Command::Fill(arguments)) => Ok(arguments.run()),
            None => self.serve().map(|()| 0),
        }
    }

    fn serve(&self) -> anyhow::Result<()> {
        let config = self.config()?;
        let socket = config.socket.clone();
        let keeps = match (config.ready, Size(config.unit), config.backing) {
            (_, Size(0), _) => "images only".to_owned(),
            (ready, unit, backing) => {
                format!("{} of {unit}, {backing}", count(ready as u64, "unit"))
            }
        };
        // A broker without units holds images, which are on transparent huge pages too.
        let needs_thp = config.unit == 0 || config.backing == Backing::Thp;
        let no_huge_pages = needs_thp.then(base_pages::warning).flatten();
        let warnings: Vec<_> = small_quotas(&config)
            .into_iter()
            .chain(shortage::warning(&config))
            .chain(no_huge_pages)
            .collect();
        let broker = Broker::start(config).map_err(explained)?;
        warnings.iter().for_each(|warning| log::line(warning));
        log::line(&format!("listening at {}: {keeps}", socket.display()));
        broker.run().map_err(explained)
    }

    fn check_node(&self) -> anyhow::Result<()> {
        let Some(node) = self.node else { return Ok(()) };
        let nodes = Topology::read(&Root::default())?.nodes;
        ensure!(
            nodes.iter().any(|one| one.id == node),
            "this machine has no node {node}; its nodes are {}",
            listed(&nodes)
        );
        Ok(())
    }

    fn config(&self) -> anyhow::Result<Config> {
        if let Some(Size(0)) = self.unit {
            let made = MemoryFile::create("lease", 0, self.backing.into());
            made.map_err(BrokerError::Unit).map_err(explained)?;
        }
        self.check_node()?;
        let unit = self.unit.map_or(0, |Size(unit)| unit);
        let ready = if unit == 0 { 0 } else { self.ready.unwrap_or(1) };
        let quotas = Quotas {
            of: self.quota.iter().filter_map(|&(user, bytes)| Some((user?, bytes))).collect(),
            of_others: self.quota.iter().rev().find(|(user, _)| user.is_none()).map(|&(_, b)| b),
        };
        Ok(Config {
            socket: self.socket.clone().map_or_else(socket::to_listen_at, Ok)?,
            backing: self.backing.into(),
            unit,
            ready: if self.charge == Charge::Client { 0 } else { ready },
            node: self.node,
            quotas,
            keep_free: self.keep_free.0 as u64,
            charge: self.charge.clone(),
            limits: Limits::default(),
            filler: FillCommand {
                program: std::env::current_exe().context("cannot find this program")?,
                arguments: ["broker", "fill"].map(Into::into).to_vec(),
            },
        })
    }
}

/// The nodes by their numbers, as `0, 1`.
fn listed(nodes: &[Node]) -> String {
    nodes.iter().map(|node| node.id.to_string()).collect::<Vec<_>>().join(", ")
}

/// The users that get no lease because their quota is less than one unit. A quota of 0 is meant to give none.
fn small_quotas(config: &Config) -> Vec<String> {
    let unit = config.unit as u64;
    let is_small = |quota: u64| quota > 0 && quota < unit;
    let warning = |user: &str, quota: u64| {
        let (quota, unit) = (Size(quota as usize), Size(config.unit));
        format!(
            "warning: --quota '{user}={quota}' is less than one unit of {unit}, so it permits no lease: \
             choose at least {unit}"
        )
    };
    let named = config.quotas.of.iter().filter(|&(_, &quota)| is_small(quota));
    let others = config.quotas.of_others.filter(|&quota| is_small(quota));
    let named = named.map(|(user, &quota)| warning(&user.to_string(), quota));
    named.chain(others.map(|quota| warning("*", quota))).collect()
}

fn explained(error: BrokerError) -> anyhow::Error {
    let remedy = error.remedy();
    Remedied::error(error, remedy)
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
