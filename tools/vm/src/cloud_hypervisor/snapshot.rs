//! The folder of a snapshot, as Cloud Hypervisor writes it: `config.json`, `state.json` and
//! `memory-ranges`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::Value;

use crate::cloud_hypervisor::config::VmConfig;
use crate::cloud_hypervisor::error::RestoreError;
use crate::cloud_hypervisor::layout::{MemoryLayout, UnfitMemory};
use crate::devices::Savepoint;

/// The highest accepted length of a file in bytes. A state has some KiB for each device and CPU.
const LONGEST: u64 = 64 << 20;

const CONFIG: &str = "config.json";
const STATE: &str = "state.json";
const MEMORY: &str = "memory-ranges";

/// The leaf of the state that describes memory.
const MEMORY_MANAGER: &str = "memory-manager";

/// A snapshot of a stock Cloud Hypervisor. Its memory is not read yet, but all numbers are checked:
/// they match, and no memory is described twice.
#[derive(Debug)]
pub struct Snapshot {
    pub(crate) config: VmConfig,
    /// The bytes of the state file, which the VMM gets unchanged.
    pub(crate) state: Vec<u8>,
    /// The CPUID of the machine, which the VMM compares with its own.
    pub(crate) cpuid: Value,
    pub(crate) layout: MemoryLayout,
    pub(crate) memory: File,
    /// The moment of the snapshot, which its disks must match.
    pub(crate) at: Savepoint,
}

/// The state: a tree whose leaves are JSON in a string.
#[derive(Debug, Deserialize)]
struct Node {
    #[serde(default)]
    snapshots: BTreeMap<String, Node>,
    snapshot_data: Option<Data>,
}

#[derive(Debug, Deserialize)]
struct Data {
    state: String,
}

impl Snapshot {
    /// Opens the snapshot in a folder.
    ///
    /// # Errors
    /// [`RestoreError::Read`] if a file cannot be read, [`RestoreError::TooLong`] or
    /// [`RestoreError::Format`] if a file is not valid, and [`RestoreError::Memory`] if the memory
    /// cannot be restored.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, RestoreError> {
        let path = |name: &str| folder.as_ref().join(name);
        let config: VmConfig = parse(&path(CONFIG), &read(&path(CONFIG))?)?;
        let state = read(&path(STATE))?;
        let Parts { layout, cpuid } = parts(&path(STATE), &state)?;
        layout.check(&config)?;
        let memory = open(&path(MEMORY))?;
        let has = memory.metadata().map_err(unreadable(&path(MEMORY)))?.len();
        let needs = layout.bytes()?;
        if has < needs {
            return Err(UnfitMemory::Short { has, needs }.into());
        }
        let written = open(&path(STATE))?.metadata().and_then(|found| found.modified());
        let at = Savepoint { saved: written.map_err(unreadable(&path(STATE)))? };
        Ok(Self { config, state, cpuid, layout, memory, at })
    }

    /// Returns the length of the guest's memory in bytes.
    ///
    /// # Errors
    /// [`RestoreError::Memory`] if the numbers in the snapshot are not valid.
    pub fn bytes(&self) -> Result<u64, RestoreError> {
        Ok(self.layout.bytes()?)
    }
}

/// The parts of the state that the VMM gets before the state.
struct Parts {
    layout: MemoryLayout,
    cpuid: Value,
}

/// The leaf that describes the whole VM.
#[derive(Debug, Deserialize)]
struct OfVm {
    common_cpuid: Value,
}

fn parts(path: &Path, state: &[u8]) -> Result<Parts, RestoreError> {
    let mut tree: Node = parse(path, state)?;
    let manager = tree.snapshots.remove(MEMORY_MANAGER).and_then(|node| node.snapshot_data);
    let lack = |name| serde_json::Error::custom(format!("there is no {name}"));
    let manager = format(path, manager.ok_or_else(|| lack(MEMORY_MANAGER)))?;
    let of_vm = format(path, tree.snapshot_data.ok_or_else(|| lack("state of the VM")))?;
    let OfVm { common_cpuid: cpuid } = parse(path, of_vm.state.as_bytes())?;
    Ok(Parts { layout: parse(path, manager.state.as_bytes())?, cpuid })
}

fn parse<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, RestoreError> {
    format(path, serde_json::from_slice(text))
}

fn format<T>(path: &Path, parsed: serde_json::Result<T>) -> Result<T, RestoreError> {
    parsed.map_err(|source| RestoreError::Format { path: path.to_owned(), source })
}

/// Opens a regular file. Another kind of file could make the restore wait for ever.
fn open(path: &Path) -> Result<File, RestoreError> {
    let file = hugekit_image::open(path).map_err(unreadable(path))?;
    if !file.metadata().map_err(unreadable(path))?.is_file() {
        let source = io::Error::new(ErrorKind::InvalidInput, "it is no regular file");
        return Err(RestoreError::Read { path: path.to_owned(), source });
    }
    Ok(file)
}

fn read(path: &Path) -> Result<Vec<u8>, RestoreError> {
    let file = open(path)?;
    let bytes = file.metadata().map_err(unreadable(path))?.len();
    if bytes > LONGEST {
        return Err(RestoreError::TooLong { path: path.to_owned(), bytes, most: LONGEST });
    }
    let mut text = Vec::new();
    // A file that grows is cut off, and is no JSON then.
    file.take(LONGEST).read_to_end(&mut text).map_err(unreadable(path))?;
    Ok(text)
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> RestoreError {
    let path: PathBuf = path.to_owned();
    move |source| RestoreError::Read { path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CONFIG_OF_4_KIB: &str = r#"{"memory": {"size": 4096}}"#;

    fn opened(config: &str, state: &str) -> Result<Snapshot, RestoreError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(CONFIG), config).unwrap();
        std::fs::write(folder.path().join(STATE), state).unwrap();
        std::fs::write(folder.path().join(MEMORY), [7; 4096]).unwrap();
        Snapshot::open(folder.path())
    }

    fn state(manager: &str) -> String {
        let data = json!({"snapshot_data": {"state": manager}, "snapshots": {}});
        let of_vm = json!({"state": json!({"common_cpuid": []}).to_string()});
        json!({"snapshots": {MEMORY_MANAGER: data}, "snapshot_data": of_vm}).to_string()
    }

    fn manager() -> Value {
        json!({
            "memory_ranges": {"data": [{"gpa": 0, "length": 4096}]},
            "guest_ram_mappings": [{"slot": 0, "gpa": 0, "size": 4096, "zone_id": "mem0"}],
        })
    }

    fn refuse_format(config: &str, state: &str) {
        let refused = opened(config, state);
        assert!(
            matches!(refused, Err(RestoreError::Format { .. })),
            "{config} {state}: {refused:?}"
        );
    }

    #[test]
    fn files_that_are_no_snapshot_are_refused() {
        let good = state(&manager().to_string());
        opened(CONFIG_OF_4_KIB, &good).unwrap();
        for manager in
            ["", "{}", "[", "[]", "5", r#"{"memory_ranges": 1, "guest_ram_mappings": []}"#]
        {
            refuse_format(CONFIG_OF_4_KIB, &state(manager));
        }
        let deep = "[".repeat(1 << 20);
        for (config, state) in
            [("", &*good), (CONFIG_OF_4_KIB, "{}"), (CONFIG_OF_4_KIB, "7"), ("{}", &deep)]
        {
            refuse_format(config, state);
        }
    }

    #[test]
    fn every_part_that_is_of_another_shape_is_refused() {
        let good = state(&manager().to_string());
        for config in ["[]", "5", "\"x\"", "{}"] {
            refuse_format(config, &good);
        }
        for memory in ["5", "[]", "\"x\"", "null", "{}"] {
            refuse_format(&format!("{{\"memory\": {memory}}}"), &good);
        }
        for zones in ["5", "{}", "[5]", "[[]]", "[{}]", "[null]", "\"x\""] {
            refuse_format(&format!("{{\"memory\": {{\"size\": 0, \"zones\": {zones}}}}}"), &good);
        }
        for shape in
            [json!([]), json!(5), json!([[]]), json!([5]), json!({}), json!("x"), Value::Null]
        {
            for pointer in ["/memory_ranges", "/guest_ram_mappings"] {
                let mut odd = manager();
                *odd.pointer_mut(pointer).unwrap() = shape.clone();
                let state = state(&odd.to_string());
                let refused = opened(CONFIG_OF_4_KIB, &state);
                // No mapping at all is a list, and the machine has no memory then.
                let is_empty = (pointer, &shape) == ("/guest_ram_mappings", &json!([]));
                assert!(refused.is_err() || is_empty, "{pointer} {shape}");
            }
        }
    }

    /// Returns the nth value of a tree, in any order.
    fn nth<'a>(value: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
        if *left == 0 {
            return Some(value);
        }
        *left -= 1;
        match value {
            Value::Array(values) => values.iter_mut().find_map(|value| nth(value, left)),
            Value::Object(map) => map.values_mut().find_map(|value| nth(value, left)),
            _ => None,
        }
    }

    /// A snapshot in which one value is replaced by another never causes a panic, and neither does
    /// the VM that would be made of it.
    #[test]
    fn every_value_may_be_another_one() {
        let zone = json!({"id": "mem0", "size": 4096, "file": "/f", "shared": false});
        let config = json!({"memory": {"size": 0, "zones": [zone]}, "fs": [{}], "net": [{}]});
        let others = [
            "null",
            "true",
            "7",
            "-1",
            "1e400",
            "\"x\"",
            "[]",
            "[[]]",
            "{}",
            "[{}]",
            "18446744073709551615",
        ];
        let mut opened_ones = 0;
        for other in others.iter().filter_map(|text| serde_json::from_str::<Value>(text).ok()) {
            for at in 0..16 {
                let (mut config, mut manager) = (config.clone(), manager());
                for (tree, at) in [(&mut config, at), (&mut manager, at)] {
                    if let Some(value) = nth(tree, &mut at.clone()) {
                        *value = other.clone();
                    }
                }
                for (config, manager) in
                    [(&config, &self::manager()), (&json!({"memory": {"size": 4096}}), &manager)]
                {
                    let Ok(snapshot) = opened(&config.to_string(), &state(&manager.to_string()))
                    else {
                        continue;
                    };
                    opened_ones += 1;
                    snapshot.config.mapped_shared();
                    let _ = snapshot.config.mapped_privately(Path::new("/p"));
                }
            }
        }
        assert!(opened_ones > 0);
    }

    #[test]
    fn devices_and_pipes_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        for name in [CONFIG, STATE, MEMORY] {
            std::fs::write(folder.path().join(CONFIG), CONFIG_OF_4_KIB).unwrap();
            std::fs::write(folder.path().join(STATE), state(&manager().to_string())).unwrap();
            std::fs::write(folder.path().join(MEMORY), [7; 4096]).unwrap();
            let path = folder.path().join(name);
            std::fs::remove_file(&path).unwrap();
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
            let refused = Snapshot::open(folder.path());
            assert!(matches!(refused, Err(RestoreError::Read { .. })), "{name}: {refused:?}");
            std::fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
            let refused = Snapshot::open(folder.path());
            assert!(matches!(refused, Err(RestoreError::Read { .. })), "{name}: {refused:?}");
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn memory_file_that_is_cut_is_refused_with_both_lengths() {
        let state = state(&manager().to_string().replace("4096", "8192"));
        let refused = opened(CONFIG_OF_4_KIB, &state);
        let short = UnfitMemory::Short { has: 4096, needs: 8192 };
        assert!(
            matches!(&refused, Err(RestoreError::Memory(found)) if *found == short),
            "{refused:?}"
        );
    }

    #[test]
    fn long_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let config = File::create(folder.path().join(CONFIG)).unwrap();
        config.set_len(LONGEST + 1).unwrap();
        let refused = Snapshot::open(folder.path());
        assert!(matches!(refused, Err(RestoreError::TooLong { .. })), "{refused:?}");
    }
}
