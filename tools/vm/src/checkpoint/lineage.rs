//! The lineage of forked VMs. Each child has the parent's process in its environment. So no file
//! must be written, and the record ends with the child.

use std::io;

use hugekit_machine::Root;
use hugekit_machine::processes::{self, ProcessFolder};
use serde::Serialize;

use crate::vmm::userfaultfd::is_userfaultfd;

/// The variable in the environment of a child. Its value is the child's [`Origin`] as text.
pub(crate) const ORIGIN: &str = "HUGEKIT_FORK";

/// A VM that was forked or that is a child, with its children.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ForkedVm {
    /// The number of the VMM's process.
    pub pid: i32,
    /// The number of the VM as a child, from 1 on. `None` if it is not a child.
    pub number: Option<usize>,
    /// The memory of the VMM; `None` if it has ended.
    pub memory: Option<VmMemory>,
    /// The children, in the order of their numbers.
    pub children: Vec<ForkedVm>,
}

/// The memory of a VMM's process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VmMemory {
    /// Bytes that belong to this process only.
    pub private_bytes: u64,
    /// Bytes that this process shares with other processes.
    pub shared_bytes: u64,
}

/// Returns the forked VMs of this machine with running children, and their children. Only root sees
/// the children of other users.
///
/// # Errors
/// An error if `/proc` cannot be read.
pub fn forked_vms() -> io::Result<Vec<ForkedVm>> {
    let folders = processes::numbers(&Root::default())?.into_iter();
    let folders = folders.filter_map(|pid| ProcessFolder::open(pid).ok());
    let children: Vec<LivingChild> = folders.filter_map(|folder| child(&folder)).collect();
    Ok(trees(&children, &memory))
}

/// A process, distinguished from a later process with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ProcessIdentity {
    pid: i32,
    /// The start time in clock ticks since the machine's start.
    started: u64,
}

impl ProcessIdentity {
    fn of(folder: &ProcessFolder) -> Option<Self> {
        Some(Self { pid: folder.pid(), started: folder.stat().ok()?.started })
    }
}

/// The parent of a child VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    parent: ProcessIdentity,
    number: usize,
}

impl Origin {
    /// Returns the text for the environment of a child.
    pub(crate) fn text(parent: i32, number: usize) -> io::Result<String> {
        let started = ProcessFolder::open(parent)?.stat()?.started;
        Ok(format!("{parent}:{started}:{number}"))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let mut next = || parts.next()?.parse::<u64>().ok();
        let (pid, started, number) = (next()?, next()?, next()?);
        let parent = ProcessIdentity { pid: pid.try_into().ok()?, started };
        Some(Self { parent, number: number.try_into().ok()? })
    }
}

#[derive(Clone, Copy, Debug)]
struct LivingChild {
    vm: ProcessIdentity,
    origin: Origin,
}

/// Returns the child if a process is a VMM. A program that started a VMM has the variable, too, but
/// no userfaultfd.
fn child(folder: &ProcessFolder) -> Option<LivingChild> {
    let environment = folder.read("environ").ok()?;
    let variables = environment.split(|&byte| byte == 0);
    let value = |variable: &[u8]| {
        let value = variable.strip_prefix(ORIGIN.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    };
    let origin = Origin::parse(&variables.filter_map(value).next()?)?;
    let mut numbers = folder.numbers("fd").ok()?.into_iter();
    let is_one = |number: &i32| {
        folder.link(&format!("fd/{number}")).is_ok_and(|link| is_userfaultfd(link.as_ref()))
    };
    numbers.find(is_one)?;
    Some(LivingChild { vm: ProcessIdentity::of(folder)?, origin })
}

/// Builds the trees of VMs. Each VM has one origin, so the VMs below a VM that is not a child are a
/// tree.
fn trees(
    all: &[LivingChild],
    memory: &dyn Fn(ProcessIdentity) -> Option<VmMemory>,
) -> Vec<ForkedVm> {
    let is_child = |vm: &ProcessIdentity| all.iter().any(|child| child.vm == *vm);
    let parents = all.iter().map(|child| child.origin.parent);
    let mut roots: Vec<ProcessIdentity> = parents.filter(|parent| !is_child(parent)).collect();
    roots.sort_unstable();
    roots.dedup();
    roots.into_iter().map(|root| tree(root, None, all, memory)).collect()
}

fn tree(
    vm: ProcessIdentity,
    number: Option<usize>,
    all: &[LivingChild],
    memory: &dyn Fn(ProcessIdentity) -> Option<VmMemory>,
) -> ForkedVm {
    let mut own: Vec<&LivingChild> = all.iter().filter(|child| child.origin.parent == vm).collect();
    own.sort_by_key(|child| (child.origin.number, child.vm));
    let children =
        own.into_iter().map(|child| tree(child.vm, Some(child.origin.number), all, memory));
    ForkedVm { pid: vm.pid, number, memory: memory(vm), children: children.collect() }
}

fn memory(vm: ProcessIdentity) -> Option<VmMemory> {
    let folder = ProcessFolder::open(vm.pid).ok()?;
    if ProcessIdentity::of(&folder)? != vm {
        return None;
    }
    let rollup = folder.read("smaps_rollup").ok()?;
    let rollup = String::from_utf8_lossy(&rollup);
    let bytes = |value: &str| Some(value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10);
    let sum = |prefix: &str| {
        let lines = rollup.lines().filter(|line| line.starts_with(prefix));
        lines.filter_map(|line| bytes(line.split_once(':')?.1)).sum()
    };
    Some(VmMemory { private_bytes: sum("Private_"), shared_bytes: sum("Shared_") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(pid: i32) -> ProcessIdentity {
        ProcessIdentity { pid, started: 5 }
    }

    #[test]
    fn origin_survives_its_text() {
        let own = std::process::id() as i32;
        let origin = Origin::parse(&Origin::text(own, 3).unwrap()).unwrap();
        assert_eq!((origin.parent.pid, origin.number), (own, 3));
        assert_eq!(Some(origin.parent), ProcessIdentity::of(&ProcessFolder::open(own).unwrap()));
        assert!(Origin::text(i32::MAX, 1).is_err());
        for nonsense in ["", "1:2", "1:2:x", "-1:2:3", "4294967296:2:3"] {
            assert_eq!(Origin::parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn children_are_below_their_parents_in_their_order() {
        let child =
            |pid, parent, number| LivingChild { vm: vm(pid), origin: Origin { parent, number } };
        let later = ProcessIdentity { pid: 1, started: 9 };
        let all = [child(4, vm(2), 1), child(3, vm(1), 2), child(2, vm(1), 1), child(5, later, 1)];
        let bytes = VmMemory { private_bytes: 7, shared_bytes: 8 };
        let found = trees(&all, &|vm| (vm.started == 5).then_some(bytes));
        let node = |pid, number, memory, children| ForkedVm { pid, number, memory, children };
        let grandchild = node(4, Some(1), Some(bytes), vec![]);
        let children = vec![
            node(2, Some(1), Some(bytes), vec![grandchild]),
            node(3, Some(2), Some(bytes), vec![]),
        ];
        let other = node(1, None, None, vec![node(5, Some(1), Some(bytes), vec![])]);
        assert_eq!(found, [node(1, None, Some(bytes), children), other]);
    }

    #[test]
    fn process_that_made_itself_its_own_child_is_left_out() {
        let origin = Origin { parent: vm(1), number: 1 };
        assert!(trees(&[LivingChild { vm: vm(1), origin }], &|_| None).is_empty());
    }
}
