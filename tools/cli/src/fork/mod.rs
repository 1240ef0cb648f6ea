//! `hugekit fork`: arguments, and the report.

use std::ffi::OsString;

use clap::Args;
use hugekit_vm::checkpoint::{ForkError, ForkOptions, MOST_CHILDREN, fork};

use crate::children::{ChildApis, ChildDevices, ChildPattern};
use hugekit_terminal::file::FileSink;
use hugekit_terminal::outcome::{Remedied, UsageError};
use hugekit_terminal::text::write_out;

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
#[command(after_help = "Example: hugekit fork --api /tmp/vm1.sock --children 4 -- \
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
    #[command(flatten)]
    devices: ChildDevices,
    /// Write times, bytes and children as JSON; `-` prints them
    #[arg(long, value_name = "FILE|-")]
    json: Option<FileSink>,
    /// The program that starts the Firecracker of a child
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl ForkCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let json = self.json.as_ref().map(FileSink::open).transpose()?;
        let forked = fork(&self.options()?).map_err(explained)?;
        match json {
            Some(sink) => sink.write_json(&forked.report),
            None => Ok(write_out(&format!("{}\n", forked.report))?),
        }
    }

    fn options(&self) -> Result<ForkOptions, UsageError> {
        let api = match &self.child_api {
            Some(pattern) => ChildApis::named("--child-api", pattern, self.children)?,
            None => ChildApis::Beside(&self.options.vm.api),
        };
        let pattern = ChildPattern { api, devices: &self.devices, command: &self.command };
        Ok(ForkOptions { children: pattern.children(self.children)?, ..self.options.clone() })
    }
}

pub(crate) fn explained(error: ForkError) -> anyhow::Error {
    let remedy = error.remedy();
    Remedied::error(error, remedy)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct ForkLine {
        #[command(flatten)]
        fork: ForkCommand,
    }

    fn options(arguments: &[&str]) -> Result<ForkOptions, UsageError> {
        let given = ["fork", "--pid", "7", "--api", "/a{}/vm.sock"];
        ForkLine::try_parse_from(given.iter().chain(arguments)).unwrap().fork.options()
    }

    #[test]
    fn each_child_has_its_number_and_its_socket() {
        let load = r#"{"other": "of{}"}"#;
        let command = ["--", "vmm", "--api-sock={api}", "log{}{}"];
        let one = options(&command).unwrap();
        assert_eq!(one.children[0].command[1], "--api-sock=/a{}/vm.sock.1");
        let words = ["--children", "2", "--load", load, "--child-api", "/b/{}.sock"];
        let all: Vec<&str> = words.into_iter().chain(command).collect();
        let found = options(&all).unwrap();
        let second = &found.children[1];
        assert_eq!(second.command, ["vmm", "--api-sock=/b/2.sock", "log22"]);
        assert_eq!(second.api, Path::new("/b/2.sock"));
        assert_eq!(second.load["other"], "of2");
    }

    #[test]
    fn each_child_has_its_devices() {
        let words = ["--children", "2", "--net", "eth0=tap{}", "--net", "eth1=same"];
        let more = ["--vsock", "/v{}", "--disk", "data=/d{}=x", "--", "vmm", "{api}"];
        let all: Vec<&str> = words.into_iter().chain(more).collect();
        let own = &options(&all).unwrap().children[1].own;
        assert_eq!((&*own.net["eth0"], &*own.net["eth1"]), ("tap2", "same"));
        assert_eq!(own.vsock.as_deref(), Some(Path::new("/v2")));
        assert_eq!(own.disks["data"], Path::new("/d2=x"));
        for shared in [["--vsock", "/v"], ["--disk", "data=/d"]] {
            let words = ["--children", "2"].into_iter().chain(shared).chain(["--", "vmm", "{api}"]);
            assert!(options(&words.collect::<Vec<_>>()).is_err(), "{shared:?}");
        }
        let unnamed = ["fork", "--api", "/a", "--net", "tap0", "--", "vmm", "{api}"];
        assert!(ForkLine::try_parse_from(unnamed).is_err());
    }

    #[test]
    fn mistakes_in_patterns_are_told() {
        assert!(options(&["--", "vmm", "--api-sock", "x"]).is_err());
        let one = ["--children", "2", "--child-api", "/b", "--", "vmm", "{api}"];
        assert!(options(&one).is_err());
        assert!(options(&["--load", "[]", "--", "vmm", "{api}"]).is_err());
    }
}
