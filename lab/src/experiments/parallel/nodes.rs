//! Clears of memory on the caller's node, on the farthest one, and on all nodes in turn: with a map of the nodes,
//! as the library clears, and without. With the map, helpers run on the node that holds their memory.

#![allow(unsafe_code)]

use std::convert::Infallible;
use std::time::Instant;

use crate::measure::LabError;
use crate::measure::machine::cpus;
use crate::measure::part::{Part, Rounds};
use crate::record::Unit;
use hugekit::pool::{Backing, NodePolicy};
use hugekit::{ClearOptions, Profile, Region, Threads};
use hugekit_bulk::arch::{ClearRoutine, clear_routine};
use hugekit_bulk::parallel::{Bytes, Job};
use hugekit_machine::limits::Allowed;
use hugekit_machine::size::{GIB, MIB, Size};
use hugekit_machine::{Node, Root, Topology};
use rustix::thread::CpuSet;

use crate::experiments::Bench;
use crate::experiments::memory_sources::unscrubbed;

/// The least that each clear is of: a smaller one is not worth a job.
const LEAST: usize = 16 * MIB;

/// Nodes with memory and CPUs that this process may use both of: two at least.
#[derive(Debug)]
struct Nodes {
    local: Node,
    /// The farthest one from the local node.
    remote: Node,
    all: Vec<Node>,
}

/// The node of the memory, seen from the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryPlacement {
    Local,
    Remote,
    Interleaved,
}

/// `On` if a job knows the node of each part of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Map {
    On,
    Off,
}

impl Nodes {
    fn of(root: &Root) -> Option<Self> {
        Self::among(Topology::read(root).ok()?, &Allowed::read(root).ok()?)
    }

    fn among(topology: Topology, allowed: &Allowed) -> Option<Self> {
        let usable = topology.nodes.into_iter().enumerate().filter_map(|(at, node)| {
            let cpus = node.cpus.intersection(&allowed.cpus);
            let has_memory = node.memory_total > 0 && allowed.nodes.contains(node.id);
            (has_memory && !cpus.is_empty()).then_some((at, Node { cpus, ..node }))
        });
        let usable: Vec<(usize, Node)> = usable.collect();
        let ((_, local), others) = usable.split_first()?;
        let distance = |(at, _): &&(usize, Node)| local.distances.get(*at);
        let (_, remote) = others.iter().max_by_key(distance)?;
        let (local, remote) = (local.clone(), remote.clone());
        Some(Self { local, remote, all: usable.into_iter().map(|(_, node)| node).collect() })
    }

    fn policy(&self, place: MemoryPlacement) -> NodePolicy {
        match place {
            MemoryPlacement::Local => NodePolicy::Bind(vec![self.local.id]),
            MemoryPlacement::Remote => NodePolicy::Bind(vec![self.remote.id]),
            MemoryPlacement::Interleaved => {
                NodePolicy::Interleave(self.all.iter().map(|node| node.id).collect())
            }
        }
    }

    /// Bytes of each place: the local node has its own and a part of those in turn.
    fn share(&self, memory: usize) -> usize {
        let free = self.all.iter().map(|node| node.memory_free as usize).min().unwrap_or(0);
        (memory / 4).min(free / 4).min(GIB) / (2 * MIB) * (2 * MIB)
    }

    /// The number of CPUs of the local node, so that no thread must leave it.
    fn threads(&self) -> usize {
        self.local.cpus.len().max(2)
    }

    /// Memory of a place, all of it there.
    fn region(&self, place: MemoryPlacement, bytes: usize) -> Result<Region, LabError> {
        let pool = unscrubbed(bytes).backing(Backing::Thp).nodes(self.policy(place)).build()?;
        Ok(pool.region(bytes)?)
    }

    /// Has this thread run on the local node now, and leaves it all CPUs for its helpers.
    fn go_local(&self) -> Result<(), LabError> {
        let allowed = cpus::allowed()?;
        let mut local = CpuSet::new();
        self.local.cpus.iter().for_each(|cpu| local.set(cpu as usize));
        cpus::run_on(&local)?;
        cpus::run_on(&allowed)
    }
}

impl MemoryPlacement {
    const ALL: [Self; 3] = [Self::Local, Self::Remote, Self::Interleaved];

    const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
            Self::Interleaved => "interleaved",
        }
    }
}

impl Map {
    const ALL: [Self; 2] = [Self::On, Self::Off];

    fn case(self, place: MemoryPlacement, threads: usize) -> String {
        let off = if self == Self::Off { "-without-map" } else { "" };
        format!("clear-{}{off}/{threads}", place.name())
    }

    /// Both by the same routine, in chunks of as many bytes at least.
    fn clear(self, bytes: &mut [u8], threads: usize) {
        let threads = Threads::Exactly(threads);
        let name = ClearOptions::new().chosen_for(bytes.len()).routine;
        let routine = clear_routine(name).expect("it was chosen of these");
        match self {
            Self::On => {
                let clear = ClearOptions::new().threads(threads).routine(routine);
                clear.run(bytes).expect("there are threads and no target");
            }
            Self::Off => without_map(bytes, threads, routine),
        }
    }
}

fn without_map(bytes: &mut [u8], threads: Threads, routine: &'static ClearRoutine) {
    let (memory, len) = (Bytes(bytes.as_mut_ptr()), bytes.len());
    let job = Job::new(len).min_chunk(Profile::current().min_chunk).address(memory.0.addr());
    let cleared = job.threads(threads).run(|chunk| {
        // SAFETY: chunks are disjoint parts of `bytes`, which is borrowed mutably, and the routine was chosen for this
        // CPU.
        unsafe { routine.run(memory.at(chunk.start), chunk.len()) }.publish();
        Ok::<(), Infallible>(())
    });
    cleared.expect("there are threads, and no chunk fails");
}

pub(super) fn measure(bench: &mut Bench<'_>) -> Result<Part, LabError> {
    let left_out =
        |why: &str| Part::notice(format!("clear-local, clear-remote, … left out: {why}"));
    let nodes = || Nodes::of(&Root::default());
    let one = "they need two nodes with memory, and with CPUs that this process may use";
    if nodes().is_none() {
        return Ok(left_out(one));
    }
    let memory = bench.leave_memory()?;
    // Again, because the memory that was left is free now.
    let Some(nodes) = nodes() else { return Ok(left_out(one)) };
    let bytes = nodes.share(memory);
    if bytes < LEAST {
        let (has, least) = (Size(bytes), Size(LEAST));
        return Ok(left_out(&format!("{has} of a node may be used, {least} are needed")));
    }
    nodes.measure(bytes, bench.rounds(0.2, 60))
}

impl Nodes {
    fn measure(&self, bytes: usize, rounds: Rounds<'_>) -> Result<Part, LabError> {
        rounds.observer.begin(&format!("parallel nodes {}", Size(bytes)));
        let threads = self.threads();
        let mut memory = Vec::new();
        for place in MemoryPlacement::ALL {
            memory.push(self.region(place, bytes)?);
        }
        let cases: Vec<_> =
            MemoryPlacement::ALL.into_iter().flat_map(|at| Map::ALL.map(|map| (at, map))).collect();
        let names: Vec<_> = cases.iter().map(|&(place, map)| map.case(place, threads)).collect();
        let mut part = rounds.measure("parallel", Unit::GibPerSecond, &names, |index| {
            let memory = &mut memory[index / Map::ALL.len()];
            self.go_local()?;
            let start = Instant::now();
            cases[index].1.clear(memory, threads);
            Ok(bytes as f64 / GIB as f64 / start.elapsed().as_secs_f64())
        })?;
        compare(&mut part, threads);
        part.notices.push(format!(
            "clear-local is of node {}, clear-remote of node {}: {} each",
            self.local.id,
            self.remote.id,
            Size(bytes)
        ));
        Ok(part)
    }
}

/// Each place without the map and with it, and the places with each other.
fn compare(part: &mut Part, threads: usize) {
    for place in MemoryPlacement::ALL {
        let (on, off) = (Map::On.case(place, threads), Map::Off.case(place, threads));
        part.ratio(
            &format!("without-map-vs-map/clear-{}/{threads}", place.name()),
            (&off, &on),
            None,
        );
    }
    let local = Map::On.case(MemoryPlacement::Local, threads);
    for place in [MemoryPlacement::Remote, MemoryPlacement::Interleaved] {
        let id = format!("local-vs-{}/clear/{threads}", place.name());
        let moved = "the memory of other nodes";
        part.ratio(&id, (&local, &Map::On.case(place, threads)), Some(moved));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;
    use crate::measure::sampler::Plan;

    /// A node with a CPU of the same number and 1 GiB.
    fn node(id: u32, distances: &[u32]) -> Node {
        let (cpus, distances) = ([id].into_iter().collect(), distances.to_vec());
        Node { id, cpus, memory_total: GIB as u64, memory_free: GIB as u64, distances }
    }

    #[test]
    fn nodes_are_two_at_least_and_the_farthest_that_may_be_used_is_remote() {
        let mut cpus_only = node(4, &[]);
        cpus_only.memory_total = 0;
        let nodes = vec![
            node(0, &[10, 20, 40, 30, 90]),
            node(1, &[]),
            node(2, &[]),
            node(3, &[]),
            cpus_only,
        ];
        let topology = Topology { online: (0..5).collect(), nodes };
        let among = |cpus: &[u32], nodes: &[u32]| {
            let set = |ids: &[u32]| ids.iter().copied().collect();
            let allowed = Allowed { cpus: set(cpus), nodes: set(nodes) };
            let nodes = Nodes::among(topology.clone(), &allowed)?;
            Some((nodes.local.id, nodes.remote.id, nodes.all.len()))
        };
        assert_eq!(among(&[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4]), Some((0, 2, 4)));
        assert_eq!(among(&[0, 1, 3], &[0, 1, 2, 3]), Some((0, 3, 3)));
        assert_eq!(among(&[0, 1, 2, 3], &[2]), None);
        assert_eq!(among(&[1], &[0, 1, 2, 3]), None);
        assert_eq!(among(&[], &[]), None);
    }

    #[test]
    fn all_places_together_leave_each_node_half_of_its_free_memory() {
        let all = vec![node(0, &[10, 20]), node(1, &[20, 10])];
        let nodes = Nodes { local: all[0].clone(), remote: all[1].clone(), all };
        assert_eq!(nodes.share(GIB), GIB / 4);
        assert_eq!(nodes.share(8 * GIB), GIB / 4);
        assert_eq!(nodes.share(16 * MIB + 4096), 4 * MIB);
    }

    #[test]
    fn clears_with_and_without_a_map_clear_all() {
        for map in Map::ALL {
            let mut bytes = vec![7; 8 * MIB + 10];
            map.clear(&mut bytes, 2);
            assert!(bytes.iter().all(|&byte| byte == 0), "{map:?}");
        }
    }

    /// This machine's node stands for all, so it runs on any machine.
    #[test]
    fn every_place_is_measured_and_compared() {
        let topology = Topology::read(&Root::default()).unwrap();
        let with_memory = |node: &Node| node.memory_total > 0 && !node.cpus.is_empty();
        let node = topology.nodes.into_iter().find(with_memory).unwrap();
        let nodes = Nodes { local: node.clone(), remote: node.clone(), all: vec![node] };
        let threads = nodes.threads();
        let rounds = Rounds { plan: Plan::exactly(2), observer: &Quiet };
        let part = nodes.measure(4 * MIB, rounds).unwrap();
        assert_eq!((part.cases.len(), part.failures.len()), (6, 0), "{:?}", part.failures);
        let ratios: Vec<_> =
            part.ratios.iter().map(|ratio| (ratio.id.as_str(), ratio.like_for_like)).collect();
        let expected = [
            (format!("parallel/without-map-vs-map/clear-local/{threads}"), true),
            (format!("parallel/without-map-vs-map/clear-remote/{threads}"), true),
            (format!("parallel/without-map-vs-map/clear-interleaved/{threads}"), true),
            (format!("parallel/local-vs-remote/clear/{threads}"), false),
            (format!("parallel/local-vs-interleaved/clear/{threads}"), false),
        ];
        let expected: Vec<_> = expected.iter().map(|(id, like)| (id.as_str(), *like)).collect();
        assert_eq!(ratios, expected);
    }
}
