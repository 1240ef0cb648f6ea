//! Options of a fork: the VM, and its children.

use std::ffi::OsString;
use std::path::PathBuf;

use serde_json::{Map, Value};

/// Options of a fork.
#[derive(Clone, Debug)]
pub struct ForkSettings {
    /// The VMM's process.
    pub pid: i32,
    /// The socket of its API.
    pub api: PathBuf,
    /// From 1 to 64.
    pub children: Vec<ChildSettings>,
    /// True if children run as soon as they are restored.
    pub resume: bool,
    /// True if memory on base pages is put on huge pages before the pause. This copies it once
    /// more.
    pub collapse: bool,
    /// True if the API's socket must belong to the VMM's process. The socket of a proxy does not.
    pub check_api: bool,
}

impl ForkSettings {
    /// With the defaults of the command.
    #[must_use]
    pub fn new(pid: i32, api: PathBuf, children: Vec<ChildSettings>) -> Self {
        Self { pid, api, children, resume: true, collapse: true, check_api: true }
    }
}

/// Options of one child.
#[derive(Clone, Debug)]
pub struct ChildSettings {
    /// The program that starts Firecracker, and its arguments. Its standard streams are
    /// `/dev/null`.
    pub command: Vec<OsString>,
    /// The socket of the child's API, which must not exist.
    pub api: PathBuf,
    /// Other fields of the request that restores the child, such as `network_overrides`.
    pub load: Map<String, Value>,
}
