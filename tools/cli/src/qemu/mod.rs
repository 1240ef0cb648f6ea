//! `hugekit qemu`: QEMU as libvirt and other programs start it, with its memory from a broker.

mod apparmor;
mod config_file;
mod emulator;
mod leases;
mod left;
mod memory;
mod not_leased;
pub(crate) mod properties;

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use hugekit_machine::Root;
use hugekit_machine::size::Size;
use rustix::io::FdFlags;

use crate::lease::{not_started, seconds};
use crate::socket;
use hugekit_terminal::text::{say, write_out};
use leases::{LeasedMemory, Lessors};
use left::Left;
use memory::GuestMemory;

/// Start QEMU with memory that is already populated
///
/// The objects of guest memory (memory-backend-ram, -memfd, and -file in a folder) that -machine or
/// -numa names become leases of `hugekit broker`. Other arguments stay as they are. If an object
/// gets no lease, QEMU starts exactly as asked, and one line on standard error prints the reason.
/// Memory that no lease can replace, such as an object with share=off, is one line each.
///
/// The script `hugekit-qemu` runs this command. Give its path to libvirt as the emulator. Packages
/// install it beside `hugekit`; --script prints it.
///
/// Example: hugekit qemu -- qemu-system-x86_64 -m 4G -machine q35,memory-backend=m
///   -object memory-backend-memfd,id=m,size=4G,share=on,prealloc=on
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct QemuCommand {
    /// Wait at most this many seconds for all leases together
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "5")]
    wait: Duration,
    /// A broker's socket; the option may be repeated, for units of several sizes or nodes [default:
    /// /run/hugekit/broker.sock, or below `$XDG_RUNTIME_DIR`]
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,
    /// The emulator, or `auto` for the one of this machine; QEMU's arguments alone follow `--`
    #[arg(long, value_name = "PATH")]
    emulator: Option<OsString>,
    /// Print the script `hugekit-qemu`, which finds `hugekit` in its folder or in `PATH`
    #[arg(long)]
    script: bool,
    /// Print what AppArmor has to permit to guests of libvirt, for a script in the folder of
    /// `hugekit`
    #[arg(long, conflicts_with = "script")]
    apparmor: bool,
    /// QEMU and its arguments
    #[arg(last = true, value_name = "QEMU", required_unless_present_any = ["script", "apparmor", "emulator"])]
    command: Vec<OsString>,
}

const SCRIPT: &str = include_str!("../../installed/hugekit-qemu");

impl QemuCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        if self.script {
            return Ok(write_out(SCRIPT)?);
        }
        if self.apparmor {
            let program = std::env::current_exe().context("cannot find this program")?;
            let folder = program.parent().context("this program lies in no folder")?;
            return Ok(write_out(&apparmor::rules(folder))?);
        }
        self.start_qemu().map(|never| match never {})
    }

    /// Becomes QEMU. Returns only if QEMU cannot be started.
    fn start_qemu(&self) -> anyhow::Result<Infallible> {
        let (program, asked) = self.program()?;
        let program = program.as_os_str();
        Left::of_arguments(asked).iter().for_each(|left| say(&left.to_string()));
        let memory = GuestMemory::of_arguments(asked);
        if memory.is_empty() {
            return Err(start(program, asked));
        }
        let lessors = self.lessors();
        match lessors.lease_all(&memory) {
            Ok(leases) => {
                note_of_merging(&Root::default(), &memory).iter().for_each(|note| say(note));
                start_on(program, asked, &memory, &leases)
            }
            Err(reason) => {
                let given = match lessors.give_back(&memory) {
                    Size(0) => String::new(),
                    bytes => format!("; the broker gives {bytes} back"),
                };
                say(&reason.and(&format!("{given}; QEMU starts as asked")).to_string());
                Err(start(program, asked))
            }
        }
    }

    /// Returns the emulator, and its arguments.
    fn program(&self) -> anyhow::Result<(OsString, &[OsString])> {
        match &self.emulator {
            Some(auto) if auto == emulator::AUTO => {
                Ok((emulator::of_this_machine()?, &self.command))
            }
            Some(named) => Ok((named.clone(), &self.command)),
            None => {
                let (program, asked) = self.command.split_first().expect("required");
                Ok((program.clone(), asked))
            }
        }
    }

    fn lessors(&self) -> Lessors {
        let sockets = match &self.socket[..] {
            [] => vec![socket::to_ask()],
            named => named.to_vec(),
        };
        Lessors::new(sockets, self.wait)
    }
}

/// Returns a line for memory that the kernel would merge with that of other guests, and does not in
/// a lease.
fn note_of_merging(root: &Root, memory: &[GuestMemory]) -> Option<String> {
    let names: Vec<_> = memory
        .iter()
        .filter(|memory| memory.is_mergeable)
        .map(|memory| memory.id.as_str())
        .collect();
    let merges = root.read_if_present("/sys/kernel/mm/ksm/run").ok().flatten();
    let is_merged = !names.is_empty() && merges.is_some_and(|run| run.trim() == "1");
    is_merged.then(|| {
        format!(
            "KSM does not merge the memory of {} any more, because a lease is shared memory. \
             Remedy: share=off keeps it private and without a lease, merge=off ends this line",
            names.join(", ")
        )
    })
}

/// Starts QEMU on leases, one for each object of memory.
fn start_on(
    program: &OsStr,
    asked: &[OsString],
    memory: &[GuestMemory],
    leases: &[LeasedMemory],
) -> anyhow::Result<Infallible> {
    let mut arguments = asked.to_vec();
    for (memory, lease) in memory.iter().zip(leases) {
        rustix::io::fcntl_setfd(&lease.file, FdFlags::empty())?;
        memory.replace(&mut arguments, &lease.path(), lease.backing);
    }
    Err(start(program, &arguments))
}

/// Becomes the program. Returns why not.
fn start(program: &OsStr, arguments: &[OsString]) -> anyhow::Error {
    not_started(program, Command::new(program).args(arguments).exec())
}

#[cfg(test)]
mod tests {
    use hugekit_invented_machines::Files;

    use super::*;

    #[test]
    fn merging_that_ends_is_one_line_while_the_kernel_merges() {
        let note = |run: Option<&str>, object: &str| {
            let machine = Files::new().unwrap();
            if let Some(run) = run {
                machine.file("/sys/kernel/mm/ksm/run", run);
            }
            let asked = format!("-machine pc,memory-backend=m -object {object},id=m,size=4G");
            let asked: Vec<OsString> = asked.split(' ').map(Into::into).collect();
            note_of_merging(&Root::at(machine.path()), &GuestMemory::of_arguments(&asked))
        };
        let line = note(Some("1\n"), "memory-backend-ram").unwrap();
        assert!(line.contains("memory of m ") && !line.contains('\n'), "{line}");
        for run in [Some("0\n"), Some("2\n"), None] {
            assert_eq!(note(run, "memory-backend-ram"), None, "{run:?}");
        }
        assert_eq!(note(Some("1\n"), "memory-backend-memfd"), None);
    }
}
