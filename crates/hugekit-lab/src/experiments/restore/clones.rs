//! Many guests that are restored from one snapshot: the memory that all of them hold.
//!
//! A page that several of them map counts once (Σ Pss of the VMMs). The guests first only answer,
//! then read what the original had written, and then write to some of it and read it again.

use hugekit_guests::{CLUSTER, Request};

use super::origin::Origin;
use super::ways::{Server, Way};
use crate::experiments::Bench;
use crate::measure::part::Part;
use crate::record::{Failure, Unit};
use crate::size::{MIB, Size};
use crate::workloads::micro_vm::MicroVm;
use crate::{LabError, Observer};

const COUNTS: [usize; 2] = [8, 16];
const QUICK_COUNTS: [usize; 2] = [2, 4];

/// Percent of the pages that are written, ascending; each has the pages of the one before.
const WRITTEN: [u64; 3] = [1, 10, 50];

/// Rounds by default: memory differs little from round to round.
const ROUNDS: usize = 1;

/// In which order the ways come.
const SEED: u64 = 2018;

/// This many clones that are restored in one way, and the MiB that they held in each state, round
/// by round.
struct Group {
    way: Way,
    count: usize,
    held: Vec<Vec<f64>>,
    has_failed: bool,
}

pub(super) fn measure(origin: &Origin, bench: &Bench<'_>) -> Result<Part, LabError> {
    let observer = bench.observer();
    observer.begin("restore: clones");
    let counts = if bench.options().quick { QUICK_COUNTS } else { COUNTS };
    let mut part = Part::new("restore");
    let mut groups = groups(origin, counts, bench.available_memory()?, &mut part);
    let rounds = bench.options().rounds.unwrap_or(ROUNDS);
    let mut random = fastrand::Rng::with_seed(SEED);
    for round in 0..rounds {
        random.shuffle(&mut groups);
        for index in 0..groups.len() {
            groups[index].turn(origin, observer, &mut part)?;
            let done = round * groups.len() + index + 1;
            observer.progress(done as f64 / (rounds * groups.len()) as f64);
        }
    }
    groups
        .sort_by(|one, other| (one.count, &one.way.method).cmp(&(other.count, &other.way.method)));
    groups.iter().for_each(|group| group.add_cases(&mut part));
    compare(origin, counts, &mut part);
    part.notices.push(format!(
        "clones wrote one word of each page in clusters of {}, at equal distances, of what the \
         original had written",
        Size(CLUSTER as usize)
    ));
    Ok(part)
}

/// Those that fit; a notice for each other one.
fn groups(origin: &Origin, counts: [usize; 2], available: usize, part: &mut Part) -> Vec<Group> {
    let mut groups = Vec::new();
    for count in counts {
        for way in Way::of_clones(origin) {
            match lack(&way, count, origin, available) {
                Some(reason) => part.notices.push(reason),
                None => groups.push(Group { way, count, held: Vec::new(), has_failed: false }),
            }
        }
    }
    groups
}

impl Group {
    /// Measures once, unless it failed before; the others go on.
    fn turn(
        &mut self,
        origin: &Origin,
        observer: &dyn Observer,
        part: &mut Part,
    ) -> Result<(), LabError> {
        if self.has_failed {
            return Ok(());
        }
        let clones = Clones::start(&self.way, self.count, origin, observer);
        match clones.and_then(|mut clones| clones.all(origin)) {
            Ok(held) => self.held.push(held),
            Err(error @ LabError::Interrupted(_)) => return Err(error),
            Err(error) => {
                self.has_failed = true;
                let case = format!("restore/{}/pss-{}-clones", self.way.method, self.count);
                part.failures.push(Failure::of(&case, &error));
            }
        }
        Ok(())
    }

    fn add_cases(&self, part: &mut Part) {
        for (index, state) in states().enumerate() {
            let held = self.held.iter().map(|states| states[index]).collect();
            let name = format!("{}/pss-{}-clones{state}", self.way.method, self.count);
            part.add_case(&name, Unit::Mebibytes, held);
        }
    }
}

/// Why this many clones do not fit, if so: each may get a copy of all written pages.
fn lack(way: &Way, count: usize, origin: &Origin, available: usize) -> Option<String> {
    let (needed, method) = (count * origin.len(), &way.method);
    (needed > available / 4 * 3).then(|| {
        format!(
            "{method}/pss-{count}-clones left out: {} of available memory are needed, {} are there",
            Size(needed / 3 * 4 / MIB * MIB),
            Size(available / MIB * MIB)
        )
    })
}

/// The states of the guests in their order, as the ends of IDs.
fn states() -> impl Iterator<Item = String> {
    let first = ["-untouched", ""].map(str::to_owned);
    first.into_iter().chain(WRITTEN.map(|percent| format!("-written-{percent}%")))
}

/// Clones that are paused, except while one is asked: a guest that waits for a request uses all of a
/// CPU.
struct Clones<'a> {
    vms: Vec<MicroVm<'a>>,
    /// Ends after the guests.
    _server: Server,
}

impl<'a> Clones<'a> {
    /// Restores this many, and waits until each has answered.
    fn start(
        way: &Way,
        count: usize,
        origin: &Origin,
        observer: &'a dyn Observer,
    ) -> Result<Self, LabError> {
        let server = way.serve(origin)?;
        let mut vms = Vec::new();
        for number in 0..count {
            let name = format!("clone-{number}");
            let mut vm = MicroVm::start(origin.folders.sockets.path(), &name, observer)?;
            way.restore(&vm, &server, observer)?;
            vm.ask(Request::Reply)?;
            vm.pause()?;
            vms.push(vm);
        }
        if let Server::Pager(pager) = &server {
            for _ in &vms {
                pager.until_complete(observer)?;
            }
        }
        Ok(Self { vms, _server: server })
    }

    /// MiB that all hold in each of the states.
    fn all(&mut self, origin: &Origin) -> Result<Vec<f64>, LabError> {
        let mut held = vec![self.held()?];
        self.ask(origin.touch())?;
        held.push(self.held()?);
        for percent in WRITTEN {
            let every = CLUSTER * 100 / percent;
            self.ask(Request::Dirty { start: origin.start(), len: origin.len() as u64, every })?;
            // A write takes a huge mapping away, and Pss counts only what is mapped.
            self.ask(origin.touch())?;
            held.push(self.held()?);
        }
        Ok(held)
    }

    /// Asks one after the other.
    fn ask(&mut self, request: Request) -> Result<(), LabError> {
        self.vms.iter_mut().try_for_each(|vm| {
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

fn compare(origin: &Origin, counts: [usize; 2], part: &mut Part) {
    let disk = origin.folders.disk.as_ref().map_or("disk", |(_, system)| system);
    for count in counts {
        for state in states() {
            let what = format!("pss-{count}-clones{state}");
            part.compare(("image", disk), &what, None);
        }
        part.compare((disk, "pager"), &format!("pss-{count}-clones"), None);
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
        assert_eq!(states().count(), 2 + WRITTEN.len());
    }
}
