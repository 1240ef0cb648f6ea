//! `hugekit status`: VMs that `hugekit fork` has started, below those that they were forked from.

use anyhow::Context;
use clap::Args;
use comfy_table::Table;
use hugekit_machine::size::Size;
use hugekit_vm::checkpoint::{ForkedVm, forked_vms};

use hugekit_terminal::text::write_out;

/// Print forked VMs as a tree, with the memory of each.
///
/// Private memory is that of one VM only. Shared memory is also mapped by other processes, such as
/// the file of the VMM. VMs of other users are seen by root only.
#[derive(Debug, Args)]
#[command(after_help = "Example: hugekit status")]
pub(crate) struct StatusCommand {
    /// Print JSON and nothing else
    #[arg(long)]
    json: bool,
}

impl StatusCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let vms = forked_vms().context("cannot read /proc")?;
        let text = match self.json {
            true => serde_json::to_string_pretty(&vms)? + "\n",
            false => of_people(&vms),
        };
        write_out(&text).context("cannot write to standard output")
    }
}

fn of_people(vms: &[ForkedVm]) -> String {
    if vms.is_empty() {
        return "no children of `hugekit fork` run\n".to_owned();
    }
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(["VM", "process", "private", "shared"]);
    vms.iter().for_each(|vm| add(&mut table, vm, 0));
    format!("{table}\n")
}

fn add(table: &mut Table, vm: &ForkedVm, depth: usize) {
    let name = vm.number.map_or("parent".to_owned(), |number| format!("child {number}"));
    let [private, shared] = match vm.memory {
        Some(memory) => [memory.private_bytes, memory.shared_bytes].map(size),
        None => ["ended".to_owned(), String::new()],
    };
    table.add_row([format!("{:1$}{name}", "", 2 * depth), vm.pid.to_string(), private, shared]);
    vm.children.iter().for_each(|child| add(table, child, depth + 1));
}

fn size(bytes: u64) -> String {
    Size(usize::try_from(bytes).unwrap_or(usize::MAX)).to_string()
}
