//! Children of a running guest until the last one answers: by a fork, and by a stock snapshot and as
//! many restores. The children's VMMs start while the guest is saved.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{ScopedJoinHandle, scope, sleep};
use std::time::{Duration, Instant};

use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::forked_vm::child;
use crate::measure::workloads::micro_vm::{MicroVm, failed};
use crate::measure::{LabError, Observer};
use crate::record::Unit;
use hugekit_guests::{Firecracker, Request, Serial, Snapshot};
use hugekit_machine::size::Size;
use hugekit_vm::checkpoint::{ForkOptions, Forked, RunningVm, fork};

use super::guest::{Guest, GuestPages, GuestSnapshots};
use super::save::{Files, stock_in_pause};
use super::ways::Storage;

/// The numbers of children to make, as far as the available memory allows.
#[derive(Clone, Copy)]
pub(super) struct ChildCounts<'a> {
    pub(super) counts: &'a [usize],
    pub(super) available: usize,
}

/// A guest that was saved at the moment of serial output cannot be restored on a machine without
/// hardware virtualization beneath KVM.
const QUIET: Duration = Duration::from_millis(300);

/// The longest wait for an answer, and the time between two checks that the fork has not failed.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(100);

/// This many children, made by a fork, or by a stock snapshot at this place.
struct ForkWay {
    stock: Option<Storage>,
    count: usize,
}

/// From the start of the children's VMMs until the last child answered, and the pause of the guest.
#[derive(Clone, Copy, Debug)]
struct Born {
    answered: Duration,
    paused: Duration,
}

pub(super) fn measure(
    snapshots: &GuestSnapshots,
    counts: ChildCounts<'_>,
    rounds: Rounds<'_>,
) -> Result<Part, LabError> {
    rounds.observer.begin("checkpoint: children");
    let mut parents = Parents::start(snapshots, rounds.observer)?;
    let (ways, left_out) = ways(snapshots, counts);
    let names: Vec<String> = ways.iter().map(|way| way.case("answered", snapshots)).collect();
    let measured = rounds.measure_with("checkpoint", Unit::Microseconds, &names, |index| {
        let born = parents.bear(&ways[index], snapshots)?;
        Ok((born.answered.as_secs_f64() * 1e6, born))
    });
    let (mut part, born) = measured?;
    for (way, born) in ways.iter().zip(&born) {
        let paused = born.iter().map(|born| born.paused.as_secs_f64() * 1e6).collect();
        part.add_case(&way.case("paused", snapshots), Unit::Microseconds, paused);
    }
    compare(snapshots, counts.counts, &mut part);
    part.notices.extend(left_out);
    Ok(part)
}

/// The ways that fit, and a notice about the others: each child has a copy of the guest's data.
fn ways(
    snapshots: &GuestSnapshots,
    ChildCounts { counts, available }: ChildCounts<'_>,
) -> (Vec<ForkWay>, Option<String>) {
    let room = available / 4 * 3 / snapshots.len();
    // The memory that children are copied from counts, too.
    let (fit, too_many): (Vec<usize>, Vec<usize>) = counts.iter().partition(|&&count| count < room);
    let tmpfs = snapshots.folders.tmpfs.as_ref().map(|_| Some(Storage::Tmpfs));
    let stock: Vec<_> = [None, Some(Storage::Disk)].into_iter().chain(tmpfs).collect();
    let of = |&count: &usize| stock.iter().map(move |&stock| ForkWay { stock, count });
    let notice = too_many.first().map(|count| {
        let needed = Size((count + 1) * snapshots.len() / 3 * 4);
        format!("{count} children left out: {needed} of available memory are needed")
    });
    (fit.iter().flat_map(of).collect(), notice)
}

impl ForkWay {
    fn case(&self, what: &str, snapshots: &GuestSnapshots) -> String {
        format!("{}/{what}-{}-children", method(self.stock, snapshots), self.count)
    }
}

fn method(stock: Option<Storage>, snapshots: &GuestSnapshots) -> String {
    match stock {
        None => "fork".to_owned(),
        Some(Storage::Tmpfs) => "stock-restores-tmpfs".to_owned(),
        Some(Storage::Disk) => format!("stock-restores-{}", snapshots.folders.disk_name()),
    }
}

/// A parent for forks, and a parent for stock snapshots, which leave pages of zeroes behind.
struct Parents<'a> {
    forked: Guest<'a>,
    saved: Guest<'a>,
}

impl<'a> Parents<'a> {
    fn start(snapshots: &'a GuestSnapshots, observer: &'a dyn Observer) -> Result<Self, LabError> {
        let [forked, saved] = [GuestPages::Thp, GuestPages::Stock]
            .map(|kind| Guest::start(kind, snapshots, observer));
        Ok(Self { forked: forked?, saved: saved? })
    }

    /// The parent runs while its children are made, and is paused afterwards.
    fn bear(&mut self, way: &ForkWay, snapshots: &GuestSnapshots) -> Result<Born, LabError> {
        let guest = if way.stock.is_none() { &self.forked } else { &self.saved };
        guest.vm.resume()?;
        sleep(QUIET);
        let folder =
            tempfile::tempdir_in(snapshots.folders.sockets.path()).map_err(LabError::Saved)?;
        let born = match way.stock {
            None => by_fork(&guest.vm, folder.path(), way.count),
            Some(place) => {
                let files = Files::at(place, snapshots)?;
                by_restores(&guest.vm, folder.path(), &Snapshot::in_folder(files.path()), way.count)
            }
        };
        guest.vm.pause()?;
        born
    }
}

fn by_fork(vm: &MicroVm<'_>, folder: &Path, count: usize) -> Result<Born, LabError> {
    let children = (0..count).map(|number| child(folder, &number.to_string()));
    let children: io::Result<Vec<_>> = children.collect();
    let (children, serials): (Vec<_>, Vec<_>) = children.map_err(failed)?.into_iter().unzip();
    let (since, has_failed) = (Instant::now(), &AtomicBool::new(false));
    scope(|scope| {
        let await_answer = |serial| scope.spawn(move || answered(serial, since, has_failed));
        let answers: Vec<_> = serials.into_iter().map(await_answer).collect();
        let forked = vm.watched(|vmm| {
            let vm = RunningVm::new(vmm.api().to_owned());
            Ok(Family(fork(&ForkOptions::new(vm, children))?))
        });
        let forked = forked.inspect_err(|_| has_failed.store(true, Ordering::Relaxed))?;
        let answered = last(answers);
        let paused = Duration::from_secs_f64(forked.0.report.paused_ms / 1e3);
        drop(forked);
        Ok(Born { answered: answered?, paused })
    })
}

/// Children, which end when this is dropped: also if the fork was complete when the user ended the
/// lab.
struct Family(Forked);

impl Drop for Family {
    fn drop(&mut self) {
        for program in &mut self.0.programs {
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

/// The request waits in the pipe until the child runs.
fn answered(mut serial: Serial, since: Instant, has_failed: &AtomicBool) -> io::Result<Duration> {
    serial.send(Request::Reply)?;
    loop {
        match serial.answer_within(LOOK) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                if has_failed.load(Ordering::Relaxed) || since.elapsed() > PATIENCE {
                    return Err(error);
                }
            }
            answer => return answer.map(|_| since.elapsed()),
        }
    }
}

fn by_restores(
    vm: &MicroVm<'_>,
    folder: &Path,
    to: &Snapshot,
    count: usize,
) -> Result<Born, LabError> {
    let since = Instant::now();
    let children = (0..count).map(|number| MicroVm::spawn(folder, &number.to_string()));
    let mut children = children.collect::<Result<Vec<_>, _>>()?;
    let paused = vm.watched(|vmm| {
        let since = Instant::now();
        stock_in_pause(vmm, "Full", to).map_err(failed)?;
        Ok(since.elapsed())
    })?;
    let answered = scope(|scope| {
        let restore = |child| scope.spawn(move || restored(child, to, since));
        last(children.iter_mut().map(restore).collect())
    });
    Ok(Born { answered: answered?, paused })
}

fn restored(child: &mut Firecracker, from: &Snapshot, since: Instant) -> io::Result<Duration> {
    child.await_api()?;
    child.load_by_file(from, &from.memory, true)?;
    child.serial.ask_within(Request::Reply, PATIENCE)?;
    Ok(since.elapsed())
}

type Answer<'scope> = ScopedJoinHandle<'scope, io::Result<Duration>>;

fn last(answers: Vec<Answer<'_>>) -> Result<Duration, LabError> {
    let times = answers.into_iter().map(|answer| answer.join().expect("no panic"));
    let times = times.collect::<io::Result<Vec<_>>>().map_err(failed)?;
    Ok(times.into_iter().max().unwrap_or_default())
}

fn compare(snapshots: &GuestSnapshots, counts: &[usize], part: &mut Part) {
    for place in [Storage::Tmpfs, Storage::Disk] {
        let stock = method(Some(place), snapshots);
        for what in ["answered", "paused"] {
            for count in counts {
                part.compare((&stock, "fork"), &format!("{what}-{count}-children"), None);
            }
        }
    }
}
