//! Pools hold their memory on the nodes that their policy names, whatever regions do with it.

use std::hint;

use hugekit::pool::{Backing, NodePolicy};
use hugekit::{Pool, PoolError, Region, Threads};
use hugekit_machine::{Root, hugepages};
use rustix::param::page_size;

use crate::backings::{Check, builder, is_zero};
use crate::placed::{holders, ids, nodes, on};
use hugekit_testing::trials::skip;

/// As many for each of two, three, four or six nodes.
pub(crate) const FOLIOS: usize = 12;

/// What a policy asks for: each folio from one of some nodes, or from one node after the other.
#[derive(Debug)]
enum Asked {
    From(u32),
    InTurn(Vec<u32>),
}

/// Every policy as it is asked for by a thread on a node.
fn policies(here: u32) -> Vec<(NodePolicy, Asked)> {
    let mut policies = vec![
        (NodePolicy::Process, Asked::From(here)),
        (NodePolicy::Local, Asked::From(here)),
        (NodePolicy::Interleave(ids()), Asked::InTurn(ids())),
    ];
    for id in ids() {
        policies.push((NodePolicy::Bind(vec![id]), Asked::From(id)));
        policies.push((NodePolicy::Preferred(id), Asked::From(id)));
    }
    policies
}

/// By folio of the region, the node that holds all of it. The kernel is asked about addresses, so all is read first: a
/// region may have pages that are not in its own mapping yet.
fn nodes_of_folios(region: &Region) -> Vec<u32> {
    region.iter().step_by(page_size()).for_each(|byte| _ = hint::black_box(*byte));
    let holders = holders(&raw const region[..]);
    let pages = holders.len() / (region.len() / region.pool().page_size());
    let sole = |folio: &[Option<u32>]| {
        assert!(folio.iter().all(|holder| *holder == folio[0]), "{folio:?}");
        folio[0].expect("a region's pages are there")
    };
    holders.chunks(pages).map(sole).collect()
}

fn check(region: &Region, asked: &Asked, when: &str) {
    let found = nodes_of_folios(region);
    let is_as_asked = match asked {
        Asked::From(node) => found.iter().all(|on| on == node),
        Asked::InTurn(nodes) => {
            let after = |node: &u32| {
                nodes[(nodes.iter().position(|of| of == node).unwrap() + 1) % nodes.len()]
            };
            found.windows(2).all(|two| two[1] == after(&two[0]))
        }
    };
    assert!(is_as_asked, "{when}: asked for {asked:?}, found {found:?}");
}

fn whole(pool: &Pool) -> Region {
    let region = pool.region(pool.capacity()).unwrap();
    assert!(is_zero(&region));
    region
}

/// However its folios come to be populated: with the pool, by threads, when a region is allocated, again after they
/// were given back to the kernel.
fn region_of_any_policy_is_where_it_says(backing: Backing) {
    for here in nodes() {
        for (policy, asked) in policies(here.id) {
            on(here, || {
                for populated in [true, false] {
                    let builder = builder(backing, FOLIOS).nodes(policy.clone()).scrub_threads(0);
                    let pool = builder.populate_on_allocation(!populated).build().unwrap();
                    let what = format!("{policy:?}, populated: {populated}");
                    check(&whole(&pool), &asked, &what);
                    let mut soiled = whole(&pool);
                    soiled.fill(0xd1);
                    drop(soiled);
                    check(&whole(&pool), &asked, &format!("{what}, used again"));
                    whole(&pool).retire().unwrap();
                    check(&whole(&pool), &asked, &format!("{what}, retired"));
                }
            });
        }
    }
}

/// Threads that help are where the memory is to be: what they populate is where the calling thread would have put it.
fn pool_populated_by_threads_is_where_it_says(backing: Backing) {
    let threads = Threads::Exactly(nodes().iter().map(|node| node.cpus.len()).sum());
    for (policy, asked) in policies(ids()[0]) {
        if matches!(policy, NodePolicy::Process | NodePolicy::Local) {
            continue; // Wherever the scheduler moves the calling thread meanwhile.
        }
        let builder = builder(backing, FOLIOS).nodes(policy.clone()).scrub_threads(0);
        let pool = builder.populate_on_allocation(false).threads(threads).build().unwrap();
        check(&whole(&pool), &asked, &format!("{policy:?}, by threads"));
    }
}

/// What forks write comes from the pool, and is where the pool's policy says.
fn fork_of_a_bound_region_is_where_it_is(backing: Backing) {
    for node in ids() {
        let pool = builder(backing, FOLIOS).nodes(NodePolicy::Bind(vec![node])).build().unwrap();
        let mut parent = pool.region(FOLIOS / 3 * pool.page_size()).unwrap();
        parent.fill(7);
        let mut fork = parent.fork().unwrap();
        fork.fill(9);
        parent[..pool.page_size()].fill(8);
        for region in [&parent, &fork] {
            check(region, &Asked::From(node), "forked");
        }
        assert!(
            fork.iter().all(|&byte| byte == 9)
                && parent[pool.page_size()..].iter().all(|&byte| byte == 7)
        );
    }
}

/// A node that has too few reserved pages is an error, although others have some.
fn pool_bound_to_a_node_without_enough_is_refused(backing: Backing) {
    if !backing.is_reserved() {
        return; // Of ordinary memory, want is the kernel's business, which ends processes.
    }
    let reserved = hugepages::read_size(&Root::default(), backing.page_size() as u64).unwrap();
    if reserved.may_grow_by() > 0 {
        skip("the kernel may add pages (nr_overcommit_hugepages)");
    }
    for on_node in reserved.nodes.iter().filter(|on_node| ids().contains(&on_node.node)) {
        let one_more = on_node.free as usize + 1;
        if one_more as u64 > reserved.unpromised() {
            continue; // Nor have all nodes together.
        }
        let bound = builder(backing, one_more).nodes(NodePolicy::Bind(vec![on_node.node]));
        let refused = bound.populate_on_allocation(false).build();
        assert!(matches!(refused, Err(PoolError::Populate(_))), "{refused:?}");
        let preferred = builder(backing, one_more).nodes(NodePolicy::Preferred(on_node.node));
        let pool = preferred.populate_on_allocation(false).build().unwrap();
        let others =
            nodes_of_folios(&whole(&pool)).into_iter().filter(|node| *node != on_node.node);
        assert_eq!(others.count(), 1);
    }
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    region_of_any_policy_is_where_it_says,
    pool_populated_by_threads_is_where_it_says,
    fork_of_a_bound_region_is_where_it_is,
    pool_bound_to_a_node_without_enough_is_refused,
];
