//! Many guests that are restored from one snapshot: the memory that all of them hold.
//!
//! A page that several of them map counts once (Σ Pss of the VMMs). Half of the guests start first.
//! They only answer, and then read what the original had written. The other half does the same.
//! Then all write to some of the memory and read it again.

use crate::measure::part::Part;
use crate::measure::workloads::micro_vm::MicroVm;
use crate::measure::{LabError, Observer};
use crate::record::{Failure, Unit};
use hugekit_guests::{CLUSTER, Request};
use hugekit_machine::size::{MIB, Size};

use super::saved_guest::SavedGuest;
use super::ways::{FaultServer, RestoreWay};
use crate::experiments::Bench;

/// Clones after the first step and in the end.
type CloneCounts = [usize; 2];

const COUNTS: CloneCounts = [8, 16];
const QUICK_COUNTS: CloneCounts = [2, 4];

/// Percent of the pages that are written, ascending; each has the pages of the one before.
const WRITTEN: [u64; 3] = [1, 10, 50];

/// Rounds by default: memory differs little from round to round.
const ROUNDS: usize = 1;

/// In which order the ways come.
const SEED: u64 = 2018;

/// Clones that are restored in one way, and the MiB that they held in each state, round by round.
struct CloneGroup {
    way: RestoreWay,
    held: Vec<Vec<f64>>,
    has_failed: bool,
}

pub(super) fn measure(saved: &SavedGuest, bench: &Bench<'_>) -> Result<Part, LabError> {
    let observer = bench.observer();
    observer.begin("restore: clones");
    let counts = if bench.options().quick { QUICK_COUNTS } else { COUNTS };
    let mut part = Part::new("restore");
    let mut groups = groups(saved, counts, bench.available_memory()?, &mut part);
    let rounds = bench.options().rounds.unwrap_or(ROUNDS);
    let mut random = fastrand::Rng::with_seed(SEED);
    for round in 0..rounds {
        random.shuffle(&mut groups);
        for index in 0..groups.len() {
            groups[index].turn(counts, saved, observer, &mut part)?;
            let done = round * groups.len() + index + 1;
            observer.progress(done as f64 / (rounds * groups.len()) as f64);
        }
    }
    groups.sort_by(|one, other| one.way.method.cmp(&other.way.method));
    groups.iter().for_each(|group| group.add_cases(counts, &mut part));
    compare(saved, counts, &mut part);
    part.notices.push(format!(
        "clones wrote one word of each page in clusters of {}, at equal distances, of what the \
         original had written",
        Size(CLUSTER as usize)
    ));
    Ok(part)
}

/// The groups that fit, and a notice for each other one.
fn groups(
    saved: &SavedGuest,
    counts: CloneCounts,
    available: usize,
    part: &mut Part,
) -> Vec<CloneGroup> {
    let mut groups = Vec::new();
    for way in RestoreWay::of_clones(saved) {
        match lack(&way, counts, saved, available) {
            Some(reason) => part.notices.push(reason),
            None => groups.push(CloneGroup { way, held: Vec::new(), has_failed: false }),
        }
    }
    groups
}

impl CloneGroup {
    /// Measures once, unless it failed before; the others go on.
    fn turn(
        &mut self,
        counts: CloneCounts,
        saved: &SavedGuest,
        observer: &dyn Observer,
        part: &mut Part,
    ) -> Result<(), LabError> {
        if self.has_failed {
            return Ok(());
        }
        let clones = Clones::new(&self.way, saved, observer);
        match clones.and_then(|mut clones| clones.all(counts)) {
            Ok(held) => self.held.push(held),
            Err(error @ LabError::Interrupted(_)) => return Err(error),
            Err(error) => {
                self.has_failed = true;
                let case = format!("restore/{}/pss-clones", self.way.method);
                part.failures.push(Failure::of(&case, &error));
            }
        }
        Ok(())
    }

    fn add_cases(&self, counts: CloneCounts, part: &mut Part) {
        for (index, state) in states(counts).iter().enumerate() {
            let held = self.held.iter().map(|states| states[index]).collect();
            part.add_case(&format!("{}/{state}", self.way.method), Unit::Mebibytes, held);
        }
    }
}

/// The reason why these clones do not fit, if so. Each may get a copy of all written pages.
fn lack(
    way: &RestoreWay,
    counts: CloneCounts,
    saved: &SavedGuest,
    available: usize,
) -> Option<String> {
    let (needed, method) = (counts[1] * saved.len(), &way.method);
    (needed > available / 4 * 3).then(|| {
        format!(
            "{method}/pss-{}-clones left out: {} of available memory are needed, {} are there",
            counts[1],
            Size(needed / 3 * 4 / MIB * MIB),
            Size(available / MIB * MIB)
        )
    })
}

/// The states of the guests in their order, as in IDs.
fn states([few, all]: CloneCounts) -> Vec<String> {
    let of = |count: usize, state: &str| format!("pss-{count}-clones{state}");
    let read = [of(few, "-untouched"), of(few, ""), of(all, "")];
    let written = WRITTEN.map(|percent| of(all, &format!("-written-{percent}%")));
    read.into_iter().chain(written).collect()
}

/// Clones that are paused, except while one is asked: a guest that waits for a request uses all of a
/// CPU.
struct Clones<'a> {
    vms: Vec<MicroVm<'a>>,
    /// Ends after the guests.
    server: FaultServer,
    way: &'a RestoreWay,
    saved: &'a SavedGuest,
    observer: &'a dyn Observer,
}

impl<'a> Clones<'a> {
    fn new(
        way: &'a RestoreWay,
        saved: &'a SavedGuest,
        observer: &'a dyn Observer,
    ) -> Result<Self, LabError> {
        Ok(Self { vms: Vec::new(), server: way.serve(saved)?, way, saved, observer })
    }

    /// Restores more, until there are this many, and waits until each has answered.
    fn restore(&mut self, count: usize) -> Result<(), LabError> {
        let before = self.vms.len();
        for number in before..count {
            let name = format!("clone-{number}");
            let folder = self.saved.folders.sockets.path();
            let mut vm = MicroVm::start(folder, &name, self.observer)?;
            self.way.restore(&vm, &self.server, self.observer)?;
            vm.ask(Request::Reply)?;
            vm.pause()?;
            self.vms.push(vm);
        }
        if let FaultServer::Pager(pager) = &self.server {
            (before..count).try_for_each(|_| pager.until_complete(self.observer))?;
        }
        Ok(())
    }

    /// MiB that all hold in each of the states.
    fn all(&mut self, [few, all]: CloneCounts) -> Result<Vec<f64>, LabError> {
        self.restore(few)?;
        let mut held = vec![self.held()?];
        self.ask(0, self.saved.touch())?;
        held.push(self.held()?);
        self.restore(all)?;
        self.ask(few, self.saved.touch())?;
        held.push(self.held()?);
        let (start, len) = (self.saved.start(), self.saved.len() as u64);
        for percent in WRITTEN {
            let every = CLUSTER * 100 / percent;
            self.ask(0, Request::Dirty { start, len, every })?;
            // A write takes a huge mapping away, and Pss counts only what is mapped.
            self.ask(0, self.saved.touch())?;
            held.push(self.held()?);
        }
        Ok(held)
    }

    /// Asks one after the other, without those before `first`.
    fn ask(&mut self, first: usize, request: Request) -> Result<(), LabError> {
        self.vms[first..].iter_mut().try_for_each(|vm| {
            vm.resume()?;
            vm.ask(request)?;
            vm.pause()
        })
    }

    fn held(&self) -> Result<f64, LabError> {
        let each: Result<Vec<u64>, _> = self.vms.iter().map(|vm| vm.memory("Pss")).collect();
        Ok(each?.iter().sum::<u64>() as f64 / MIB as f64)
    }
}

impl Drop for Clones<'_> {
    fn drop(&mut self) {
        // All of them release their memory at once.
        self.vms.iter().for_each(MicroVm::kill);
    }
}

fn compare(saved: &SavedGuest, counts: CloneCounts, part: &mut Part) {
    let disk = saved.folders.disk_name();
    for state in states(counts) {
        part.compare(("image", disk), &state, None);
        part.compare((disk, "pager"), &state, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_written_later_include_those_written_before() {
        let distances = WRITTEN.map(|percent| CLUSTER * 100 / percent);
        for pair in distances.windows(2) {
            assert_eq!(pair[0] % pair[1], 0, "{distances:?}");
        }
        assert!(distances.iter().all(|distance| distance % CLUSTER == 0));
    }

    #[test]
    fn each_state_has_a_name() {
        let (named, counts) = (states(COUNTS), COUNTS.len());
        assert_eq!(named.len(), 1 + counts + WRITTEN.len());
        assert_eq!(named[counts], "pss-16-clones");
    }
}
