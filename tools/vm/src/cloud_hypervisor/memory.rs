//! Memory that is ready before the VMM needs it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use hugekit_image::{Image, ImageBuilder, ImageError};
use serde::Serialize;
use serde_json::Value;

use crate::cloud_hypervisor::config::VmConfig;
use crate::cloud_hypervisor::error::{RestoreError, UnfitMemory};
use crate::cloud_hypervisor::layout::{MemoryLayout, Placed};
use crate::cloud_hypervisor::snapshot::Snapshot;
use crate::devices::OwnDevices;

/// The ready memory of a VM, for one restore or for many.
#[derive(Debug)]
pub struct ReadyMemory {
    file: OwnedFd,
    huge: u64,
    placed: Vec<Placed>,
    is_shared: bool,
    changes: Vec<String>,
}

/// The payload of `Config`: the VM's configuration, its CPUID and its memory.
#[derive(Debug, Serialize)]
pub(crate) struct ConfigPayload<'a> {
    vm_config: VmConfig,
    common_cpuid: &'a Value,
    memory_manager_data: MemoryLayout,
}

impl ReadyMemory {
    /// Reads the snapshot's memory on several threads into a new file of memory, on huge pages if
    /// there are any. Only one VM can be restored from this memory. The VM maps the memory shared.
    ///
    /// # Errors
    /// [`RestoreError::Memory`] if the snapshot's memory cannot be restored in this way, and
    /// [`RestoreError::Image`] if the memory cannot be made.
    pub fn load(snapshot: &Snapshot) -> Result<Self, RestoreError> {
        let (placed, ranges) = snapshot.layout.in_new_file()?;
        let (_, changes) = snapshot.config.mapped_shared();
        let source = snapshot.memory.try_clone();
        let source = source.map_err(|source| ImageError::Kernel { call: "dup", source })?;
        let builder = Image::builder("vm").source(source);
        let builder = ranges.into_iter().fold(builder, ImageBuilder::range);
        let (file, huge) = builder.load_unsealed()?;
        Ok(Self { file, huge, placed, is_shared: true, changes })
    }

    /// Uses an image of the snapshot's `memory-ranges`. Any number of VMs can be restored from the
    /// image: each VM maps it privately, and copies a base page at the first write to it.
    ///
    /// # Errors
    /// [`RestoreError::Memory`] if the image belongs to another snapshot, or if the VM needs
    /// another kind of memory.
    /// -
    pub fn of_image(image: Image, snapshot: &Snapshot) -> Result<Self, RestoreError> {
        let (has, needed) = (image.bytes() as u64, snapshot.layout.bytes()?);
        if has != needed {
            return Err(UnfitMemory::Image { image: has, snapshot: needed }.into());
        }
        let (_, changes) = snapshot.config.mapped_privately(Path::new(""))?;
        let (placed, huge) = (snapshot.layout.in_memory_file()?, image.huge_bytes());
        Ok(Self { huge, file: image.into_file(), placed, is_shared: false, changes })
    }

    /// Returns the number of bytes on huge pages. 0 for an image of another process that did not
    /// report the number.
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        self.huge
    }

    /// Returns the settings of the snapshot's memory that the restored VM does not have, each with
    /// the reason.
    #[must_use]
    pub fn changes(&self) -> &[String] {
        &self.changes
    }

    /// Returns the file, and the slots for which the VMM gets it. Empty for an image.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        let shared = self.placed.iter().filter(|_| self.is_shared);
        shared.map(|placed| (placed.slot, self.file.as_fd()))
    }

    /// Returns the image, which the VMM opens by a path. `None` for memory that is mapped shared.
    pub(crate) fn image(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_shared).then(|| self.file.as_fd())
    }

    /// Returns the VM, which finds an image at this path.
    pub(crate) fn machine<'a>(
        &self,
        snapshot: &'a Snapshot,
        own: &OwnDevices,
        image: Option<&Path>,
    ) -> Result<ConfigPayload<'a>, UnfitMemory> {
        let config = snapshot.config.with(own);
        let (vm_config, _) = match image {
            Some(path) => config.mapped_privately(path)?,
            None => config.mapped_shared(),
        };
        let memory_manager_data = snapshot.layout.placed(&self.placed);
        Ok(ConfigPayload { vm_config, common_cpuid: &snapshot.cpuid, memory_manager_data })
    }
}
