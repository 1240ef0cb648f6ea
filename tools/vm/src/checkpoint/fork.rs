//! One fork, from its start to its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::checkpoint::children::{Child, Children};
use crate::checkpoint::fork_error::ForkError;
use crate::checkpoint::fork_report::{ChildReport, ForkReport};
use crate::checkpoint::growing::{ChildNews, Grown};
use crate::checkpoint::guard::{Guard, LeftOvers, MOST_STARTED};
use crate::checkpoint::handover::PlannedHandover;
use crate::checkpoint::nursery::{Nursery, Parent};
use crate::checkpoint::once::collapse;
use crate::checkpoint::options::{ChildOptions, ForkOptions, RunningVm};
use crate::checkpoint::preserved::Preserved;
use crate::checkpoint::report::ms;
use crate::checkpoint::room::PlannedRoom;
use crate::checkpoint::saving::{Saved, Saving};
use crate::checkpoint::shortage;
use crate::checkpoint::starting_line::StartingLine;
use crate::checkpoint::tracked_vm::{Afterwards, TrackedVm};
use crate::checkpoint::vm::Vm;
use crate::devices::{self, Host, NewDisks};
use crate::pager::handler::Handler;
use crate::vmm::{Arriving, LoadMemory};

/// The complete children of a running VM.
#[derive(Debug)]
#[non_exhaustive]
pub struct Forked {
    /// The started programs, in the order of the options. They continue to run when this value is
    /// dropped.
    pub programs: Vec<std::process::Child>,
    /// The costs of the fork.
    pub report: ForkReport,
}

/// Starts children from a running VM, which is paused for a moment. Returns when all children have
/// all of their memory. The children are then independent of this process and of their parent.
///
/// # Errors
/// [`ForkError`] if the VM cannot be saved, or if a child cannot be started or restored. All
/// children have ended then, and the VM continues to run if it ran before.
pub fn fork(options: &ForkOptions) -> Result<Forked, ForkError> {
    let started = Instant::now();
    let count = options.children.len();
    if !(1..=MOST_STARTED).contains(&count) {
        return Err(ForkError::Count(count));
    }
    let RunningVm { collapse: should_collapse, .. } = options.vm;
    let control = &*options.vm.control();
    let pid = options.vm.pid(control)?;
    let is_running = control.is_running()?;
    let vm = Vm::find(pid, control)?;
    shortage::check(&vm, count)?;
    check_all(&options.children)?;
    let devices = control.devices()?;
    let owner = Host::of("the VM".to_owned(), pid)?;
    let disks = NewDisks::make(options.children.iter().map(|child| &child.own))?;
    let in_pause = disks.of_vm(&devices, |disk| owner.file_in_use(disk))?;
    let room = PlannedRoom::new()?;
    let handover = PlannedHandover::of(&vm.process)?;
    // Also the sockets that the children make, and their disks.
    let files = options.children.iter().flat_map(ChildOptions::sockets).chain(disks.paths());
    let left_overs = LeftOvers::new(&handover, room.left_over());
    let left_overs = left_overs.and_then(|left_overs| left_overs.and_files(files));
    let guard = Guard::start(Some((&vm, control)), left_overs)?;
    let handover = handover.make()?;
    let room = room.make()?;
    let mut children = Children::start(&options.children, Some(vm.pid()), &guard)?;
    let collapsed = collapse(&vm, should_collapse)?;
    let preserved = Arc::new(Preserved::new(&vm)?);
    preserved.await_children(count);
    let arriving = Arc::clone(&preserved) as Arc<dyn Arriving>;
    let nursery = Nursery::new(Handler::of_arriving(arriving)?, &room);
    children.await_apis()?;
    let hosts = children.hosts()?;
    let own = options.children.iter().map(|child| &child.own);
    devices::check(&devices, Some(&owner), own.zip(&hosts))?;
    let line = StartingLine::new(&hosts, &disks, options.resume);
    if disks.is_empty() {
        line.prepared();
    }
    let parent = Moment { preserved: &preserved, line: &line };
    let bytes = vm.bytes();
    let mut tracked = TrackedVm::new(vm, Afterwards::Released);
    let saving = Saving::new(&mut tracked, control, &*preserved, &guard, &handover, is_running);
    let saving = saving.with_disks(&in_pause);
    let (saved, grown) = nursery.raise(&children, &parent, || Ok(saving.save()?))?;
    let children_report = children_of(&children, &grown, started);
    let report = report(&saved, bytes, collapsed, children_report, started);
    disks.keep();
    Ok(Forked { programs: children.keep(), report })
}

/// The moment of a running VM, which is saved in memory.
struct Moment<'a> {
    preserved: &'a Preserved,
    line: &'a StartingLine<'a>,
}

impl Parent for Moment<'_> {
    fn restore(&self, child: &Child<'_>, memory: LoadMemory<'_>) -> Option<ChildNews> {
        let state = self.preserved.await_state()?;
        let prepare = |_: &Child<'_>| Ok(self.line.disks().fill_others()?);
        let news = self.line.start(child, state, memory, prepare)?;
        self.preserved.restored();
        Some(news)
    }

    fn give_up(&self) {
        self.preserved.fail();
        self.line.fail();
    }
}

fn report(
    saved: &Saved,
    memory_bytes: u64,
    (collapsed_bytes, collapse): (u64, Duration),
    children: Vec<ChildReport>,
    started: Instant,
) -> ForkReport {
    ForkReport {
        way: saved.way,
        paused_ms: ms(saved.pause),
        protect_ms: ms(saved.protect),
        collapse_ms: ms(collapse),
        collapsed_bytes,
        restored_ms: children.iter().map(|child| child.restored_ms).fold(0.0, f64::max),
        complete_ms: ms(started.elapsed()),
        memory_bytes,
        copied_bytes: saved.progress.copied,
        faults: saved.progress.faults,
        longest_fault_ms: ms(saved.progress.longest_fault),
        children,
    }
}

/// Checks the options before a process is started.
pub(crate) fn check_all(children: &[ChildOptions]) -> Result<(), ForkError> {
    children.iter().zip(1..).try_for_each(|(child, number)| child.check(number))
}

pub(crate) fn children_of(
    children: &Children<'_>,
    grown: &[Grown],
    started: Instant,
) -> Vec<ChildReport> {
    let report = |(child, grown): (&Child<'_>, &Grown)| ChildReport {
        number: child.number,
        pid: child.vmm,
        api: child.options.api.clone(),
        restored_ms: ms(grown.restored.saturating_duration_since(started)),
        faults: grown.completed.map_or(0, |done| done.faults),
        copied_bytes: grown.completed.map_or(0, |done| done.copied),
        huge_bytes: grown.completed.map_or(0, |done| done.collapsed),
    };
    children.all().iter().zip(grown).map(report).collect()
}
