//! The folder of a snapshot, as Cloud Hypervisor writes it: `config.json`, `state.json` and
//! `memory-ranges`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::Value;

use crate::cloud_hypervisor::error::RestoreError;
use crate::cloud_hypervisor::layout::Layout;

/// Longer files of a snapshot are refused. A state has some KiB for each device and CPU.
const LONGEST: u64 = 64 << 20;

const CONFIG: &str = "config.json";
const STATE: &str = "state.json";
const MEMORY: &str = "memory-ranges";

/// The part of the state that describes memory.
const MEMORY_MANAGER: &str = "memory-manager";

/// A snapshot that a stock Cloud Hypervisor has written. Its memory is not read yet.
#[derive(Debug)]
pub struct Snapshot {
    pub(crate) config: Value,
    /// The bytes of the file: the VMM gets them unchanged.
    pub(crate) state: Vec<u8>,
    /// The part of the state that describes memory, as it is there.
    pub(crate) manager: Value,
    /// The CPUID of the machine, which the VMM compares with that of its own.
    pub(crate) cpuid: Value,
    pub(crate) layout: Layout,
    pub(crate) memory: File,
}

/// The state: a tree, whose leaves are JSON in a string.
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
    /// [`RestoreError::Read`], [`RestoreError::TooLong`], [`RestoreError::Format`].
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, RestoreError> {
        let path = |name: &str| folder.as_ref().join(name);
        let config = parse(&path(CONFIG), &read(&path(CONFIG))?)?;
        let state = read(&path(STATE))?;
        let Parts { manager, cpuid } = parts(&path(STATE), &state)?;
        let layout = format(&path(STATE), serde_json::from_value(manager.clone()))?;
        let memory = File::open(path(MEMORY)).map_err(unreadable(&path(MEMORY)))?;
        Ok(Self { config, state, manager, cpuid, layout, memory })
    }

    /// Bytes of the guest's memory.
    ///
    /// # Errors
    /// [`RestoreError::Memory`]: the snapshot's own figures make no sense.
    pub fn bytes(&self) -> Result<u64, RestoreError> {
        Ok(self.layout.bytes()?)
    }
}

/// The parts of the state that the VMM gets before the state.
struct Parts {
    manager: Value,
    cpuid: Value,
}

/// The leaf of the whole VM.
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
    Ok(Parts { manager: parse(path, manager.state.as_bytes())?, cpuid })
}

fn parse<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, RestoreError> {
    format(path, serde_json::from_slice(text))
}

fn format<T>(path: &Path, parsed: serde_json::Result<T>) -> Result<T, RestoreError> {
    parsed.map_err(|source| RestoreError::Format { path: path.to_owned(), source })
}

fn read(path: &Path) -> Result<Vec<u8>, RestoreError> {
    let file = File::open(path).map_err(unreadable(path))?;
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

    fn opened(config: &str, state: &str) -> Result<Snapshot, RestoreError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(CONFIG), config).unwrap();
        std::fs::write(folder.path().join(STATE), state).unwrap();
        std::fs::write(folder.path().join(MEMORY), "").unwrap();
        Snapshot::open(folder.path())
    }

    fn state(manager: &str) -> String {
        let data = json!({"snapshot_data": {"state": manager}, "snapshots": {}});
        let of_vm = json!({"state": json!({"common_cpuid": []}).to_string()});
        json!({"snapshots": {MEMORY_MANAGER: data}, "snapshot_data": of_vm}).to_string()
    }

    #[test]
    fn files_that_are_no_snapshot_are_refused() {
        let good = r#"{"memory_ranges": {"data": []}, "guest_ram_mappings": []}"#;
        opened("{}", &state(good)).unwrap();
        for manager in ["", "{}", "[", r#"{"memory_ranges": 1, "guest_ram_mappings": []}"#] {
            let refused = opened("{}", &state(manager));
            assert!(matches!(refused, Err(RestoreError::Format { .. })), "{manager}: {refused:?}");
        }
        let deep = "[".repeat(1 << 20);
        for (config, state) in [("", &*state(good)), ("{}", "{}"), ("{}", "7"), ("{}", &deep)] {
            let refused = opened(config, state);
            assert!(matches!(refused, Err(RestoreError::Format { .. })), "{refused:?}");
        }
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
