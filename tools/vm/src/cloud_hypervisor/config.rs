//! The part of a VM's configuration that determines its memory. Everything else is kept unchanged.
//!
//! A restored VM has another kind of memory than its snapshot: a file that the VMM maps shared, or
//! an image that it maps privately. Some settings are wrong for such memory: the VMM would refuse
//! the VM, or copy the image. This file decides about each setting: it stays, it changes with a
//! line for the user, or the snapshot is refused.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::cloud_hypervisor::devices;
use crate::cloud_hypervisor::layout::UnfitMemory;
use crate::devices::{Device, OwnDevices};

/// The name of the only zone of memory if a VM's configuration names none.
pub(crate) const DEFAULT_ZONE: &str = "mem0";

/// Lists of devices whose other process maps the guest's memory, too.
const SHARERS: [&str; 3] = ["fs", "generic_vhost_user", "user_devices"];

/// Lists in which some devices have another process (`vhost_user`).
const PERHAPS_SHARERS: [&str; 2] = ["disks", "net"];

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct VmConfig {
    pub memory: MemoryConfig,
    /// True if the VMM may open only files that it knows when it makes the VM.
    #[serde(default)]
    landlock_enable: bool,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct MemoryConfig {
    /// 0 if there are zones.
    size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hotplug_size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zones: Option<Vec<Zone>>,
    #[serde(flatten)]
    settings: Settings,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Zone {
    id: String,
    size: u64,
    /// The file that the VMM maps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    #[serde(flatten)]
    settings: Settings,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Settings of all memory or of a zone. A missing setting is off.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
struct Settings {
    #[serde(default)]
    shared: bool,
    #[serde(default)]
    mergeable: bool,
    #[serde(default)]
    hugepages: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hugepage_size: Option<u64>,
    #[serde(default)]
    prefault: bool,
    #[serde(default, skip_serializing_if = "is_off")]
    reserve: bool,
}

/// Returns true if a setting is off. Older versions do not know the setting.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_off(setting: &bool) -> bool {
    !setting
}

impl VmConfig {
    /// Returns true if the mappings of memory may belong to this zone.
    pub(crate) fn has_zone(&self, id: &str) -> bool {
        match self.memory.zones() {
            Some(zones) => zones.iter().any(|zone| zone.id == id),
            None => id == DEFAULT_ZONE,
        }
    }

    /// Returns the user's file with the memory of a zone, if the VMM maps the file shared. The VMM
    /// does not save such memory.
    pub(crate) fn shared_file(&self, id: &str) -> Option<&Path> {
        let zone = self.memory.zones()?.iter().find(|zone| zone.id == id)?;
        zone.file.as_deref().filter(|_| zone.settings.shared)
    }

    /// Returns the configuration of a VM whose VMM gets files and maps them shared, whatever the
    /// configuration contains. From the next reboot on, the configuration has an effect again.
    pub(crate) fn mapped_shared(&self) -> (Self, Vec<String>) {
        let mut config = self.clone();
        let mut changes = Vec::new();
        match &mut config.memory.zones {
            Some(zones) if !zones.is_empty() => {
                zones.iter_mut().for_each(|zone| zone.map_shared(&mut changes));
            }
            _ => config.memory.settings.share("the memory", &mut changes),
        }
        (config, changes)
    }

    /// Returns the configuration of a VM that maps the file at `path` privately.
    ///
    /// # Errors
    /// [`UnfitMemory`] if the VM needs another kind of memory.
    pub(crate) fn mapped_privately(&self, path: &Path) -> Result<(Self, Vec<String>), UnfitMemory> {
        if self.memory.hotplug_size.is_some() {
            return Err(UnfitMemory::Hotplug);
        }
        if self.landlock_enable {
            return Err(UnfitMemory::Landlock);
        }
        if let Some(devices) = self.sharers() {
            return Err(UnfitMemory::Sharers { devices });
        }
        let mut config = self.clone();
        let mut changes = Vec::new();
        let memory = &mut config.memory;
        if memory.zones().is_none() {
            // Only zones have files.
            let settings = memory.settings.clone();
            let (id, size) = (DEFAULT_ZONE.to_owned(), memory.size);
            memory.zones = Some(vec![Zone { id, size, file: None, settings, rest: Map::new() }]);
            memory.size = 0;
        }
        memory.settings.keep_private();
        let zones = memory.zones.iter_mut().flatten();
        zones.for_each(|zone| zone.map_privately(path, &mut changes));
        Ok((config, changes))
    }

    /// Returns the devices that use a part of the host.
    pub(crate) fn devices(&self) -> Vec<Device> {
        devices::all(&self.rest)
    }

    /// Returns the configuration with other parts of the host.
    pub(crate) fn with(&self, own: &OwnDevices) -> Self {
        let mut config = self.clone();
        devices::replace(&mut config.rest, own);
        config
    }

    /// Returns the devices of the VM whose other process must map the guest's memory.
    fn sharers(&self) -> Option<&'static str> {
        let devices = |name: &str| self.rest.get(name).and_then(Value::as_array);
        let has_other_side =
            |device: &Value| device.get("vhost_user").and_then(Value::as_bool) == Some(true);
        let whole =
            SHARERS.into_iter().find(|name| devices(name).is_some_and(|all| !all.is_empty()));
        whole.or_else(|| {
            let all = |name: &&str| devices(name).into_iter().flatten().any(has_other_side);
            PERHAPS_SHARERS.into_iter().find(all)
        })
    }
}

impl MemoryConfig {
    /// Returns the user's zones; `None` if all memory is one zone that the VMM names.
    fn zones(&self) -> Option<&[Zone]> {
        self.zones.as_deref().filter(|zones| !zones.is_empty())
    }
}

impl Zone {
    fn map_shared(&mut self, changes: &mut Vec<String>) {
        let name = format!("zone {}", self.id);
        if let Some(gone) = self.file.take_if(|file| !file.exists()) {
            // The VMM asks for the file's block size, although it maps another one.
            changes.push(format!(
                "{name}: its file {} does not exist, so its memory is anonymous after a reboot",
                gone.display()
            ));
        }
        if self.file.is_none() {
            self.settings.share(&name, changes);
        }
        // The VMM would map a file of the user's shared at the next reboot, and write to it.
    }

    fn map_privately(&mut self, path: &Path, changes: &mut Vec<String>) {
        let mut change = |text: &str| changes.push(format!("zone {}: {text}", self.id));
        if let Some(file) = self.file.replace(path.to_owned()) {
            let file = file.display();
            change(&format!("after a reboot its memory begins empty, and not as {file}"));
        }
        if self.settings.prefault {
            change("prefault is off, because it would copy the whole image");
        }
        if self.settings.hugepages {
            change("hugepages is off, because a clone copies base pages of the image");
        }
        if self.settings.shared {
            change("shared is off, because clones of an image are private");
        }
        self.settings.keep_private();
    }
}

impl Settings {
    fn share(&mut self, name: &str, changes: &mut Vec<String>) {
        self.shared = true;
        // The VMM refuses both.
        if std::mem::take(&mut self.mergeable) {
            changes.push(format!(
                "{name}: mergeable is off, because the kernel does not merge shared memory"
            ));
        }
        if self.hugepages {
            changes.push(format!(
                "{name}: its memory is on transparent huge pages, and on hugetlbfs after a reboot"
            ));
        }
    }

    /// Changes the settings to those of a private mapping of an image. `mergeable` and `reserve`
    /// stay, and apply to the pages that the clone has written.
    fn keep_private(&mut self) {
        let Self { mergeable, reserve, .. } = *self;
        *self = Self { mergeable, reserve, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(memory: &Value) -> VmConfig {
        serde_json::from_value(json!({"memory": memory, "cpus": {"boot_vcpus": 3}})).unwrap()
    }

    fn text(config: &VmConfig) -> Value {
        serde_json::to_value(config).unwrap()
    }

    fn private(memory: &Value) -> (Value, Vec<String>) {
        let (config, changes) = config(memory).mapped_privately(Path::new("/p")).unwrap();
        (text(&config)["memory"].clone(), changes)
    }

    fn shared(memory: &Value) -> (Value, Vec<String>) {
        let (config, changes) = config(memory).mapped_shared();
        (text(&config)["memory"].clone(), changes)
    }

    #[test]
    fn everything_else_stays() {
        let memory = json!({
            "size": 0, "thp": false, "hotplug_method": "Acpi",
            "zones": [{"id": "a", "size": 1, "host_numa_node": 1, "new": [2.5]}],
        });
        let found = text(&config(&memory).mapped_shared().0);
        assert_eq!(found["cpus"], json!({"boot_vcpus": 3}));
        assert_eq!(
            (&found["memory"]["thp"], &found["memory"]["hotplug_method"]),
            (&json!(false), &json!("Acpi"))
        );
        let zone = &found["memory"]["zones"][0];
        assert_eq!((&zone["host_numa_node"], &zone["new"]), (&json!(1), &json!([2.5])));
    }

    #[test]
    fn memory_without_zones_gets_one_to_name_a_file() {
        let (memory, changes) = private(&json!({
            "size": 5, "shared": true, "hugepages": true, "hugepage_size": 2, "zones": null,
        }));
        let zone = &memory["zones"][0];
        let found = (&zone["id"], &zone["size"], &zone["file"]);
        assert_eq!(found, (&json!("mem0"), &json!(5), &json!("/p")));
        assert_eq!((&memory["size"], &memory["shared"]), (&json!(0), &json!(false)));
        for place in [&memory, zone] {
            assert_eq!((&place["hugepages"], &place["shared"]), (&json!(false), &json!(false)));
            assert!(place["hugepage_size"].is_null());
        }
        assert_eq!(changes.len(), 2, "{changes:?}");
    }

    #[test]
    fn settings_that_are_wrong_for_an_image_change_with_a_line() {
        for (setting, line) in [
            ("prefault", "copy the whole image"),
            ("hugepages", "base pages"),
            ("shared", "private"),
        ] {
            let of_zone =
                private(&json!({"size": 0, "zones": [{"id": "m", "size": 5, setting: true}]}));
            let of_all = private(&json!({"size": 5, setting: true}));
            for ((memory, changes), name) in [(of_zone, "zone m: "), (of_all, "zone mem0: ")] {
                assert_eq!(memory["zones"][0][setting], false, "{setting}");
                assert!(
                    matches!(&changes[..], [one] if one.starts_with(name) && one.contains(line)),
                    "{changes:?}"
                );
            }
        }
        for setting in ["mergeable", "reserve"] {
            let (memory, changes) = private(&json!({"size": 5, setting: true}));
            assert_eq!(
                (&memory["zones"][0][setting], changes.len()),
                (&json!(true), 0),
                "{setting}"
            );
        }
        let file = json!({"size": 0, "zones": [{"id": "m", "size": 5, "file": "/f"}]});
        assert!(private(&file).1[0].contains("/f"), "{:?}", private(&file).1);
    }

    #[test]
    fn memory_that_is_shared_is_not_mergeable() {
        for memory in [
            json!({"size": 5, "mergeable": true}),
            json!({"size": 0, "zones": [{"id": "m", "size": 5, "mergeable": true}]}),
        ] {
            let (found, changes) = shared(&memory);
            let place = if found["size"] == 0 { &found["zones"][0] } else { &found };
            assert_eq!((&place["shared"], &place["mergeable"]), (&json!(true), &json!(false)));
            assert!(changes[0].contains("mergeable"), "{changes:?}");
        }
        assert_eq!(shared(&json!({"size": 5})).1, Vec::<String>::new());
    }

    #[test]
    fn file_of_the_user_is_never_shared_by_a_restore() {
        let zone = |file: &str| json!({"size": 0, "zones": [{"id": "m", "size": 5, "file": file}]});
        let (kept, changes) = shared(&zone("/proc/self/exe"));
        let kept = &kept["zones"][0];
        assert_eq!((&kept["file"], &kept["shared"]), (&json!("/proc/self/exe"), &json!(false)));
        assert_eq!(changes, Vec::<String>::new());
        let (gone, changes) = shared(&zone("/proc/1/fd/none"));
        assert!(gone["zones"][0]["file"].is_null());
        assert!(changes[0].contains("/proc/1/fd/none"), "{changes:?}");
    }

    #[test]
    fn vmm_that_may_open_no_other_file_is_refused_an_image() {
        let one = json!({"memory": {"size": 5}, "landlock_enable": true});
        let one: VmConfig = serde_json::from_value(one).unwrap();
        let refused = one.mapped_privately(Path::new("/p")).unwrap_err();
        assert_eq!(refused, UnfitMemory::Landlock);
        assert_eq!(text(&one.mapped_shared().0)["landlock_enable"], true);
    }

    #[test]
    fn devices_with_another_side_are_refused() {
        for (name, device) in [
            ("fs", json!({"tag": "x"})),
            ("generic_vhost_user", json!({})),
            ("user_devices", json!({})),
            ("disks", json!({"vhost_user": true})),
            ("net", json!({"vhost_user": true})),
        ] {
            let one = json!({"memory": {"size": 5, "shared": true}, name: [device]});
            let one: VmConfig = serde_json::from_value(one).unwrap();
            let refused = one.mapped_privately(Path::new("/p")).unwrap_err();
            assert_eq!(refused, UnfitMemory::Sharers { devices: name });
            one.mapped_shared();
        }
        let none = json!({"memory": {"size": 5}, "fs": null, "net": [{"vhost_user": false}, 7]});
        let none: VmConfig = serde_json::from_value(none).unwrap();
        none.mapped_privately(Path::new("/p")).unwrap();
    }
}
