//! Each experiment in two sentences: the work it repeats, and the use of it.

use crate::EXPERIMENTS;

const WHY: [(&str, &str); 13] = [
    (
        "stores",
        "Repeats the comparison of string and non-temporal stores by size (clear_page_nt, 2020), and adds \
         every other way this CPU has to clear memory. Clearing is what a fresh page costs, and which way \
         is fastest changes with size, CPU and cache: a program that always calls memset pays for that.",
    ),
    (
        "copies",
        "Asks of copies what the reviewers of target-last copying asked in 2018: why not leave the cache \
         alone? Checkpoints and copy-on-write copy memory that no thread reads soon, and memcpy reads it \
         into the cache all the same.",
    ),
    (
        "learn",
        "Measures what a process's first, second and later operations gain from what the library learned of the ones \
         before, beside libc, the best routine and the built-in choice. A table of CPU models is always behind the \
         machines that programs run on, and learning must pay for itself at once.",
    ),
    (
        "clear",
        "Repeats clearing a huge page in extents (2023) and target subpage last (2018) on one folio, and then \
         uses none, a little or all of it. What is fastest by itself may have thrown out of the cache what \
         the program wants next, and only the use afterwards shows that.",
    ),
    (
        "parallel",
        "Repeats clearing gigantic pages by several threads (ktask, 2017), for copying and populating too. A virtual \
         machine's memory takes minutes to clear on one CPU; how many threads help ends where the memory's \
         bandwidth does.",
    ),
    (
        "demand",
        "Repeats the demand-fault workload of clearing in extents (2023): map memory, touch each page once. It is what \
         starting a guest or filling a heap costs, and what a pool that cleared its memory earlier saves.",
    ),
    (
        "fault",
        "Measures the latency of one fault, the event that all the published work shortens, rather than the bandwidth of \
         many. A client that waits for a reply waits for the slow ones, so every single fault is counted, and its \
         histogram shown.",
    ),
    (
        "fork",
        "Repeats fork with PTE-mapped huge pages (2024): what copying page tables by runs instead of entry by entry saves, by folio \
         size and on mixed tables, and the same of unmapping. While fork(2) copies tables the caller stands still, which is what a database feels at every \
         snapshot.",
    ),
    (
        "cow",
        "Repeats anon-cow-seq, the workload of target-last copying (2018): writers diverge from one origin, and each first \
         write copies a page. After a fork, this is where the time that fork itself did not take is spent.",
    ),
    (
        "snapshot",
        "Measures what a writer feels while a point in time of its memory is saved: stalls, latency and throughput. A database \
         forks for that today, and its clients see the stall.",
    ),
    (
        "epochs",
        "Measures how long it takes to save a gigabyte again of which little has changed, how much is \
         written, and what a writer pays for it that its writes are noted. Sandboxes pause, databases dump and training \
         saves all of their memory, nearly all of which is as it was.",
    ),
    (
        "lease",
        "Measures how soon programs that are not changed have memory that a broker has populated, QEMU from its start to its \
         guest's first instruction, and what the refill costs. Virtual machines wait seconds for memory that the kernel \
         clears when they start.",
    ),
    (
        "tend",
        "Measures programs that fork, one of our own and a real Redis that saves, while a tender keeps their memory on huge \
         pages from outside, and left alone. Programs that cannot be changed fork all the same, and stand still for \
         their page tables.",
    ),
];

/// Two sentences; of an experiment unknown here, the line that its definition has.
pub(super) fn why(name: &str) -> &str {
    let known = WHY.iter().find(|(experiment, _)| *experiment == name).map(|(_, why)| *why);
    let definition = EXPERIMENTS.iter().find(|definition| definition.name == name);
    known
        .or_else(|| Some(definition?.repeats))
        .unwrap_or("Made by a hugekit that knows more experiments than this one.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_says_what_it_repeats_and_why() {
        for definition in EXPERIMENTS {
            let sentences = why(definition.name).split_inclusive(['.', '?']).count();
            assert_eq!(sentences, 2, "{}", definition.name);
        }
        assert!(why("tomorrow").contains("knows more"));
    }
}
