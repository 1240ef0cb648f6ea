/* hugekit: a huge-page memory engine for user space on Linux. Generated from crates/hugekit-c: do not edit.
 *
 * Link with -lhugekit (`pkg-config --cflags --libs hugekit`). C11 and C++17.
 *
 * UNITS      Sizes, lengths and offsets are bytes unless the name or the comment says pages.
 * ERRORS     Functions that can fail return a hugekit_status. After an error nothing is changed, unless the
 *            function says otherwise, and out parameters are left alone; hugekit_last_error(),
 *            hugekit_last_remedy() and hugekit_last_errno() tell the calling thread more. Null pointers, lengths
 *            that overflow and numbers that are none of an enumeration's are HUGEKIT_STATUS_INVALID.
 * REQUIRES   What stands below "Requires:" the library cannot check: the caller answers for it, and a call that breaks it
 *            has no defined outcome.
 * OWNERSHIP  Handles are made by ..._new, ..._fork, ..._snapshot, ..._pin and ..._view, belong to the caller, and are given
 *            back by ..._free, which takes NULL too. Texts stay the library's unless hugekit_string_free is named. What
 *            is passed in (options, names, lists) is read before the call returns and not kept; a cancel flag and a
 *            progress callback's context are used until then.
 * VERSIONS   Structures begin with their size, which the caller sets: hugekit_options o = {.size = sizeof o}
 *            (in C++, hugekit_options o{}; o.size = sizeof o). What is zero is as usual. A program may be older
 *            or newer than the library: a wish that the library does not know is HUGEKIT_STATUS_UNSUPPORTED, an
 *            answer that it does not know is zero.
 * THREADS    Every function may be called by any number of threads at a time, for the same handle too, except
 *            that ..._free comes last. What is said of the memory itself stands at each function.
 * FILES      Only functions that are given a file write one. The library reads /proc and /sys.
 * SIGNALS    Only hugekit_cancel_set may be called by a signal handler. Memory cleared at its first touch, forked
 *            or snapshotted may be served in place, by a handler of SIGBUS, and of SIGSEGV for forks on
 *            transparent huge pages: install yours before, and they are passed on what is not hugekit's; no
 *            thread that touches such memory may block these signals, and no code change its rights (mprotect).
 *            Debuggers stop at each of them unless told not to: hugekit.gdb tells GDB.
 * FORK       A child of fork(2) has none of the memory: functions say HUGEKIT_STATUS_FORKED there, an access ends
 *            in SIGSEGV, ..._free frees the handle and nothing else. New pools work.
 * MEMORY     Where the heap has no room for a call, it says HUGEKIT_STATUS_NO_MEMORY, or works on one thread, and
 *            changes nothing. ..._free works then, too. Other threads that allocate at the same moment may take the
 *            room that a call has found: then the process ends as on a bug.
 * CALLBACKS  A callback may call the library, also for the handle that its call is about, may write the memory, fork(2)
 *            and exit(3). It must not fork, snapshot, retire or free the region or pool that its call works on, nor free
 *            another handle that the call was given: the call needs them. It must not leave by longjmp(3), which passes
 *            over locks and threads of the library that still use the call's frame. pthread_exit(3) ends the thread, or
 *            the process (SIGABRT) where helpers depend on it.
 * PANICS     A bug of the library prints a message and ends the process (SIGABRT); it never unwinds into the
 *            caller. So does an exception that leaves a callback.
 */


#ifndef HUGEKIT_H
#define HUGEKIT_H

#include <stddef.h>
#include <stdint.h>

// The version of this header.
#define HUGEKIT_VERSION "0.1.0"

// `hugekit_options.target` is meant; without it there is no target.
#define HUGEKIT_HAS_TARGET 1

// Helpers run only on CPUs that no other thread wants (`SCHED_IDLE`).
#define HUGEKIT_LOW_PRIORITY 2

// The first backing or none: without it, the next one is tried, and `hugekit_pool_fallbacks` says why.
#define HUGEKIT_POOL_STRICT 1

// The kernel puts all the memory there while the pool is made, instead of region by region.
#define HUGEKIT_POOL_POPULATE 2

// No thread cleans in the background: everything is cleared when it is allocated, or by
// `hugekit_pool_scrub`.
#define HUGEKIT_POOL_NO_SCRUBBER 4

// Core dumps do not hold the regions' bytes.
#define HUGEKIT_POOL_NOT_IN_CORE_DUMPS 8

// The pool's memory is the file `hugekit_pool_options.file`, which another process has made and populated, such as
// one inherited from `hugekit lease`. It is looked at: memory, of one length for good, which is the capacity. The
// program promises that all its bytes are zero, and that nothing else writes to it as long as the pool or a region of
// it lives. `hugekit_pool_new` closes the descriptor, on failure too, unless the structure itself is refused.
#define HUGEKIT_POOL_ADOPT 16

// A thread of low priority copies as well, so that writers meet fewer faults, at the price of copies that
// no caller might have needed.
#define HUGEKIT_SNAPSHOT_IN_BACKGROUND 1

// How a call ended. Everything but `HUGEKIT_STATUS_OK` is an error: nothing was changed then, unless the
// function says otherwise, no handle was made, and `hugekit_last_error` says why.
enum hugekit_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // It succeeded.
    HUGEKIT_STATUS_OK = 0,
    // An argument makes no sense: a null pointer, a range outside, a size that is not the structure's.
    HUGEKIT_STATUS_INVALID = 1,
    // Memory, huge pages, addresses or mappings are short.
    HUGEKIT_STATUS_NO_MEMORY = 2,
    // This process may not do it.
    HUGEKIT_STATUS_NOT_PERMITTED = 3,
    // This kernel, CPU, kind of memory or version of the library cannot do it.
    HUGEKIT_STATUS_UNSUPPORTED = 4,
    // Something else in this process stands in the way, such as another handler of SIGBUS or SIGSEGV.
    HUGEKIT_STATUS_CONFLICT = 5,
    // It was cancelled; `hugekit_last_error` says how much was done.
    HUGEKIT_STATUS_CANCELLED = 6,
    // The object belongs to the process that this one was forked from.
    HUGEKIT_STATUS_FORKED = 7,
    // The kernel refused something else; `hugekit_last_errno` says what it answered.
    HUGEKIT_STATUS_SYSTEM = 8,
    // The snapshot is lost: writers outran it, or the owner unmapped or discarded the memory.
    HUGEKIT_STATUS_LOST = 9,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_status hugekit_status;
#else
typedef int32_t hugekit_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The next use of memory.
enum hugekit_reuse
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Nothing is known, beyond the target if one is given: then as `HUGEKIT_REUSE_TARGET`, else the length
    // decides.
    HUGEKIT_REUSE_UNKNOWN = 0,
    // The bytes around the target, or around the start if none is given. The rest streams past the cache.
    HUGEKIT_REUSE_TARGET = 1,
    // All of it, soon: as much as the cache holds well is left there, around the target.
    HUGEKIT_REUSE_ALL = 2,
    // No thread soon: all of it streams past the cache.
    HUGEKIT_REUSE_NONE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_reuse hugekit_reuse;
#else
typedef uint32_t hugekit_reuse;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The kinds of memory that a pool may be made of, the best first.
enum hugekit_backing
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // As usual: `HUGEKIT_BACKING_HUGETLB2M`, and what is below it.
    HUGEKIT_BACKING_DEFAULT = 0,
    // The kernel's reserved pages of 1 GiB. Only on request: nothing smaller than 1 GiB can be mapped,
    // released or forked there.
    HUGEKIT_BACKING_HUGETLB1G = 1,
    // The kernel's reserved pages of 2 MiB.
    HUGEKIT_BACKING_HUGETLB2M = 2,
    // Shared memory on transparent huge pages.
    HUGEKIT_BACKING_THP = 3,
    // Shared memory on base pages: always possible, and the slowest to map.
    HUGEKIT_BACKING_BASE = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_backing hugekit_backing;
#else
typedef uint32_t hugekit_backing;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// When what is dirty is cleared for its next owner.
enum hugekit_clearing
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // As usual: for a pool, at allocation; for a region, as its pool does.
    HUGEKIT_CLEARING_DEFAULT = 0,
    // Before it is allocated, in parallel. Every access is a plain one then.
    HUGEKIT_CLEARING_ON_ALLOCATION = 1,
    // When it is touched for the first time, near that address last. Needs userfaultfd(2).
    HUGEKIT_CLEARING_ON_FAULT = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_clearing hugekit_clearing;
#else
typedef uint32_t hugekit_clearing;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which NUMA nodes a pool's memory comes from.
enum hugekit_nodes
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // As for any memory of the thread that populates it, so that `numactl` decides.
    HUGEKIT_NODES_PROCESS = 0,
    // The node of the CPU that populates it.
    HUGEKIT_NODES_LOCAL = 1,
    // The nodes of the list and no others.
    HUGEKIT_NODES_BIND = 2,
    // Page by page from one node of the list after the other.
    HUGEKIT_NODES_INTERLEAVE = 3,
    // The one node of the list, and others if it has none left.
    HUGEKIT_NODES_PREFERRED = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_nodes hugekit_nodes;
#else
typedef uint32_t hugekit_nodes;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The server of faults of memory that is cleared at its first touch, forked or snapshotted.
enum hugekit_fault_mode
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // As usual: threaded where this process may serve faults of system calls and of KVM; else in place. As an
    // answer: no thread does, all accesses are plain ones.
    HUGEKIT_FAULT_MODE_DEFAULT = 0,
    // The faulting thread itself, in a handler of SIGBUS or SIGSEGV. System calls into such memory fail with
    // EFAULT (`hugekit_region_prepare_write` prepares for one), and KVM leaves the guest: never
    // for guest memory.
    HUGEKIT_FAULT_MODE_IN_PLACE = 1,
    // Threads of the library's own. The program notices only that an access takes longer.
    HUGEKIT_FAULT_MODE_THREADED = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_fault_mode hugekit_fault_mode;
#else
typedef uint32_t hugekit_fault_mode;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The uses that this process may make of userfaultfd(2).
enum hugekit_userfaultfd
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Nothing, or it is not known.
    HUGEKIT_USERFAULTFD_NONE = 0,
    // Faults of its own code, handled in place: system calls into such memory fail with EFAULT.
    HUGEKIT_USERFAULTFD_USER_FAULTS = 1,
    // All faults, those of system calls and of KVM included.
    HUGEKIT_USERFAULTFD_ALL_FAULTS = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_userfaultfd hugekit_userfaultfd;
#else
typedef uint32_t hugekit_userfaultfd;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The bytes that one write to snapshotted memory makes its thread copy.
enum hugekit_granule
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // As usual: 2 MiB where some of the memory is on transparent huge pages, else 64 KiB.
    HUGEKIT_GRANULE_DEFAULT = 0,
    // 2 MiB: huge pages stay whole.
    HUGEKIT_GRANULE_HUGE = 1,
    // 64 KiB: a write waits less long, but huge pages are split, which costs later.
    HUGEKIT_GRANULE_SMALL = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_granule hugekit_granule;
#else
typedef uint32_t hugekit_granule;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Why a pass ended before it was over, or did not begin.
enum hugekit_tend_hindrance
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // It did not.
    HUGEKIT_TEND_HINDRANCE_NONE = 0,
    // A forked child lives and shares the memory.
    HUGEKIT_TEND_HINDRANCE_CHILD = 1,
    // Tasks of this machine wait for memory.
    HUGEKIT_TEND_HINDRANCE_PRESSURE = 2,
    // Too few huge pages are free.
    HUGEKIT_TEND_HINDRANCE_NO_FREE_HUGE_PAGES = 3,
    // The process's control group has too little left.
    HUGEKIT_TEND_HINDRANCE_CONTROL_GROUP = 4,
    // The process has ended or started another program.
    HUGEKIT_TEND_HINDRANCE_GONE = 5,
    // The tender was freed.
    HUGEKIT_TEND_HINDRANCE_STOPPED = 6,
    // The process keeps the kernel waiting for its memory map.
    HUGEKIT_TEND_HINDRANCE_STUCK = 7,
    // Its files in `/proc` cannot be read.
    HUGEKIT_TEND_HINDRANCE_UNREADABLE = 8,
    // No thread could be started for the pass.
    HUGEKIT_TEND_HINDRANCE_NO_THREAD = 9,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_tend_hindrance hugekit_tend_hindrance;
#else
typedef uint32_t hugekit_tend_hindrance;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Asks work to stop. Made by `hugekit_cancel_new`.
typedef struct hugekit_cancel hugekit_cancel;

// The states of some memory, saved one after the other, each as what has changed. It compares with the files that it was
// saved to, which it keeps open for reading, 64 at most; of each block of 4 KiB it keeps where it is: 16 bytes. Made by
// `hugekit_chain_new`.
typedef struct hugekit_chain hugekit_chain;

// The bytes of a state of memory that have changed since the one before it; of the first one, all of them. Made by
// `hugekit_changes_first`, `hugekit_changes_since` and, of a region, `hugekit_region_changes`; used up by
// `hugekit_changes_write` or `hugekit_chain_save`, which leave an epoch.
typedef struct hugekit_changes hugekit_changes;

// Notes what is written since a state was saved, at the price of one fault for each granule. Used up by
// `hugekit_changes_since` or `hugekit_region_changes`.
typedef struct hugekit_epoch hugekit_epoch;

// A range of a region that forks and snapshots copy at once. Made by `hugekit_region_pin`.
typedef struct hugekit_pin hugekit_pin;

// Memory that is allocated clean. Made by `hugekit_pool_new`.
typedef struct hugekit_pool hugekit_pool;

// Zeroed memory of a pool, committed and mapped. Made by `hugekit_region_new` and `hugekit_region_fork`.
typedef struct hugekit_region hugekit_region;

// Memory for what writers copy, which is there before there is a snapshot and kept from one to the next. Made by
// `hugekit_reserve_new`.
typedef struct hugekit_reserve hugekit_reserve;

// Bytes of memory as they were at one point in time, while writers go on. Made by `hugekit_snapshot_new` and
// `hugekit_region_snapshot`.
typedef struct hugekit_snapshot hugekit_snapshot;

// Keeps the private memory of a process on huge pages, from outside: this process, or another one. Made by
// `hugekit_tender_new`.
typedef struct hugekit_tender hugekit_tender;

// The bytes of a snapshot at addresses of its own. Made by `hugekit_snapshot_view`.
typedef struct hugekit_view hugekit_view;

// Part of the bytes that a call was given.
typedef struct hugekit_part {
    // Where it begins, in bytes.
    size_t offset;
    // How many bytes it has.
    size_t len;
} hugekit_part;

// Called as `progress(done, total, context)`, in bytes, after every piece, by the thread that did it: the
// calling one or a helper. Calls do not overlap, and `done` ascends. The other threads wait meanwhile: be
// brief. It must not throw nor jump away: an exception that leaves it ends the process.
typedef void (*hugekit_progress)(size_t done, size_t total, void *context);

// Options of work on memory. Zero everywhere means "as usual": set `size` and what you care about.
typedef struct hugekit_options {
    // `sizeof(hugekit_options)`.
    size_t size;
    // Threads, the calling one included; 0: as many as pay off. No more take part than there are CPUs to run
    // on, or pieces that are worth a thread.
    size_t threads;
    // Whom to tell what is done, or NULL.
    hugekit_progress progress;
    // Given to `progress` as it is.
    void *context;
    // The flag that stops the work early, or NULL.
    const struct hugekit_cancel *cancel;
    // `HUGEKIT_HAS_TARGET`, `HUGEKIT_LOW_PRIORITY`, or both.
    uint32_t flags;
    // A `hugekit_reuse`: the next use of the memory that is written. Not for `hugekit_populate`.
    uint32_t reuse;
    // A `hugekit_reuse`: the next use of the memory that is copied from. Only for `hugekit_copy_with`.
    uint32_t source_reuse;
    // Zero: anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    uint32_t reserved;
    // The byte that is accessed next, as an offset in bytes from the start; with `HUGEKIT_HAS_TARGET`.
    size_t target;
} hugekit_options;

// How work was done.
typedef struct hugekit_report {
    // `sizeof(hugekit_report)`, set by the caller.
    size_t size;
    // Bytes done: all of them.
    size_t bytes;
    // Threads that it was shared among, the calling one included.
    size_t threads;
    // Of these, threads that did at least one piece: the others came too late.
    size_t took_part;
} hugekit_report;

// The machine, as far as programs decide by it; 0 for facts that are not known. `hugekit_doctor` says more.
typedef struct hugekit_machine {
    // `sizeof(hugekit_machine)`, set by the caller.
    size_t size;
    // Bytes of a base page.
    size_t page_size;
    // CPUs that the calling thread may run on.
    size_t allowed_cpus;
    // NUMA nodes.
    size_t nodes;
    // Bytes of memory.
    uint64_t memory_total;
    // Bytes of memory that can be had without swapping.
    uint64_t memory_available;
    // Bytes of a core's second-level cache.
    size_t l2_bytes;
    // Bytes of the last-level cache.
    size_t llc_bytes;
    // Reserved huge pages of 2 MiB.
    uint64_t huge_2m_total;
    // Of these, pages that are free and promised to no mapping.
    uint64_t huge_2m_free;
    // Reserved huge pages of 1 GiB.
    uint64_t huge_1g_total;
    // Of these, pages that are free and promised to no mapping.
    uint64_t huge_1g_free;
    // A `hugekit_userfaultfd`: whether forks, snapshots and clearing at the first touch work.
    uint32_t userfaultfd;
    // Zero.
    uint32_t reserved;
} hugekit_machine;

// The thresholds by which the library chooses routines and threads. They are built in.
typedef struct hugekit_profile {
    // `sizeof(hugekit_profile)`, set by the caller.
    size_t size;
    // Bytes that stay cached around a target.
    size_t near_bytes;
    // Bytes that stay cached if all of the memory is used next.
    size_t near_bytes_all;
    // Shortest length in bytes that is shared among threads if their number is left open.
    size_t parallel_from;
    // Bytes of a piece below which sharing costs more than it gains.
    size_t min_chunk;
    // The most threads, if their number is left open.
    size_t thread_cap;
} hugekit_profile;

// Options of a pool. Zero everywhere means "as usual": set `size` and what you care about.
typedef struct hugekit_pool_options {
    // `sizeof(hugekit_pool_options)`.
    size_t size;
    // A `hugekit_backing`: what to ask for first.
    uint32_t backing;
    // `HUGEKIT_POOL_STRICT` and others.
    uint32_t flags;
    // Threads that populate now, and clear or populate for a region later; 0: as many as pay off.
    size_t threads;
    // Whom to tell how many bytes are populated while the pool is made, or NULL.
    hugekit_progress progress;
    // Given to `progress` as it is.
    void *context;
    // The scrubber begins when fewer bytes than this are clean …
    size_t scrub_below;
    // … and rests when so many are. Both 0: it cleans whatever is dirty, but slowly while regions come and go.
    size_t scrub_up_to;
    // Threads that clean in the background; 0: one.
    size_t scrub_threads;
    // A `hugekit_clearing` for regions that say nothing about it.
    uint32_t clearing;
    // A `hugekit_nodes`.
    uint32_t nodes;
    // The list of nodes, for the policies that have one; read before `hugekit_pool_new` returns.
    const uint32_t *node_list;
    // Its length.
    size_t node_count;
    // The name by which `/proc/self/maps` shows the pool, as `/memfd:hugekit:NAME`; NULL: `"pool"`.
    const char *name;
    // Where a `hugekit broker` listens that the pool's memory is leased from, or NULL: the capacity is the size of
    // its units then. It has to run as root or as this process's user.
    const char *broker;
    // With `HUGEKIT_POOL_ADOPT`, the descriptor of the pool's memory.
    int32_t file;
    // Zero.
    uint32_t reserved;
} hugekit_pool_options;

// A pool at one moment. States are counted in pages of the backing, work done in bytes since the pool was
// made.
typedef struct hugekit_stats {
    // `sizeof(hugekit_stats)`, set by the caller.
    size_t size;
    // Bytes of a page of the backing.
    size_t page_size;
    // Pages that nothing is behind yet.
    size_t holes;
    // Pages ready to be allocated.
    size_t clean;
    // Pages of regions, and those that are being made ready for one.
    size_t in_use;
    // Pages that hold what their last user left.
    size_t dirty;
    // Pages on base pages because no huge page was free.
    size_t fragmented;
    // Bytes cleared by the scrubber's own threads.
    uint64_t scrubbed_in_background;
    // Bytes cleared when a region was asked for.
    uint64_t scrubbed_at_allocation;
    // Bytes cleared by `hugekit_pool_scrub`.
    uint64_t scrubbed_on_request;
    // Bytes cleared when part of a region was released.
    uint64_t scrubbed_at_release;
    // Bytes cleared when they were touched for the first time.
    uint64_t scrubbed_at_fault;
    // Bytes that the kernel was asked to populate.
    uint64_t populated;
    // Regions allocated.
    uint64_t allocations;
    // Of these, regions that had to wait for the scrubber to finish a piece.
    uint64_t waits;
} hugekit_stats;

// Options of a region. Zero everywhere means "as usual": set `size` and what you care about.
typedef struct hugekit_region_options {
    // `sizeof(hugekit_region_options)`.
    size_t size;
    // Threads that clear or populate now; 0: as the pool says.
    size_t threads;
    // Whom to tell how many bytes of each extent are cleared or populated, or NULL.
    hugekit_progress progress;
    // Given to `progress` as it is.
    void *context;
    // A `hugekit_clearing`: when what is dirty is cleared.
    uint32_t clearing;
    // A `hugekit_fault_mode`: the server of faults of memory that is cleared at its first touch.
    uint32_t fault_mode;
    // Threads for `HUGEKIT_FAULT_MODE_THREADED`; 0: one.
    size_t handler_threads;
} hugekit_region_options;

// Options of a fork. What the first fork of a region is told holds for its other forks, and theirs.
typedef struct hugekit_fork_options {
    // `sizeof(hugekit_fork_options)`.
    size_t size;
    // Bytes that are shared or copied as a whole, a power of two: a page of the backing on reserved huge pages,
    // less on others; 0: as usual.
    size_t granule;
    // The most mappings of the process that the fork group's copies may cost; 0: as many as half of
    // `vm.max_map_count`, for all fork groups together.
    size_t max_vmas;
    // A `hugekit_fault_mode`.
    uint32_t fault_mode;
    // Zero: anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    uint32_t reserved;
    // Threads for `HUGEKIT_FAULT_MODE_THREADED`; 0: one.
    size_t handler_threads;
} hugekit_fork_options;

// Options of a snapshot. Zero everywhere means "as usual": set `size` and what you care about.
typedef struct hugekit_snapshot_options {
    // `sizeof(hugekit_snapshot_options)`.
    size_t size;
    // A `hugekit_fault_mode`: the thread that copies what is written. Snapshots of the same memory must agree.
    uint32_t fault_mode;
    // A `hugekit_granule`.
    uint32_t granule;
    // Threads for `HUGEKIT_FAULT_MODE_THREADED`; 0: one.
    size_t handler_threads;
    // The most bytes of copies that the snapshot holds at a time, in whole granules. If writers need more, the
    // snapshot is lost, `hugekit_last_remedy` names a value that works, and the writers go on. 0: all of the memory,
    // so that writers never need more; if less than that is available when the snapshot is taken, on the machine or in
    // the control group, what is available, but at least 64 MiB. The bytes of `reserve` may be held in any case.
    size_t max_cow_bytes;
    // Of these, bytes whose memory is populated before the snapshot is taken, so that no write
    // waits for it.
    size_t populate_copies;
    // `HUGEKIT_SNAPSHOT_IN_BACKGROUND`, or 0.
    uint32_t flags;
    // Zero: anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    uint32_t reserved;
    // Memory that writers copy to first, or NULL. Snapshots that live at the same time share it. If other snapshots
    // use all of it, memory is taken as without one.
    const struct hugekit_reserve *reserve;
} hugekit_snapshot_options;

// Bytes of a program's memory.
typedef struct hugekit_range {
    // Where they begin.
    const void *memory;
    // How many there are.
    size_t len;
} hugekit_range;

// The cost of a snapshot so far, or in all once it has ended.
typedef struct hugekit_snapshot_stats {
    // `sizeof(hugekit_snapshot_stats)`, set by the caller.
    size_t size;
    // Granules it has.
    size_t granules;
    // Bytes of each.
    size_t granule_bytes;
    // Granules that writers preserved.
    uint64_t copied_by_writers;
    // Granules that were preserved by others.
    uint64_t copied_by_others;
    // Bytes that are retained now.
    size_t retained;
    // Bytes that were retained at most.
    size_t most_retained;
    // Bytes that may be retained.
    size_t cap;
    // The longest time in nanoseconds that a write to the memory took because of snapshots, signal delivery
    // not counted.
    uint64_t longest_fault_ns;
    // Bytes of those that may be retained whose memory was there before: of a reserve, or of a region's pool.
    size_t reserved;
} hugekit_snapshot_stats;

// Takes bytes of a state, `len` of them from `offset` on: 0 to go on, an errno to end.
typedef int32_t (*hugekit_take)(size_t offset, const void *bytes, size_t len, void *context);

// A state of a chain: two with the same number are the same bytes. All zeroes: none.
typedef struct hugekit_state {
    uint8_t number[16];
} hugekit_state;

// What was saved. Set `size` before the call.
typedef struct hugekit_saved {
    // `sizeof(hugekit_saved)`.
    size_t size;
    // The state.
    struct hugekit_state state;
    // Bytes in blocks of 4 KiB that have changed.
    uint64_t changed;
    // Bytes that were written.
    uint64_t written;
    // 1 if it is all of the state, which needs no other to be applied; else 0.
    uint32_t is_full;
    // Zero.
    uint32_t reserved;
} hugekit_saved;

// Options of a tender. Zero everywhere means "as usual", for this process itself: set `size` and what you care
// about.
typedef struct hugekit_tend_options {
    // `sizeof(hugekit_tend_options)`.
    size_t size;
    // The process; 0: the calling one.
    int32_t pid;
    // Of 2 MiB, the least share of pages that must be there, in percent: the others are filled with zeroes. 0: 90.
    uint32_t density_percent;
    // The share of one CPU that may be taken, in percent. 0: 20.
    uint32_t cpu_percent;
    // Zero: anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    uint32_t reserved;
    // Bytes that may be collapsed in a second, at most. 0: 1 GiB.
    uint64_t bytes_per_second;
    // Bytes of free huge pages that are left to everything else. 0: 256 MiB.
    uint64_t keep_free;
} hugekit_tend_options;

// What a tender did, and what it has seen. A pass is one walk over the memory.
typedef struct hugekit_tend_report {
    // `sizeof(hugekit_tend_report)`, set by the caller.
    size_t size;
    // Bytes of private memory that are there, after the last pass.
    uint64_t resident_bytes;
    // Of these, bytes on huge pages.
    uint64_t huge_bytes;
    // Bytes that the last pass put on huge pages.
    uint64_t collapsed_bytes;
    // Bytes of holes that it filled.
    uint64_t filled_bytes;
    // Bytes in 2 MiB with too many holes.
    uint64_t sparse_bytes;
    // The CPU's time that it took, in nanoseconds.
    uint64_t cpu_ns;
    // Its longest collapse: writers of those 2 MiB waited as long.
    uint64_t longest_ns;
    // A `hugekit_tend_hindrance`.
    uint32_t hindrance;
    // Forked children that live and share the memory.
    uint32_t children;
    // Passes that were made.
    uint64_t passes;
    // Forks that were seen.
    uint64_t forks;
    // How long the last fork took; 0 if that is not known.
    uint64_t last_fork_ns;
} hugekit_tend_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Why the last call of this thread that did not return `HUGEKIT_STATUS_OK` failed, in English and in
// figures; the empty string if none did. Where the heap had no room for the reason, it says only that. Never null. Valid until the next call of this thread that fails;
// calls that succeed leave it alone.
const char *hugekit_last_error(void);

// The remedy of an administrator or the program for `hugekit_last_error`, such as a command for root; the
// empty string if nothing is known. Never null, valid as long as `hugekit_last_error` is.
const char *hugekit_last_remedy(void);

// The `errno` that the kernel answered with in the call that `hugekit_last_error` is about; 0 if it was
// not asked, or its answer is not known.
int32_t hugekit_last_errno(void);

// What the call that `hugekit_last_error` is about had done before it was cancelled, or a part of it failed: parts
// of the bytes that the call was given (of a region, for calls that name one), ascending and each apart from the next.
// What lies between them is still to do. Writes the first `room` of them to `parts`, which is NULL or has so much room,
// and returns how many there are; 0 if nothing was done, or the call was not one that clears, copies or populates.
//
// Requires:
// `parts` is NULL or valid for writing `room` of them.
size_t hugekit_last_done(struct hugekit_part *parts,
                         size_t room);

// A word for a status, such as `"no memory"`; `"unknown status"` for any other number. Static.
const char *hugekit_status_name(int32_t status);

// The version of the library, as `"0.1.0"`. Static. Compare with `HUGEKIT_VERSION`, that of the header.
const char *hugekit_version(void);

// Makes a flag that is not set. Free it with `hugekit_cancel_free`, after the calls that were given it have
// returned. NULL, which is no flag, if the heap has no room for it.
struct hugekit_cancel *hugekit_cancel_new(void);

// Sets the flag, for good: an operation that was given it stops after the pieces that are being done. Any thread may,
// and a signal handler. Nothing happens for NULL.
//
// Requires:
// NULL, or a flag that is not freed.
void hugekit_cancel_set(const struct hugekit_cancel *cancel);

// Frees the flag. Nothing happens for NULL.
//
// Requires:
// NULL, or a flag that no thread uses any more.
void hugekit_cancel_free(struct hugekit_cancel *cancel);

// Sets `len` bytes at `memory` to zero, on the calling thread, by the fastest routine for this length: never
// slower than `memset`. NULL will do for 0 bytes.
//
// Requires:
// The memory can be written, and no other thread accesses it meanwhile.
hugekit_status hugekit_clear(void *memory, size_t len);

// Sets `len` bytes at `memory` to zero, with knowledge of their next use, on several threads, with
// progress. `options` and `report` may be NULL.
//
// Fails with `HUGEKIT_STATUS_INVALID` for a target outside or an unknown option, and nothing is written then;
// with `HUGEKIT_STATUS_CANCELLED` after a part.
//
// Requires:
// As for `hugekit_clear`; `options` is NULL or such a structure, whose flag is not freed meanwhile; `report` is NULL
// or such a structure.
hugekit_status hugekit_clear_with(void *memory,
                                  size_t len,
                                  const struct hugekit_options *options,
                                  struct hugekit_report *report);

// Copies `len` bytes from `from` to `to`, which must not overlap, on the calling thread, by the fastest
// routine for this length. NULL will do for 0 bytes.
//
// Fails with `HUGEKIT_STATUS_INVALID` if they overlap, and nothing is written then.
//
// Requires:
// `from` can be read and `to` written; no other thread writes to either, or reads from `to`, meanwhile.
hugekit_status hugekit_copy(void *to, const void *from, size_t len);

// Copies as `hugekit_copy` does, with knowledge of the next use of either side, on several threads, with
// progress. `options` and `report` may be NULL. Fails as `hugekit_copy` and `hugekit_clear_with` do.
//
// Requires:
// As for `hugekit_copy`; `options` and `report` as for `hugekit_clear_with`.
hugekit_status hugekit_copy_with(void *to,
                                 const void *from,
                                 size_t len,
                                 const struct hugekit_options *options,
                                 struct hugekit_report *report);

// Faults in every page that a byte of the memory lies on, writable, on several threads
// (`MADV_POPULATE_WRITE`). No byte changes. `options` and `report` may be NULL.
//
// Fails with `HUGEKIT_STATUS_INVALID` if part of it is not mapped or cannot be written, with
// `HUGEKIT_STATUS_NO_MEMORY`, and with `HUGEKIT_STATUS_UNSUPPORTED` before Linux 5.14; what was faulted in
// before stays so. Any address will do.
//
// Requires:
// `options` is NULL or such a structure, whose flag is not freed meanwhile; `report` is NULL or such a structure.
hugekit_status hugekit_populate(void *memory,
                                size_t len,
                                const struct hugekit_options *options,
                                struct hugekit_report *report);

// Says what the machine is, now: it reads `/proc` and `/sys`, which takes a millisecond or less.
//
// Requires:
// `machine` is a `hugekit_machine` whose size is set.
hugekit_status hugekit_machine_query(struct hugekit_machine *machine);

// All that `hugekit doctor --json` says of this machine: findings with verdicts and remedies, as JSON in
// UTF-8. Free the text with `hugekit_string_free`.
//
// Requires:
// `text` can be written.
hugekit_status hugekit_doctor(char **text);

// Frees a text that the library gave. Nothing happens for NULL.
//
// Requires:
// NULL, or such a text, not freed before.
void hugekit_string_free(char *text);

// Fills `profile` with the thresholds in use.
//
// Requires:
// `profile` is a `hugekit_profile` whose size is set.
hugekit_status hugekit_profile_query(struct hugekit_profile *profile);

// The name of the routine that would clear so many bytes now, of which nothing more is known, such as `"memset"` or
// `"avx2_streaming"`. Static.
const char *hugekit_clear_routine(size_t len);

// The name of the routine that would copy so many bytes now, of which nothing more is known. Static.
const char *hugekit_copy_routine(size_t len);

// Whether clears and copies learn from the work that they do which routine is fastest, from now on, in this process:
// they do unless a program says 0. What was learned is kept, and not gone by while it is
// off. Any thread may say so at any time.
void hugekit_set_learning(int enabled);

// Forgets what was learned: the next operations begin as a new process's do.
void hugekit_forget_learned(void);

// Makes a pool of `capacity` bytes, rounded up to whole pages of its backing, and stores its handle in
// `*pool`. `options` may be NULL. Free it with `hugekit_pool_free`.
//
// Fails with `HUGEKIT_STATUS_NO_MEMORY` if too little memory or too few huge pages are there or a control
// group's limit is in the way, which is checked before anything is promised; with
// `HUGEKIT_STATUS_UNSUPPORTED` if the kernel has no such pages; with `HUGEKIT_STATUS_INVALID` for no bytes or an
// unknown option.
//
// Requires:
// `pool` can be written; `options` is NULL or such a structure: its texts are NULL or end with a zero byte, its list is
// as long as it says, and its file, with `HUGEKIT_POOL_ADOPT`, is as promised there.
hugekit_status hugekit_pool_new(size_t capacity,
                                const struct hugekit_pool_options *options,
                                struct hugekit_pool **pool);

// Frees the handle. The pool lives on until its last region is freed. Nothing happens for NULL, and nothing
// but that in a forked child.
//
// Requires:
// NULL, or a pool that no thread uses any more.
void hugekit_pool_free(struct hugekit_pool *pool);

// A `hugekit_backing`: what the pool's memory is made of. 0 for NULL.
//
// Requires:
// NULL, or a pool.
uint32_t hugekit_pool_backing(const struct hugekit_pool *pool);

// Why each backing above the one taken could not be had, a line each; the empty string if it is the one
// asked for. Valid as long as the handle. Never NULL.
//
// Requires:
// NULL, or a pool.
const char *hugekit_pool_fallbacks(const struct hugekit_pool *pool);

// Bytes of the pool. 0 for NULL.
//
// Requires:
// NULL, or a pool.
size_t hugekit_pool_capacity(const struct hugekit_pool *pool);

// Bytes of a page of the backing: regions take whole ones. 0 for NULL.
//
// Requires:
// NULL, or a pool.
size_t hugekit_pool_page_size(const struct hugekit_pool *pool);

// The pool at this moment. Fails with `HUGEKIT_STATUS_FORKED` in a forked child.
//
// Requires:
// `pool` is NULL or a pool; `stats` is a `hugekit_stats` whose size is set.
hugekit_status hugekit_pool_stats(const struct hugekit_pool *pool, struct hugekit_stats *stats);

// Clears everything that is dirty now, on the pool's threads, and stores in `*bytes`, unless that is NULL, how
// many bytes that were. Fails with `HUGEKIT_STATUS_FORKED` in a forked child.
//
// Requires:
// `pool` is NULL or a pool; `bytes` is NULL or can be written.
hugekit_status hugekit_pool_scrub(const struct hugekit_pool *pool,
                                  uint64_t *bytes);

// Has the scrubber rest until `hugekit_pool_resume_scrubbing`, and waits until it does. Fails with
// `HUGEKIT_STATUS_FORKED` in a forked child.
//
// Requires:
// NULL, or a pool.
hugekit_status hugekit_pool_pause_scrubbing(const struct hugekit_pool *pool);

// Lets the scrubber work again. Fails with `HUGEKIT_STATUS_FORKED` in a forked child.
//
// Requires:
// NULL, or a pool.
hugekit_status hugekit_pool_resume_scrubbing(const struct hugekit_pool *pool);

// Maps `len` zeroed bytes of the pool, in whole pages of its backing and in one piece, and stores their handle
// in `*region`. `options` may be NULL. Free it with `hugekit_region_free`.
//
// The memory can never be short later: that is an error here, `HUGEKIT_STATUS_NO_MEMORY`. Others are
// `HUGEKIT_STATUS_INVALID` for no bytes, `HUGEKIT_STATUS_FORKED` in a forked child, and, with
// `HUGEKIT_CLEARING_ON_FAULT`, `HUGEKIT_STATUS_NOT_PERMITTED` if no fault may be served. Nothing is taken from
// the pool then.
//
// A process forked from this one has no such memory: an access there ends in SIGSEGV.
//
// Requires:
// `pool` is NULL or a pool; `region` can be written; `options` is NULL or such a structure.
hugekit_status hugekit_region_new(const struct hugekit_pool *pool,
                                  size_t len,
                                  const struct hugekit_region_options *options,
                                  struct hugekit_region **region);

// Gives the memory back to the pool, which clears it before its next owner gets it. Nothing happens for NULL,
// and nothing but the handle's end in a forked child.
//
// Requires:
// NULL, or a region that no thread uses any more, neither by its handle nor by its address or file.
void hugekit_region_free(struct hugekit_region *region);

// Frees the handle although a system call or a device may still read or write the memory (`vmsplice`,
// `O_DIRECT`, a buffer registered with `io_uring`): its pages go back to the kernel, not to the pool. On an error,
// no region ever gets them again, and the handle is freed all the same.
//
// Nothing is done, and the handle stays, as long as a range is pinned: `HUGEKIT_STATUS_CONFLICT`.
//
// Requires:
// As for `hugekit_region_free`, of what this process can know.
hugekit_status hugekit_region_retire(struct hugekit_region *region);

// Has every fork and snapshot of the region copy the granules of a range at once, until `*pin` is freed, so that
// their pages stay where they are and keep being written: for memory that a device, a ring of `io_uring` or a
// system call on its way holds by its pages, of which no protection is seen. What these write while a fork is made
// is in the fork or not, word by word.
//
// The region may be freed first: its memory stays the pin's until that is freed too. Fails with
// `HUGEKIT_STATUS_INVALID` for a range outside the region, with `HUGEKIT_STATUS_NO_MEMORY` or
// `HUGEKIT_STATUS_SYSTEM` if what is shared with earlier forks cannot be copied now.
//
// Requires:
// `region` is NULL or a region; `pin` can be written.
hugekit_status hugekit_region_pin(const struct hugekit_region *region,
                                  size_t offset,
                                  size_t len,
                                  struct hugekit_pin **pin);

// Lets forks and snapshots share the range again. Nothing happens for NULL, and nothing but the handle's end in a
// forked child.
//
// Requires:
// NULL, or a pin that no thread uses any more.
void hugekit_pin_free(struct hugekit_pin *pin);

// Where the region begins: a multiple of the page size of its backing. NULL for NULL. Valid for
// `hugekit_region_mapped_len` bytes until the region is freed, and never moves.
//
// Requires:
// NULL, or a region.
void *hugekit_region_address(const struct hugekit_region *region);

// Bytes that were asked for. 0 for NULL.
//
// Requires:
// NULL, or a region.
size_t hugekit_region_len(const struct hugekit_region *region);

// Bytes that are mapped: the length rounded up to whole pages of the backing. 0 for NULL.
//
// Requires:
// NULL, or a region.
size_t hugekit_region_mapped_len(const struct hugekit_region *region);

// A `hugekit_fault_mode`: how its faults are served, if it is cleared at its first touch; 0 if accesses are
// plain ones, and for NULL.
//
// Requires:
// NULL, or a region.
uint32_t hugekit_region_serving(const struct hugekit_region *region);

// The file behind the region, and where in it the region begins, in bytes: for a program that maps it, such as a
// device's process by vhost-user. (KVM's memory slots need the address only.) The descriptor stays the
// pool's: do not close it. It reaches the whole pool: access `hugekit_region_mapped_len` bytes from the offset
// on, and those only while the region exists. What is still to be cleared is cleared by this call, and
// the region cannot be forked any more.
//
// Fails with `HUGEKIT_STATUS_CONFLICT` for a region that was forked, or is a fork.
//
// Requires:
// `region` is NULL or a region; the other two can be written. The program accesses the file by the descriptor only in
// the region's part of it, and only while the region exists.
hugekit_status hugekit_region_file(const struct hugekit_region *region,
                                   int *descriptor,
                                   uint64_t *offset);

// Enters the pages that a byte of the range lies on into the page tables, so that nothing faults on them any
// more. `options` (threads and progress only; here 0 threads: one) and `report` may be NULL.
//
// Fails with `HUGEKIT_STATUS_INVALID` for a range outside the region.
//
// Requires:
// `region` is NULL or a region; the others are NULL or such structures.
hugekit_status hugekit_region_populate(const struct hugekit_region *region,
                                       size_t offset,
                                       size_t len,
                                       const struct hugekit_options *options,
                                       struct hugekit_report *report);

// Gives up what the range holds: it reads as zeroes again, and stays committed and mapped. The range consists
// of whole pages of the backing, but may end where the region does; else it fails with
// `HUGEKIT_STATUS_INVALID`. What others write meanwhile is cleared or not.
//
// Requires:
// NULL, or a region.
hugekit_status hugekit_region_release(const struct hugekit_region *region, size_t offset, size_t len);

// Makes the range writable without a fault from now on, as a system call or a device needs it,
// until it is released or the region is forked or snapshotted: what is dirty is cleared, what is
// shared is copied. Only a region whose faults are served in place needs this.
//
// Fails with `HUGEKIT_STATUS_INVALID` for a range outside the region.
//
// Requires:
// NULL, or a region.
hugekit_status hugekit_region_prepare_write(const struct hugekit_region *region, size_t offset, size_t len);

// A region with the same bytes, of which each side changes its own. Nothing
// is copied before one side writes it, granule by granule; the parent keeps its pages. Stores that
// race with the call are in the fork or not, granule by granule. Its handle is stored in `*fork`; it and
// the region may be freed in any order. `options` may be NULL.
//
// The fork takes as many bytes of the pool as the region: `HUGEKIT_STATUS_NO_MEMORY` if they are not there. Others
// are `HUGEKIT_STATUS_NOT_PERMITTED` if no fault may be served, `HUGEKIT_STATUS_UNSUPPORTED` on pages of
// 1 GiB, `HUGEKIT_STATUS_CONFLICT` if the region's file was given away.
//
// Requires:
// `region` is NULL or a region; `fork` can be written; `options` is NULL or such a structure.
hugekit_status hugekit_region_fork(const struct hugekit_region *region,
                                   const struct hugekit_fork_options *options,
                                   struct hugekit_region **fork);

// Stores in `*bytes` how many bytes the region shares with forks at this moment, in whole granules: what
// writes of it or of them may still have to copy.
//
// Requires:
// `region` is NULL or a region; `bytes` can be written.
hugekit_status hugekit_region_shared_bytes(const struct hugekit_region *region, size_t *bytes);

// Takes `bytes`, rounded up to 2 MiB, on transparent huge pages if there are any, and touches them once, 0.1 to 0.2
// seconds a gigabyte, more where free memory is in pieces. Stores their handle in `*reserve`. Without a reserve, a
// writer that meets a snapshot waits until the kernel has found and cleared memory for its copy; what writers change until a
// snapshot is read suffices. Snapshots that live at the same time share it.
//
// Fails with `HUGEKIT_STATUS_NO_MEMORY` if there is not so much.
//
// Requires:
// `reserve` can be written.
hugekit_status hugekit_reserve_new(size_t bytes,
                                   struct hugekit_reserve **reserve);

// Bytes it has. 0 for NULL.
//
// Requires:
// NULL, or a reserve.
size_t hugekit_reserve_len(const struct hugekit_reserve *reserve);

// Gives the memory back, once the snapshot that has it is freed, too. Nothing happens for NULL, and nothing but the
// handle's end in a forked child.
//
// Requires:
// NULL, or a reserve that no thread uses any more, but for a snapshot.
void hugekit_reserve_free(struct hugekit_reserve *reserve);

// Takes a snapshot of private anonymous memory of this process, whichever code mapped it (`malloc`, `mmap`), on huge
// pages or not, in microseconds, and stores its handle in `*snapshot`. `options` may be NULL. It is what fork(2)
// would have given a child: a store that races with the call lands on either side, granule by granule.
// Free it with `hugekit_snapshot_free`, which lets the memory alone again.
//
// Fails with `HUGEKIT_STATUS_INVALID` for no bytes or memory that is not mapped; with
// `HUGEKIT_STATUS_UNSUPPORTED` for memory that is shared, a file's, a thread's stack, or before Linux 5.14; with
// `HUGEKIT_STATUS_NOT_PERMITTED` if no fault may be served. Memory of a pool: `hugekit_region_snapshot`.
//
// The memory may be written, unmapped, remapped, protected, discarded and forked meanwhile: what that takes from
// the snapshot is an error when it is read.
//
// Requires:
// Until the snapshot is freed: no thread that has SIGBUS blocked writes to the memory or has its stack there;
// no code takes SIGBUS from the library's handler; if it is served in place (`hugekit_snapshot_serving`), no
// system call writes to it but after `hugekit_snapshot_prepare_write`, or the program can bear EFAULT.
hugekit_status hugekit_snapshot_new(const void *memory,
                                    size_t len,
                                    const struct hugekit_snapshot_options *options,
                                    struct hugekit_snapshot **snapshot);

// Takes a snapshot of each of `count` ranges, as `hugekit_snapshot_new` would one after the other, and stores their
// handles in `snapshots[0]` and on, in the ranges' order. It takes less time where ranges lie side by side, 1 ms less
// for each on huge pages that begins where another one ends, or within a page after it with nothing but an
// allocator's words in between. `options` are meant for each range; ranges that lie side by side share what they may
// retain, and what they cost (`hugekit_snapshot_statistics`).
//
// Fails as `hugekit_snapshot_new` does, for the first range that is refused; none is taken then.
//
// Requires:
// As for `hugekit_snapshot_new`, for all of the ranges; `ranges` is NULL or `count` of them, and so many handles can
// be written to `snapshots`.
hugekit_status hugekit_snapshot_new_several(const struct hugekit_range *ranges,
                                            size_t count,
                                            const struct hugekit_snapshot_options *options,
                                            struct hugekit_snapshot **snapshots);

// Takes a snapshot of a region, in microseconds: a fork that is only read, for which as many bytes of the pool
// as the region has are reserved, so that writers never outrun it. It may outlive the region. `options` may be
// NULL. Fails as `hugekit_region_fork` does.
//
// Requires:
// `region` is NULL or a region; `snapshot` can be written; `options` is NULL or such a structure.
hugekit_status hugekit_region_snapshot(const struct hugekit_region *region,
                                       const struct hugekit_fork_options *options,
                                       struct hugekit_snapshot **snapshot);

// Frees the snapshot, and lets the memory alone again once its views are freed, too. Nothing happens for NULL, and
// nothing but the handle's end in a forked child.
//
// Requires:
// NULL, or a snapshot that no thread uses any more.
void hugekit_snapshot_free(struct hugekit_snapshot *snapshot);

// Bytes of the snapshot. 0 for NULL, and once it has ended.
//
// Requires:
// NULL, or a snapshot.
size_t hugekit_snapshot_len(const struct hugekit_snapshot *snapshot);

// A `hugekit_fault_mode`: how writes to the memory are handled, and so whether system calls may write to it; 0 if
// nothing is protected, once it has ended, and for NULL.
//
// Requires:
// NULL, or a snapshot.
uint32_t hugekit_snapshot_serving(const struct hugekit_snapshot *snapshot);

// Copies `len` bytes of the snapshot, from `offset` on, to `to`. Any number of threads may, and each byte may be
// read often.
//
// Fails with `HUGEKIT_STATUS_INVALID` for bytes outside, or once the snapshot has ended; with
// `HUGEKIT_STATUS_LOST` if writers outran it, or the owner unmapped or discarded the memory. What `to` holds after
// that is of no use.
//
// Requires:
// `snapshot` is NULL or a snapshot; `to` can be written, and no other thread accesses it meanwhile.
hugekit_status hugekit_snapshot_read(const struct hugekit_snapshot *snapshot,
                                     size_t offset,
                                     void *to,
                                     size_t len);

// Copies all of it to `to`, of as many bytes as the snapshot has, and ends it: what was copied is let go, so
// that writers need not preserve it any more. `options` (progress and cancel only) may be NULL.
//
// Fails as `hugekit_snapshot_read` does, and with `HUGEKIT_STATUS_CANCELLED`. It has ended then too, unless it
// was not begun because `len` differs, or, with `HUGEKIT_STATUS_CONFLICT`, because the snapshot has a view.
//
// Requires:
// As for `hugekit_snapshot_read`.
hugekit_status hugekit_snapshot_copy(const struct hugekit_snapshot *snapshot,
                                     void *to,
                                     size_t len,
                                     const struct hugekit_options *options);

// Writes all of it in order to an open file, pipe or socket, and ends it. The file may take its time: writers of
// the memory do not wait for it. `options` (progress and cancel only) may be NULL. The descriptor stays the
// caller's, and is not synchronised.
//
// Fails as `hugekit_snapshot_copy` does, and with `HUGEKIT_STATUS_SYSTEM` if the file does. What was written then
// is the first part of the snapshot.
//
// Requires:
// `snapshot` is NULL or a snapshot; the descriptor stays open meanwhile.
hugekit_status hugekit_snapshot_write(const struct hugekit_snapshot *snapshot,
                                      int descriptor,
                                      const struct hugekit_options *options);

// The snapshot as memory, of which nothing is there yet: `hugekit_view_bytes` and `hugekit_view_rebase` fill what is
// asked for. A fault could not say that the snapshot is lost, an answer can. Stores its handle in `*view`; it takes
// memory for what was asked for until it is freed, before or after the snapshot.
//
// Fails with `HUGEKIT_STATUS_INVALID` once the snapshot has ended, with `HUGEKIT_STATUS_NO_MEMORY` if there are no
// addresses for it.
//
// Requires:
// `snapshot` is NULL or a snapshot; `view` can be written.
hugekit_status hugekit_snapshot_view(const struct hugekit_snapshot *snapshot,
                                     struct hugekit_view **view);

// Frees the view. Nothing happens for NULL, and nothing but the handle's end in a forked child.
//
// Requires:
// NULL, or a view that no thread uses any more, neither by its handle nor by addresses in it.
void hugekit_view_free(struct hugekit_view *view);

// Bytes of the snapshot. 0 for NULL.
//
// Requires:
// NULL, or a view.
size_t hugekit_view_len(const struct hugekit_view *view);

// Fills `len` bytes from `offset` on, and stores where they are in `*bytes`: readable, and the same until the view
// is freed. Any number of threads may.
//
// Fails as `hugekit_snapshot_read` does.
//
// Requires:
// `view` is NULL or a view; `bytes` can be written.
hugekit_status hugekit_view_bytes(const struct hugekit_view *view,
                                  size_t offset,
                                  size_t len,
                                  const void **bytes);

// Stores in `*there` where the view has what lies at `pointer`, an address of the memory that the snapshot is of,
// so that structures can be walked by the pointers that they hold. `len` bytes from there on are filled; their
// alignment is as in the memory, up to that of a page. What they mean is for the caller to know: a store that raced
// with the snapshot may have left them half done.
//
// Fails as `hugekit_snapshot_read` does, with `HUGEKIT_STATUS_INVALID` for a pointer to elsewhere.
//
// Requires:
// `view` is NULL or a view; `there` can be written.
hugekit_status hugekit_view_rebase(const struct hugekit_view *view,
                                   const void *pointer,
                                   size_t len,
                                   const void **there);

// Makes a range of the memory writable without a fault from now on, as a system call needs it
// where writes are handled in place: what it holds is preserved, and stays in the snapshot. Fails
// as `hugekit_snapshot_read` does.
//
// Requires:
// NULL, or a snapshot.
hugekit_status hugekit_snapshot_prepare_write(const struct hugekit_snapshot *snapshot,
                                              size_t offset,
                                              size_t len);

// The snapshot's cost.
//
// Requires:
// `snapshot` is NULL or a snapshot; `stats` is a `hugekit_snapshot_stats` whose size is set.
hugekit_status hugekit_snapshot_statistics(const struct hugekit_snapshot *snapshot,
                                           struct hugekit_snapshot_stats *stats);

// Takes a snapshot of memory, as `hugekit_snapshot_new` does, whose next states are to be saved as what has changed,
// and stores a handle of its bytes in `*changes`. `options` may be NULL; `HUGEKIT_SNAPSHOT_IN_BACKGROUND` is of no use
// here. Fails as `hugekit_snapshot_new` does.
//
// Requires:
// As for `hugekit_snapshot_new`, until the last of the changes and epochs that follow on it is used up or freed.
hugekit_status hugekit_changes_first(const void *memory,
                                     size_t len,
                                     const struct hugekit_snapshot_options *options,
                                     struct hugekit_changes **changes);

// Takes a snapshot of the epoch's memory, of what was written since, and stores its handle in `*changes`. The epoch is
// used up, and still to be freed. Memory that was unmapped, discarded or replaced meanwhile counts as written, as far
// as it is there. `options` may be NULL; the granule is the epoch's.
//
// Fails as `hugekit_snapshot_new` does, with `HUGEKIT_STATUS_CONFLICT` for the epoch of a region, with
// `HUGEKIT_STATUS_INVALID` once it is used up, and with `HUGEKIT_STATUS_LOST` if what was written is not known any more:
// begin with `hugekit_changes_first` then.
//
// Requires:
// As for `hugekit_changes_first`; `epoch` is NULL or an epoch.
hugekit_status hugekit_changes_since(const struct hugekit_epoch *epoch,
                                     const struct hugekit_snapshot_options *options,
                                     struct hugekit_changes **changes);

// Takes a snapshot of a region, as `hugekit_region_snapshot` does, of what was written since the epoch, or of all of it
// where `epoch` is NULL, and stores its handle in `*changes`. The epoch is used up, and still to be freed. A region has
// one epoch at a time, the last one. What is pinned counts as written.
//
// Fails as `hugekit_region_fork` does, and with `HUGEKIT_STATUS_CONFLICT` if the epoch is not the region's last one.
//
// Requires:
// `region` is NULL or a region; `epoch` is NULL or an epoch; `options` is NULL or such a structure; `changes` can be
// written.
hugekit_status hugekit_region_changes(const struct hugekit_region *region,
                                      const struct hugekit_epoch *epoch,
                                      const struct hugekit_fork_options *options,
                                      struct hugekit_changes **changes);

// Bytes of the whole state. 0 for NULL, and once it is used up.
//
// Requires:
// NULL, or changes.
size_t hugekit_changes_len(const struct hugekit_changes *changes);

// Stores in `parts[0]` and on what may have changed, ascending, in whole granules but at both ends, as far as there is
// room for `room` of them, and in `*count` how many there are.
//
// Fails with `HUGEKIT_STATUS_INVALID` once it is used up.
//
// Requires:
// `changes` is NULL or changes; `parts` is NULL, if `room` is 0, or can be written; so can `count`.
hugekit_status hugekit_changes_parts(const struct hugekit_changes *changes,
                                     struct hugekit_part *parts,
                                     size_t room,
                                     size_t *count);

// Makes `len` bytes from `offset` on writable without a fault, as a system call or a device needs it: they are
// preserved, and count as written in the next state.
//
// Fails as `hugekit_snapshot_prepare_write` does.
//
// Requires:
// NULL, or changes.
hugekit_status hugekit_changes_prepare_write(const struct hugekit_changes *changes,
                                             size_t offset,
                                             size_t len);

// Gives what has changed to `take`, in order and up to 2 MiB at a time, and stores a handle of the epoch in `*epoch`,
// which began when the snapshot was taken. `take` may take its time: no thread waits for it.
//
// Fails with `HUGEKIT_STATUS_SYSTEM` and the errno that `take` returned; with `HUGEKIT_STATUS_LOST` if writers outran
// the snapshot or the memory was unmapped; with `HUGEKIT_STATUS_INVALID` once the changes are used up. They are used up
// then too, and there is no epoch.
//
// Requires:
// `changes` is NULL or changes; `epoch` can be written; `take` may be called with `context`.
hugekit_status hugekit_changes_write(const struct hugekit_changes *changes,
                                     hugekit_take take,
                                     void *context,
                                     struct hugekit_epoch **epoch);

// Frees the handle; changes that were not used up leave no epoch. Nothing happens for NULL, and nothing but the
// handle's end in a forked child.
//
// Requires:
// NULL, or changes that no thread uses any more.
void hugekit_changes_free(struct hugekit_changes *changes);

// As `hugekit_changes_prepare_write`, between two states.
//
// Requires:
// NULL, or an epoch.
hugekit_status hugekit_epoch_prepare_write(const struct hugekit_epoch *epoch, size_t offset, size_t len);

// Bytes that are written all the time, in whole granules: their writes take no fault until the next state, and they
// count as changed in that. 0 for NULL, and once it is used up.
//
// Requires:
// NULL, or an epoch.
size_t hugekit_epoch_unwatched(const struct hugekit_epoch *epoch);

// Frees the handle; an epoch that was not used up notes no writes any more. Nothing happens for NULL, and nothing but
// the handle's end in a forked child.
//
// Requires:
// NULL, or an epoch that no thread uses any more.
void hugekit_epoch_free(struct hugekit_epoch *epoch);

// A chain of states of `length` bytes, of which the first is saved in full. Stores its handle in `*chain`.
//
// Requires:
// `chain` can be written.
hugekit_status hugekit_chain_new(size_t length, struct hugekit_chain **chain);

// Frees the chain. Nothing happens for NULL.
//
// Requires:
// NULL, or a chain that no thread uses any more.
void hugekit_chain_free(struct hugekit_chain *chain);

// Writes changes to an open file as a delta, of those blocks of 4 KiB that have changed, and stores a handle of the
// epoch in `*epoch` and what was saved in `*saved`, which may be NULL. The changes are used up, and still to be freed.
// The descriptor stays the caller's, and is not synchronised: the state is saved once it is. Bytes in a file that was
// removed or written to afterwards, or in what cannot be read back, are not compared with: all that was written to in the
// memory is in the next delta then.
//
// The first state is saved in full, so that all of it has to be given: the changes of `hugekit_changes_first`, or of a
// region those without an epoch. So it has after a call that has failed, because there is no epoch then; the chain goes
// on from the last state that was saved.
//
// Fails with `HUGEKIT_STATUS_INVALID` if the chain's states have another length, if not all of a first state is given,
// or once the changes are used up; with `HUGEKIT_STATUS_SYSTEM` if the file fails; with `HUGEKIT_STATUS_LOST` if the
// snapshot is lost. There is no epoch then.
//
// Requires:
// `chain` is NULL or a chain, `changes` NULL or changes; the descriptor stays open meanwhile; `saved` is NULL or can be
// written; `epoch` can be written.
hugekit_status hugekit_chain_save(const struct hugekit_chain *chain,
                                  const struct hugekit_changes *changes,
                                  int descriptor,
                                  struct hugekit_saved *saved,
                                  struct hugekit_epoch **epoch);

// Brings `len` bytes of memory from the state `*base` to the one that a delta in an open file leads to, and stores that
// in `*state`, which may be NULL. `base` is NULL or all zeroes for a full delta. All of the delta is read and checked
// before a byte changes, from the descriptor's position on, so it must be a file that can be read twice; it stays the
// caller's.
//
// Fails with `HUGEKIT_STATUS_INVALID` for a delta that is damaged, truncated, of another base or of another length, and
// says where; with `HUGEKIT_STATUS_SYSTEM` if the file cannot be read.
//
// Requires:
// `memory` can be written, and no other thread accesses it meanwhile; the descriptor stays open; `base` is NULL or such
// a structure; `state` is NULL or can be written.
hugekit_status hugekit_delta_apply(void *memory,
                                   size_t len,
                                   const struct hugekit_state *base,
                                   int descriptor,
                                   struct hugekit_state *state);

// Makes a tender of one process, and stores its handle in `*tender`. Nothing of the process is changed yet.
// `options` may be NULL. Free it with `hugekit_tender_free`.
//
// Fails with `HUGEKIT_STATUS_INVALID` if there is no such process; with `HUGEKIT_STATUS_NOT_PERMITTED` if it is
// another user's; with `HUGEKIT_STATUS_CONFLICT` if it has another tender; with `HUGEKIT_STATUS_UNSUPPORTED` before
// Linux 6.1, and if the process has switched transparent huge pages off.
//
// Requires:
// `tender` can be written, `options` is NULL or its size is set.
hugekit_status hugekit_tender_new(const struct hugekit_tend_options *options,
                                  struct hugekit_tender **tender);

// Makes one pass now and fills `*report`, which may be NULL: what is nearly full is put on huge pages, as fast as
// the options allow. A program that is about to fork calls it before.
//
// Fails with `HUGEKIT_STATUS_INVALID` if the process is gone, and with `HUGEKIT_STATUS_CONFLICT` once
// `hugekit_tender_start` was called.
//
// Requires:
// `tender` is a tender, `report` is NULL or its size is set.
hugekit_status hugekit_tender_pass(struct hugekit_tender *tender,
                                   struct hugekit_tend_report *report);

// Tends in a thread of the library's from now on: a pass at once, one whenever the last forked child has ended, and
// one after a minute.
//
// Fails with `HUGEKIT_STATUS_CONFLICT` if that was asked before, and with `HUGEKIT_STATUS_NO_MEMORY` if there is no
// thread to be had; the tender can only be freed then.
//
// Requires:
// `tender` is a tender.
hugekit_status hugekit_tender_start(struct hugekit_tender *tender);

// What the tender that was started has done and seen; all of it 0 before its first pass.
//
// Requires:
// `tender` is a tender, and the size of `report` is set.
hugekit_status hugekit_tender_query(const struct hugekit_tender *tender, struct hugekit_tend_report *report);

// Stops tending within a tenth of a second; all memory stays as it is. Nothing happens for NULL.
//
// Requires:
// NULL, or a tender that no thread uses any more.
void hugekit_tender_free(struct hugekit_tender *tender);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HUGEKIT_H */
