//! `hugekit fork`: arguments, and the report.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use clap::Args;
use hugekit_vm::checkpoint::{ChildOptions, ForkError, ForkOptions, MOST_CHILDREN, fork};
use serde_json::{Map, Value};

use hugekit_terminal::file::Sink;
use hugekit_terminal::outcome::{Remedied, UsageError};
use hugekit_terminal::text::write_out;

/// Stands for the number of a child, and for the socket of its API.
const NUMBER: &str = "{}";
const API: &str = "{api}";

/// Start children from a running Firecracker VM, without a file.
///
/// COMMAND is started once for each child. In its arguments, `{}` is the number of the child, from 1
/// on, and `{api}` is the socket of its API. Its input and output are empty, unless COMMAND is a
/// shell that redirects them. The VM is paused, its memory is protected, and it runs
/// again. The children then start from the moment of the pause, while the memory is copied to them.
///
/// Returns when the children have all of their memory. They run on without this command, and can be
/// forked and saved as the VM can. If one child fails, or the command is killed before it returns,
/// all children end, and the VM runs on. The VM must have been restored by `hugekit pager`, which
/// has left it ("left to the kernel"), or be a child of a fork.
#[derive(Debug, Args)]
#[command(after_help = "Example: hugekit fork --pid 4711 --api /tmp/vm1.sock --children 4 -- \
                        firecracker --api-sock {api}")]
pub(crate) struct ForkCommand {
    #[command(flatten)]
    options: ForkOptions,
    /// The number of children
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=MOST_CHILDREN as i64)
    )]
    children: u16,
    /// The sockets of the children's APIs, with `{}` for the number [default: SOCKET.{}]
    #[arg(long, value_name = "SOCKET")]
    child_api: Option<OsString>,
    /// Fields to add to the request that restores a child, with `{}` for the number, such as
    /// `{"network_overrides": [{"iface_id": "eth0", "host_dev_name": "tap{}"}]}`
    #[arg(long, value_name = "JSON")]
    load: Option<String>,
    /// Write times, bytes and children as JSON; `-` prints them
    #[arg(long, value_name = "FILE|-")]
    json: Option<Sink>,
    /// The program that starts the Firecracker of a child
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl ForkCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let json = self.json.as_ref().map(Sink::open).transpose()?;
        let forked = fork(&self.options()?).map_err(explained)?;
        match json {
            Some(sink) => sink.write_json(&forked.report),
            None => Ok(write_out(&format!("{}\n", forked.report))?),
        }
    }

    fn options(&self) -> Result<ForkOptions, UsageError> {
        let children = (1..=self.children).map(|number| self.child(number));
        let children: Result<_, _> = children.collect();
        Ok(ForkOptions { children: children?, ..self.options.clone() })
    }

    fn child(&self, number: u16) -> Result<ChildOptions, UsageError> {
        let number = number.to_string();
        let api = self.child_api(&number)?;
        let in_command = |argument: &OsString| {
            let numbered = replaced(argument, NUMBER, OsStr::new(&number));
            replaced(&numbered, API, api.as_os_str())
        };
        let command: Vec<OsString> = self.command.iter().map(in_command).collect();
        if !self.command.iter().any(|argument| has(argument, API)) {
            return Err(UsageError(format!("the command must have {API} in its arguments")));
        }
        Ok(ChildOptions { command, load: self.load(&number)?, api })
    }

    fn child_api(&self, number: &str) -> Result<PathBuf, UsageError> {
        let Some(pattern) = &self.child_api else {
            let mut path = self.options.vm.api.clone().into_os_string();
            path.push(format!(".{number}"));
            return Ok(path.into());
        };
        if self.children > 1 && !has(pattern, NUMBER) {
            return Err(UsageError(format!("--child-api must have {NUMBER} for the number")));
        }
        Ok(replaced(pattern, NUMBER, OsStr::new(number)).into())
    }

    fn load(&self, number: &str) -> Result<Map<String, Value>, UsageError> {
        let Some(load) = &self.load else { return Ok(Map::new()) };
        serde_json::from_str(&load.replace(NUMBER, number))
            .map_err(|error| UsageError(format!("--load is not a JSON object: {error}")))
    }
}

fn has(text: &OsStr, pattern: &str) -> bool {
    find(text.as_bytes(), pattern).is_some()
}

fn find(text: &[u8], pattern: &str) -> Option<usize> {
    text.windows(pattern.len()).position(|part| part == pattern.as_bytes())
}

/// The text with another one in each place of a pattern.
fn replaced(text: &OsStr, pattern: &str, by: &OsStr) -> OsString {
    let (mut rest, mut all) = (text.as_bytes(), Vec::new());
    while let Some(at) = find(rest, pattern) {
        all.extend_from_slice(&rest[..at]);
        all.extend_from_slice(by.as_bytes());
        rest = &rest[at + pattern.len()..];
    }
    all.extend_from_slice(rest);
    OsString::from_vec(all)
}

fn explained(error: ForkError) -> anyhow::Error {
    let remedy = error.remedy();
    Remedied::error(error, remedy)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        fork: ForkCommand,
    }

    fn options(arguments: &[&str]) -> Result<ForkOptions, UsageError> {
        let given = ["fork", "--pid", "7", "--api", "/a{}/vm.sock"];
        Command::try_parse_from(given.iter().chain(arguments)).unwrap().fork.options()
    }

    #[test]
    fn each_child_has_its_number_and_its_socket() {
        let load = r#"{"network_overrides": [{"host_dev_name": "tap{}"}]}"#;
        let command = ["--", "vmm", "--api-sock={api}", "log{}{}"];
        let one = options(&command).unwrap();
        assert_eq!(one.children[0].command[1], "--api-sock=/a{}/vm.sock.1");
        let words = ["--children", "2", "--load", load, "--child-api", "/b/{}.sock"];
        let all: Vec<&str> = words.into_iter().chain(command).collect();
        let found = options(&all).unwrap();
        let second = &found.children[1];
        assert_eq!(second.command, ["vmm", "--api-sock=/b/2.sock", "log22"]);
        assert_eq!(second.api, Path::new("/b/2.sock"));
        assert_eq!(second.load["network_overrides"][0]["host_dev_name"], "tap2");
    }

    #[test]
    fn mistakes_in_patterns_are_told() {
        assert!(options(&["--", "vmm", "--api-sock", "x"]).is_err());
        let one = ["--children", "2", "--child-api", "/b", "--", "vmm", "{api}"];
        assert!(options(&one).is_err());
        assert!(options(&["--load", "[]", "--", "vmm", "{api}"]).is_err());
    }
}
