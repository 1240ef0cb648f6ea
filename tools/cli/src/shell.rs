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
        Ok(write_out(&script(self.shell, &mut command)?)?)
    }
}

fn script(shell: Shell, command: &mut Command) -> anyhow::Result<String> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "hugekit", &mut script);
    String::from_utf8(script).context("completions are text")
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
    /// For the file hugekit-warm@.service
    Warm,
}

impl Systemd {
    /// The unit starts this program.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let unit = match self.service {
            Service::Broker => include_str!("../systemd/hugekit-broker.service"),
            Service::Pager => include_str!("../systemd/hugekit-pager@.service"),
            Service::Tend => include_str!("../systemd/hugekit-tend.service"),
            Service::Warm => include_str!("../systemd/hugekit-warm@.service"),
        };
        let program = std::env::current_exe().context("cannot find this program")?;
        Ok(write_out(&unit.replace("/usr/local/bin/hugekit", &program.display().to_string()))?)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, CommandFactory};

    use super::*;

    /// Options that help does not show.
    fn hidden(command: &Command) -> Vec<String> {
        let own = command.get_arguments().filter(|argument| argument.is_hide_set());
        let own = own.filter_map(|argument| argument.get_long().map(str::to_owned));
        own.chain(command.get_subcommands().flat_map(hidden)).collect()
    }

    /// Such options that a shell completes nevertheless.
    fn completed(mut command: Command) -> Vec<(Shell, String)> {
        let options = hidden(&command).into_iter();
        let scripts = Shell::value_variants().iter().map(|&shell| {
            let script = script(shell, &mut command).unwrap();
            assert!(script.contains("keep-free"), "{shell}");
            (shell, script)
        });
        let scripts: Vec<_> = scripts.collect();
        options
            .flat_map(|option| {
                let shells = scripts.iter().filter(|(_, script)| script.contains(&option));
                shells.map(|&(shell, _)| (shell, option.clone())).collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn no_shell_completes_a_hidden_option() {
        assert_eq!(completed(crate::Cli::command()), []);
        let one = Arg::new("one").long("hidden-one").hide(true);
        let found = completed(crate::Cli::command().arg(one));
        assert_eq!(found.len(), Shell::value_variants().len(), "{found:?}");
    }
}
