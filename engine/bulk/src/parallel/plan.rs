//! Arithmetic of a job: the number of threads, the length of chunks, and the lane at which each
//! thread begins. The rules follow the kernel's proposal of 2017 for gigantic pages.
//!
//! ```text
//! threads = min(⌈length / minimum chunk⌉, limit)
//! chunk   = length / threads / 4, a multiple of the minimum chunk and never below it;
//!           a single thread takes everything
//! ```
//!
//! Four chunks per thread are a compromise. With more chunks, the other threads process more of the
//! chunks of a late thread. With fewer chunks, the cost per chunk counts less. There are three
//! deviations. Chunks end at addresses that are multiples of the minimum chunk, so that two threads
//! share no page. A job that is watched or may be cancelled is divided even for one thread, into
//! chunks of at most [`WATCHED_MOST`]. A job whose helpers run at low priority is divided into
//! minimum chunks, because the caller waits for a helper in the middle of a chunk.

/// Chunks per thread, so that no thread waits long for the last chunk.
const CHUNKS_PER_THREAD: usize = 4;

/// The most bytes of a chunk of a watched job, unless the minimum chunk is longer. A thread
/// finishes its chunk after it was asked to stop. The division costs nothing that can be measured
/// (`docs/decisions/0017-watched-chunks-and-sync.md`).
pub(super) const WATCHED_MOST: usize = 32 << 20;

/// Returns the number of threads for `len` bytes: one for each minimum chunk, within the limit.
pub(super) fn threads(len: usize, min_chunk: usize, limit: usize) -> usize {
    len.div_ceil(min_chunk).min(limit).max(1)
}

/// Returns the number of bytes of a chunk. A single thread whose job is not watched processes all
/// bytes as one chunk.
pub(super) fn chunk(len: usize, threads: usize, min_chunk: usize) -> usize {
    let share = len / threads / CHUNKS_PER_THREAD;
    (share / min_chunk * min_chunk).max(min_chunk)
}

/// Returns the number of bytes of a chunk of a job that is watched.
pub(super) fn watched_chunk(len: usize, threads: usize, min_chunk: usize) -> usize {
    let most = (WATCHED_MOST / min_chunk * min_chunk).max(min_chunk);
    chunk(len, threads, min_chunk).min(most)
}

/// The work of one node, and the CPUs that can help with the work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub(super) bytes: usize,
    /// The node's CPUs without the caller's CPU. 0 if the node only has memory: no helper begins
    /// there.
    pub(super) cpus: usize,
}

/// Returns the lane at which each thread begins. Each thread begins at the lane with the most bytes
/// per thread that still has a CPU. The first thread is the caller, which stays on its node.
pub(super) fn homes(demands: &[Demand], threads: usize, callers: usize) -> Vec<usize> {
    let mut helpers = vec![0; demands.len()];
    let mut homes = Vec::with_capacity(threads);
    homes.push(callers);
    for _ in 1..threads {
        let home = neediest(demands, &helpers, callers);
        helpers[home] += 1;
        homes.push(home);
    }
    homes
}

fn neediest(demands: &[Demand], helpers: &[usize], callers: usize) -> usize {
    let has_room = |&lane: &usize| helpers[lane] < demands[lane].cpus;
    let threads = |lane| helpers[lane] + usize::from(lane == callers);
    let per_thread = |&lane: &usize| demands[lane].bytes / (threads(lane) + 1);
    let lanes = || 0..demands.len();
    // Ties go to the lowest lane: `max_by_key` takes the last of equals.
    let roomy = lanes().rev().filter(has_room).max_by_key(per_thread);
    let staffed = || lanes().rev().filter(|&lane| demands[lane].cpus > 0).max_by_key(per_thread);
    roomy.or_else(staffed).unwrap_or(callers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: usize = 1 << 20;
    const GIB: usize = 1 << 30;

    #[test]
    fn threads_within_the_limit_are_one_for_each_minimum_chunk() {
        assert_eq!(threads(0, MIB, 8), 1);
        assert_eq!(threads(MIB, MIB, 8), 1);
        assert_eq!(threads(MIB + 1, MIB, 8), 2);
        assert_eq!(threads(GIB, MIB, 8), 8);
        assert_eq!(threads(usize::MAX, 1, 1000), 1000);
    }

    #[test]
    fn chunk_of_a_share_is_a_quarter_in_whole_minimum_chunks() {
        assert_eq!(chunk(GIB, 2, 2 * MIB), 128 * MIB);
        assert_eq!(chunk(GIB + 12345, 3, 2 * MIB), 84 * MIB);
        assert_eq!(chunk(8 * MIB, 4, 2 * MIB), 2 * MIB);
        assert_eq!(chunk(50 * GIB, 8, GIB), GIB);
    }

    #[test]
    fn chunk_that_is_watched_is_short_enough_to_stop_soon() {
        assert_eq!(watched_chunk(64 * GIB, 1, 2 * MIB), 32 * MIB);
        assert_eq!(watched_chunk(64 * GIB, 1, 5 * MIB), 30 * MIB);
        assert_eq!(watched_chunk(64 * GIB, 8, GIB), GIB);
        assert_eq!(watched_chunk(64 * MIB, 4, 2 * MIB), 4 * MIB);
    }

    fn demands(bytes_and_cpus: &[(usize, usize)]) -> Vec<Demand> {
        bytes_and_cpus.iter().map(|&(bytes, cpus)| Demand { bytes, cpus }).collect()
    }

    #[test]
    fn homes_of_threads_are_where_most_is_to_do() {
        assert_eq!(homes(&demands(&[(100, 4), (100, 4)]), 4, 0), [0, 1, 0, 1]);
        assert_eq!(homes(&demands(&[(100, 4), (300, 4)]), 4, 0), [0, 1, 1, 1]);
        assert_eq!(homes(&demands(&[(100, 4)]), 3, 0), [0, 0, 0]);
    }

    #[test]
    fn homes_beside_a_node_without_cpus_are_those_with_some() {
        assert_eq!(homes(&demands(&[(100, 0), (1, 2)]), 3, 1), [1, 1, 1]);
        assert_eq!(homes(&demands(&[(100, 0)]), 2, 0), [0, 0]);
    }

    #[test]
    fn homes_of_a_busy_node_pass_the_next_thread_on() {
        assert_eq!(homes(&demands(&[(1000, 1), (10, 4)]), 4, 0), [0, 0, 1, 1]);
        assert_eq!(homes(&demands(&[(1000, 0), (10, 1)]), 2, 0), [0, 1]);
    }

    /// The caller has a CPU of its own, of its node or of another node, and takes no helper's CPU.
    #[test]
    fn homes_beside_the_caller_leave_no_cpu_of_a_busy_node_idle() {
        assert_eq!(homes(&demands(&[(750, 1), (250, 2)]), 2, 0), [0, 0]);
        assert_eq!(homes(&demands(&[(750, 1), (250, 1)]), 3, 0), [0, 0, 1]);
    }

    proptest! {
        #[test]
        fn chunks_of_any_job_keep_to_the_formula(
            len in 1_usize..1 << 45, threads in 2_usize..64, min in 1_usize..1 << 32,
        ) {
            let chunk = chunk(len, threads, min);
            prop_assert!(chunk >= min && chunk.is_multiple_of(min));
            prop_assert!(chunk == min || chunk <= len / threads / 4);
            prop_assert!(len / threads / 4 < chunk + min);
        }
    }
}
