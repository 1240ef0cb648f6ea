#![doc = include_str!("README.md")]

mod checkpoints;
mod children;
mod clones;
mod copying;
mod delta;
mod error;
mod fork;
mod fork_error;
mod fork_report;
mod granule_state;
mod granules;
mod growing;
mod guard;
mod handover;
mod lineage;
mod mappings;
mod nursery;
mod once;
mod options;
pub(crate) mod output;
mod pages;
mod preserved;
pub(crate) mod previous;
mod prospects;
mod report;
mod room;
mod saving;
mod series;
mod shortage;
mod sink;
mod starting_line;
mod tracked_vm;
mod vm;

pub use crate::devices::{DeviceError, OwnDevices};
pub use crate::vmm::{ConfiguredMemory, ControlError};
pub use clones::{CloneMemory, CloneReport, CloneWay, Cloned, start_clones};
pub use error::CheckpointError;
pub use fork::{Forked, fork};
pub use fork_error::ForkError;
pub use fork_report::{ChildReport, ForkReport};
pub use guard::MOST_STARTED as MOST_CHILDREN;
pub use lineage::{ForkedVm, VmMemory, forked_vms};
pub use once::checkpoint;
pub use options::{
    CheckpointOptions, ChildOptions, CloneOptions, ForkOptions, RunningVm, SeriesOptions,
};
pub use previous::state_of;
pub use prospects::{NoHugePages, VmProspects};
pub use report::{CheckpointReport, Way};
pub use series::checkpoint_series;
