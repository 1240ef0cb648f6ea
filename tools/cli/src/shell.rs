//! `hugekit completions`, `hugekit man` and `hugekit systemd`: completions and manual pages, made of the definitions
//! that parse the arguments, and the units of services.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;

use hugekit_terminal::text::write_out;

/// Print completions of `hugekit` for a shell.
#[derive(Debug, Args)]
#[command(after_help = "Example: hugekit completions zsh > ~/.zfunc/_hugekit")]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self, mut command: Command) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "hugekit", &mut script);
        Ok(write_out(&String::from_utf8(script).context("completions are text")?)?)
    }
}

/// Write the manual pages of all commands.
#[derive(Debug, Args)]
#[command(after_help = "Example: hugekit man --dir ~/.local/share/man/man1")]
pub(crate) struct Man {
    /// The folder; it is made if it does not exist
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

impl Man {
    pub(crate) fn run(&self, command: Command) -> anyhow::Result<()> {
        fs::create_dir_all(&self.dir)
            .with_context(|| format!("cannot make {}", self.dir.display()))?;
        clap_mangen::generate_to(command, &self.dir)
            .with_context(|| format!("cannot write to {}", self.dir.display()))
    }
}

/// Print the systemd unit of a service.
#[derive(Debug, Args)]
#[command(after_help = "Example: hugekit systemd tend > hugekit-tend.service")]
pub(crate) struct Systemd {
    /// The service
    #[arg(value_enum)]
    service: Service,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Service {
    Broker,
    /// For the file hugekit-pager@.service
    Pager,
    Tend,
}

impl Systemd {
    /// The unit starts this program.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let unit = match self.service {
            Service::Broker => include_str!("../systemd/hugekit-broker.service"),
            Service::Pager => include_str!("../systemd/hugekit-pager@.service"),
            Service::Tend => include_str!("../systemd/hugekit-tend.service"),
        };
        let program = std::env::current_exe().context("cannot find this program")?;
        Ok(write_out(&unit.replace("/usr/local/bin/hugekit", &program.display().to_string()))?)
    }
}
