//! `hugekit restore`: a snapshot of Cloud Hypervisor, from memory that is ready.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use hugekit_image::Image;
use hugekit_lease::protocol::ImageName;
use hugekit_machine::size::Size;
use hugekit_vm::cloud_hypervisor::{ReadyMemory, Restore, RestoreError, Restored, Snapshot};
use serde_json::json;

use crate::children::DeviceOptions;
use crate::image;
use crate::socket;
use hugekit_terminal::outcome::Remedied;
use hugekit_terminal::text::{say, write_out};

/// Restore a snapshot of Cloud Hypervisor from memory on huge pages.
///
/// Reads the snapshot's memory on several threads, or uses an image that a broker holds, and sends
/// the VM to a VMM that has none. The memory becomes the guest's without a copy.
///
/// Needs Cloud Hypervisor 53 or later. With --image, the VMM maps the image privately: clones share
/// the memory that they do not write to.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  cloud-hypervisor --api-socket vm.sock &
  hugekit restore --cloud-hypervisor vm.sock --snapshot DIR --resume")]
pub(crate) struct RestoreCommand {
    /// The API socket of a Cloud Hypervisor without a VM, which may be starting
    #[arg(long, value_name = "API_SOCKET")]
    cloud_hypervisor: PathBuf,
    /// The folder of the snapshot: config.json, state.json and memory-ranges
    #[arg(long, value_name = "DIR")]
    snapshot: PathBuf,
    /// An image of the snapshot's memory-ranges that a broker holds (`hugekit image load`)
    #[arg(long, value_name = "NAME")]
    image: Option<ImageName>,
    /// The broker's socket [default: /run/hugekit/broker.sock, or below `XDG_RUNTIME_DIR`]
    #[arg(long, value_name = "PATH", requires = "image")]
    broker: Option<PathBuf>,
    #[command(flatten)]
    devices: DeviceOptions,
    /// Let the VM run as soon as it is complete; by default it stays paused
    #[arg(long)]
    resume: bool,
    /// Print JSON and nothing else
    #[arg(long)]
    json: bool,
}

/// The times of the parts.
#[derive(Clone, Copy, Debug)]
struct Times {
    memory: Duration,
    vm: Duration,
}

impl RestoreCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let snapshot = Snapshot::open(&self.snapshot).map_err(explained)?;
        let since = Instant::now();
        let memory = self.memory(&snapshot)?;
        let prepared = since.elapsed();
        let restore = Restore::new(&snapshot).own(self.devices.own("1")).resume(self.resume);
        let restored = restore.send(&self.cloud_hypervisor, &memory).map_err(explained)?;
        let times = Times { memory: prepared, vm: restored.took };
        let bytes = snapshot.bytes().map_err(explained)?;
        let notes = notes(&memory, &restored);
        let text = match self.json {
            true => self.of_programs(bytes, memory.huge_bytes(), times, &notes)?,
            false => self.of_people(bytes, memory.huge_bytes(), times),
        };
        write_out(&text).context("cannot write to standard output")?;
        if !self.json {
            notes.iter().for_each(|note| say(&format!("note: {note}")));
        }
        Ok(())
    }

    fn memory(&self, snapshot: &Snapshot) -> anyhow::Result<ReadyMemory> {
        let Some(name) = self.image else { return ReadyMemory::load(snapshot).map_err(explained) };
        let broker = self.broker.clone().unwrap_or_else(socket::to_ask);
        let image = Image::of_broker(broker, name.as_str()).map_err(image::explained)?;
        ReadyMemory::of_image(image, snapshot).map_err(explained)
    }

    fn of_programs(
        &self,
        bytes: u64,
        huge: u64,
        times: Times,
        notes: &[String],
    ) -> serde_json::Result<String> {
        let seconds = |time: Duration| time.as_secs_f64();
        let object = json!({
            "bytes": bytes,
            "bytes_on_huge_pages": huge,
            "image": self.image.map(|name| name.to_string()),
            "notes": notes,
            "resumed": self.resume,
            "seconds_memory": seconds(times.memory),
            "seconds_vm": seconds(times.vm),
        });
        Ok(serde_json::to_string_pretty(&object)? + "\n")
    }

    fn of_people(&self, bytes: u64, huge: u64, times: Times) -> String {
        let size = |bytes: u64| Size(usize::try_from(bytes).unwrap_or(usize::MAX));
        let (bytes, huge, Times { memory, vm }) = (size(bytes), size(huge), times);
        let state = if self.resume { "running" } else { "paused" };
        format!(
            "{state}: {bytes} of memory, {huge} on huge pages; memory ready in {memory:.2?}, VM \
             complete in {vm:.2?}\n"
        )
    }
}

/// Lines about differences from the snapshot, and about the link that the user must keep.
fn notes(memory: &ReadyMemory, restored: &Restored) -> Vec<String> {
    let link = restored.link.iter().map(|link| match restored.can_reboot {
        true => format!("the VM reboots with {}: remove it when the VMM has ended", link.display()),
        false => "the VM cannot reboot, because the VMM finds no /dev/zero".to_owned(),
    });
    memory.changes().iter().cloned().chain(link).collect()
}

fn explained(error: RestoreError) -> anyhow::Error {
    let remedy = error.remedy();
    Remedied::error(error, remedy)
}
