//! Memory that is ready before the VMM asks for it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use hugekit_image::{Image, ImageBuilder, ImageError};
use serde_json::{Value, json};

use crate::cloud_hypervisor::error::{RestoreError, UnfitMemory};
use crate::cloud_hypervisor::layout::Placed;
use crate::cloud_hypervisor::snapshot::Snapshot;

/// The name of the only zone of memory if a VM's configuration names none.
const DEFAULT_ZONE: &str = "mem0";

/// The memory of a VM.
#[derive(Debug)]
pub struct ReadyMemory {
    file: OwnedFd,
    huge: u64,
    placed: Vec<Placed>,
    is_shared: bool,
}

impl ReadyMemory {
    /// Reads the snapshot's memory on several threads into a new file of memory, on huge pages if
    /// there are any. Exactly one VM can be restored from it, which maps it shared.
    ///
    /// # Errors
    /// [`RestoreError::Memory`], [`RestoreError::Image`].
    pub fn load(snapshot: &Snapshot) -> Result<Self, RestoreError> {
        let (placed, ranges) = snapshot.layout.in_new_file()?;
        let source = snapshot.memory.try_clone();
        let source = source.map_err(|source| ImageError::Kernel { call: "dup", source })?;
        let builder = Image::builder("vm").source(source);
        let builder = ranges.into_iter().fold(builder, ImageBuilder::range);
        let (file, huge) = builder.load_unsealed()?;
        Ok(Self { file, huge, placed, is_shared: true })
    }

    /// An image of the snapshot's `memory-ranges`. Any number of VMs can be restored from it: each
    /// one maps it privately, and copies a base page when it writes.
    ///
    /// The VMM opens the image by its path below `/proc/PID/fd` of this process.
    ///
    /// # Errors
    /// [`RestoreError::Memory`]: the image is that of another snapshot, or the VM can be given more
    /// memory.
    pub fn of_image(image: Image, snapshot: &Snapshot) -> Result<Self, RestoreError> {
        let (has, needed) = (image.bytes() as u64, snapshot.layout.bytes()?);
        if has != needed {
            return Err(UnfitMemory::Image { image: has, snapshot: needed }.into());
        }
        if !snapshot.config["memory"]["hotplug_size"].is_null() {
            return Err(UnfitMemory::Hotplug.into());
        }
        let placed = snapshot.layout.in_memory_file()?;
        Ok(Self { huge: image.huge_bytes(), file: image.into_file(), placed, is_shared: false })
    }

    /// Bytes that are on huge pages; 0 of an image that another process has loaded without saying.
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        self.huge
    }

    /// The file and the slots for which the VMM gets it; none of an image, which it opens.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        let shared = self.placed.iter().filter(|_| self.is_shared);
        shared.map(|placed| (placed.slot, self.file.as_fd()))
    }

    /// The payload of `Config`: the VM's configuration, its CPUID and its memory.
    pub(crate) fn config(&self, snapshot: &Snapshot) -> Value {
        let mut config = snapshot.config.clone();
        if self.is_shared {
            share(&mut config["memory"]);
        } else {
            let path = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
            map_privately(&mut config["memory"], &path);
        }
        let mut manager = snapshot.manager.clone();
        if let Some(mappings) = manager["guest_ram_mappings"].as_array_mut() {
            for (mapping, placed) in mappings.iter_mut().zip(&self.placed) {
                mapping["file_offset"] = json!(placed.offset);
            }
        }
        let cpuid = &snapshot.cpuid;
        json!({"vm_config": config, "common_cpuid": cpuid, "memory_manager_data": manager})
    }
}

fn zones(memory: &mut Value) -> impl Iterator<Item = &mut Value> {
    memory["zones"].as_array_mut().into_iter().flatten()
}

/// The VMM maps the files that it gets shared, whatever its configuration says.
fn share(memory: &mut Value) {
    if memory["zones"].is_array() {
        zones(memory).for_each(|zone| zone["shared"] = json!(true));
    } else {
        memory["shared"] = json!(true);
    }
}

/// Has the VMM map a file privately. Only zones have files.
fn map_privately(memory: &mut Value, path: &str) {
    if !memory["zones"].is_array() {
        let size = memory["size"].take();
        memory["zones"] = json!([{"id": DEFAULT_ZONE, "size": size}]);
        memory["size"] = json!(0);
    }
    let own = json!({"shared": false, "hugepages": false, "hugepage_size": null});
    let own = own.as_object().expect("it is one");
    for (name, value) in own {
        memory[name] = value.clone();
        zones(memory).for_each(|zone| zone[name] = value.clone());
    }
    zones(memory).for_each(|zone| zone["file"] = json!(path));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_without_zones_gets_one_to_name_a_file() {
        let mut memory = json!({"size": 5, "shared": true, "hugepages": true, "zones": null});
        map_privately(&mut memory, "/p");
        let zone = &memory["zones"][0];
        assert_eq!(
            (&zone["id"], &zone["size"], &zone["file"]),
            (&json!("mem0"), &json!(5), &json!("/p"))
        );
        assert_eq!((&memory["size"], &memory["shared"]), (&json!(0), &json!(false)));
        assert_eq!((&memory["hugepages"], &zone["shared"]), (&json!(false), &json!(false)));
    }

    #[test]
    fn zones_keep_their_names_and_sizes() {
        let mut memory =
            json!({"size": 0, "zones": [{"id": "a", "size": 1}, {"id": "b", "size": 2}]});
        let mut shared = memory.clone();
        map_privately(&mut memory, "/p");
        assert_eq!(memory["zones"][1]["id"], "b");
        assert_eq!(memory["zones"][1]["file"], "/p");
        assert_eq!(memory["zones"][1]["size"], 2);
        share(&mut shared);
        assert_eq!(shared["zones"][0]["shared"], true);
        assert!(shared["shared"].is_null());
    }
}
