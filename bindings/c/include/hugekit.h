/* hugekit: a huge-page memory engine for user space on Linux. Generated from bindings/c: do not edit.
 *
 * Link with -lhugekit (`pkg-config --cflags --libs hugekit`). C11 and C++17.
 *
 * UNITS      Sizes, lengths and offsets are bytes unless the name or the comment says pages.
 * ERRORS     Functions that can fail return a hugekit_status. After an error nothing is changed, unless the
 *            function says otherwise, and out parameters keep their values. hugekit_last_error(),
 *            hugekit_last_remedy() and hugekit_last_errno() tell the calling thread more. Null pointers, lengths
 *            that overflow, and numbers outside an enumeration are HUGEKIT_STATUS_INVALID.
 * REQUIRES   The library cannot check the conditions below "Requires:". The caller must keep them; otherwise the
 *            behaviour is undefined.
 * OWNERSHIP  Handles are made by ..._new, ..._fork, ..._snapshot, ..._pin, ..._view, ..._load, ..._get and ..._map.
 *            They belong to the caller, who frees them by ..._free, which accepts NULL. Texts belong to the library
 *            unless hugekit_string_free is named. Options, names and lists are read before a call returns and are not
 *            kept. A cancel flag and the context of a progress callback are used until the call returns.
 * VERSIONS   Structures begin with their size, which the caller sets: hugekit_options o = {.size = sizeof o}
 *            (in C++, hugekit_options o{}; o.size = sizeof o). Zero means the default. A program may be older
 *            or newer than the library. An option that the library does not know is HUGEKIT_STATUS_UNSUPPORTED;
 *            an answer that it does not know is zero.
 * THREADS    Several threads may call every function at the same time, also with the same handle, except ..._free,
 *            which must be the last. Each function states its rules for the memory itself.
 * FILES      Only functions with a file argument write files. The library reads /proc and /sys. Parallel work
 *            counts threads in /dev/shm/hugekit-threads.
 * SIGNALS    A signal handler may call only hugekit_cancel_set. Faults of memory that is cleared at its first touch,
 *            forked or snapshotted may be handled in place: by a handler of SIGBUS, and of SIGSEGV for forks on
 *            transparent huge pages. Install your own handlers before; they get all signals that are not hugekit's.
 *            No thread that touches such memory may block these signals, and no code may call mprotect(2) on it.
 *            Debuggers stop at each of these signals by default; hugekit.gdb configures GDB.
 * FORK       Children of fork(2) do not inherit the memory, except mappings of images. There functions return
 *            HUGEKIT_STATUS_FORKED, an access ends in SIGSEGV, and ..._free frees only the handle. New pools, images
 *            and mappings work.
 * MEMORY     If the heap has no room for a call, the call returns HUGEKIT_STATUS_NO_MEMORY and changes nothing, or it
 *            works on one thread. ..._free always works. Other threads that allocate at the same moment may use the
 *            room that a call has found; the process then ends as after a bug (PANICS).
 * CALLBACKS  A callback may call the library, also with the handle of its call. It may write the memory, and call
 *            fork(2) and exit(3). It must not fork, snapshot, retire or free the region or pool of its call, nor free
 *            another handle of the call. It must not leave by longjmp(3), because locks and threads of the library
 *            still use the frame of the call. pthread_exit(3) ends the thread, or the process (SIGABRT) if helpers
 *            depend on it.
 * PANICS     A bug in the library prints a message and ends the process (SIGABRT). It never unwinds into the
 *            caller. An exception that leaves a callback does the same.
 */


#ifndef HUGEKIT_H
#define HUGEKIT_H

#include <stddef.h>
#include <stdint.h>

// The version of this header.
#define HUGEKIT_VERSION "0.1.0"

// `hugekit_options.target` is set. Without this flag there is no target.
#define HUGEKIT_HAS_TARGET 1

// Helpers run only on CPUs that no other thread needs (`SCHED_IDLE`).
#define HUGEKIT_LOW_PRIORITY 2

// The first backing is required: `hugekit_pool_new` fails if it is not available. Without this
// flag the next backings are tried, and `hugekit_pool_fallbacks` returns the reasons.
#define HUGEKIT_POOL_STRICT 1

// Each region is populated when it is allocated, and each fork when it is made. Without this flag
// `hugekit_pool_new` populates all memory, so no region and no fork waits for it. Set the flag if
// the capacity is only an upper limit.
#define HUGEKIT_POOL_POPULATE_ON_ALLOCATION 2

// No thread clears memory in the background. Memory is cleared only by an allocation or by
// `hugekit_pool_scrub`.
#define HUGEKIT_POOL_NO_SCRUBBER 4

// Core dumps do not contain the bytes of regions. Without this flag they do.
#define HUGEKIT_POOL_NOT_IN_CORE_DUMPS 8

// The pool uses the file `hugekit_pool_options.file`. Another process has made and populated this
// file; `hugekit lease` passes such a file, for example. The call checks that the file is memory,
// that its length cannot change, and that its length is the capacity.
//
// The caller guarantees that all bytes of the file are zero, and that no other code writes to the
// file as long as the pool or one of its regions exists. `hugekit_pool_new` closes the descriptor,
// also on failure, unless it refuses the options structure itself.
#define HUGEKIT_POOL_ADOPT 16

// A low-priority thread also copies granules aside. Writers then have fewer faults, but some of
// these copies may be unnecessary.
#define HUGEKIT_SNAPSHOT_IN_BACKGROUND 1

// Only count huge units. Read nothing of the file, and change nothing.
#define HUGEKIT_WARM_CHECK 1

// Fill holes of the file with memory, too. Without this flag, 2 MiB without data are skipped.
#define HUGEKIT_WARM_FILL_HOLES 2

// The result of a call. Every status except `HUGEKIT_STATUS_OK` is an error: no handle was made,
// nothing was changed unless the function documents a change, and `hugekit_last_error` returns the
// reason.
enum hugekit_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The call succeeded.
    HUGEKIT_STATUS_OK = 0,
    // An argument is invalid, for example a null pointer, a range outside, or a wrong size of a
    // structure.
    HUGEKIT_STATUS_INVALID = 1,
    // Memory, huge pages, addresses or mappings are not sufficient.
    HUGEKIT_STATUS_NO_MEMORY = 2,
    // This process lacks a permission.
    HUGEKIT_STATUS_NOT_PERMITTED = 3,
    // This kernel, CPU, kind of memory or version of the library does not support the call.
    HUGEKIT_STATUS_UNSUPPORTED = 4,
    // Another part of this process is in conflict, for example another handler of SIGBUS or
    // SIGSEGV.
    HUGEKIT_STATUS_CONFLICT = 5,
    // The work was cancelled. `hugekit_last_done` returns the bytes that are done.
    HUGEKIT_STATUS_CANCELLED = 6,
    // The object belongs to the parent process; this process is a forked child.
    HUGEKIT_STATUS_FORKED = 7,
    // The kernel refused a call for another reason. `hugekit_last_errno` returns the kernel's
    // errno.
    HUGEKIT_STATUS_SYSTEM = 8,
    // The snapshot is lost: writers changed more memory than the snapshot may hold, or the memory
    // was unmapped or discarded.
    HUGEKIT_STATUS_LOST = 9,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_status hugekit_status;
#else
typedef int32_t hugekit_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The next use of memory, as far as the caller knows.
enum hugekit_reuse
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The next use is not known. With a target, the same as `HUGEKIT_REUSE_TARGET`. Without a
    // target, the length decides if the bytes stream past the cache.
    HUGEKIT_REUSE_UNKNOWN = 0,
    // The bytes around the target are used next, or the bytes at the start if there is no target.
    // The rest streams past the cache.
    HUGEKIT_REUSE_TARGET = 1,
    // All bytes are used soon. As many bytes as fit into the cache stay there, beginning with the
    // bytes around the target.
    HUGEKIT_REUSE_ALL = 2,
    // No thread uses the bytes soon. All of them stream past the cache.
    HUGEKIT_REUSE_NONE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_reuse hugekit_reuse;
#else
typedef uint32_t hugekit_reuse;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The backings of a pool: kinds of pages, the fastest first.
enum hugekit_backing
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Only for an option: `HUGEKIT_BACKING_HUGETLB2M`, or the next backing that is available.
    HUGEKIT_BACKING_DEFAULT = 0,
    // Reserved huge pages of 1 GiB. Pools use them only on request, because the kernel can only
    // map, release and protect whole pages of 1 GiB.
    HUGEKIT_BACKING_HUGETLB1G = 1,
    // Reserved huge pages of 2 MiB.
    HUGEKIT_BACKING_HUGETLB2M = 2,
    // Shared memory on transparent huge pages.
    HUGEKIT_BACKING_THP = 3,
    // Shared memory on base pages. Every machine supports this backing; mapping it is slowest.
    HUGEKIT_BACKING_BASE = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_backing hugekit_backing;
#else
typedef uint32_t hugekit_backing;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The moment at which dirty memory is cleared for its next owner.
enum hugekit_clearing
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // For a pool: at allocation. For a region: as for its pool.
    HUGEKIT_CLEARING_DEFAULT = 0,
    // Before the allocation returns, by several threads. Every access then works as for ordinary
    // memory.
    HUGEKIT_CLEARING_ON_ALLOCATION = 1,
    // At the first access to each page. The bytes near the accessed address stay in the cache.
    // Needs userfaultfd(2).
    HUGEKIT_CLEARING_ON_FAULT = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_clearing hugekit_clearing;
#else
typedef uint32_t hugekit_clearing;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The NUMA nodes that provide a pool's memory.
enum hugekit_nodes
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The nodes of the memory policy of the populating thread. `numactl` sets such a policy, for
    // example.
    HUGEKIT_NODES_PROCESS = 0,
    // The node of the CPU that populates the memory.
    HUGEKIT_NODES_LOCAL = 1,
    // Only the nodes of the list. Populating fails if they have no memory left.
    HUGEKIT_NODES_BIND = 2,
    // The nodes of the list in turn, page by page.
    HUGEKIT_NODES_INTERLEAVE = 3,
    // The one node of the list, and other nodes if it has no memory left.
    HUGEKIT_NODES_PREFERRED = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_nodes hugekit_nodes;
#else
typedef uint32_t hugekit_nodes;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The mode of fault handling, for memory that is cleared at its first access, forked or
// snapshotted.
enum hugekit_fault_mode
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // For an option: threaded if this process may handle faults of system calls and of KVM,
    // otherwise in place. In an answer: the library handles no faults of this memory.
    HUGEKIT_FAULT_MODE_DEFAULT = 0,
    // In place: the faulting thread handles the fault, in a handler of SIGBUS or SIGSEGV. A system
    // call that writes to the memory fails with EFAULT unless the program called
    // `hugekit_region_prepare_write` before. KVM guests exit at such a fault, so do not use this
    // mode for guest memory.
    HUGEKIT_FAULT_MODE_IN_PLACE = 1,
    // Threaded: threads of the library handle the faults. An access may wait longer; the program
    // sees no other difference.
    HUGEKIT_FAULT_MODE_THREADED = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_fault_mode hugekit_fault_mode;
#else
typedef uint32_t hugekit_fault_mode;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The uses of userfaultfd(2) that are permitted to this process.
enum hugekit_userfaultfd
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // No use, or unknown.
    HUGEKIT_USERFAULTFD_NONE = 0,
    // Faults of the program's own code, handled in place. System calls that write to such memory
    // fail with EFAULT.
    HUGEKIT_USERFAULTFD_USER_FAULTS = 1,
    // All faults, including those of system calls and of KVM.
    HUGEKIT_USERFAULTFD_ALL_FAULTS = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_userfaultfd hugekit_userfaultfd;
#else
typedef uint32_t hugekit_userfaultfd;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The granule: the number of bytes that the first write to a granule copies.
enum hugekit_granule
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // 2 MiB if some of the memory is on transparent huge pages, otherwise 64 KiB.
    HUGEKIT_GRANULE_DEFAULT = 0,
    // 2 MiB. Huge pages stay whole.
    HUGEKIT_GRANULE_HUGE = 1,
    // 64 KiB. A write waits less. Huge pages are split, so writers later have more faults and TLB
    // misses.
    HUGEKIT_GRANULE_SMALL = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_granule hugekit_granule;
#else
typedef uint32_t hugekit_granule;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The reason why units of a file are not huge.
enum hugekit_warm_reason
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // All units are huge.
    HUGEKIT_WARM_REASON_NONE = 0,
    // The call was only a check.
    HUGEKIT_WARM_REASON_NOT_MADE = 1,
    // The file system makes no huge pages in the page cache.
    HUGEKIT_WARM_REASON_FILE_SYSTEM = 2,
    // Other processes have mapped the file on smaller pages.
    HUGEKIT_WARM_REASON_MAPPED = 3,
    // The pages are being read or written, or a process that this user may not inspect has mapped
    // them.
    HUGEKIT_WARM_REASON_BUSY = 4,
    // The kernel found no free blocks of 2 MiB.
    HUGEKIT_WARM_REASON_FRAGMENTED = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hugekit_warm_reason hugekit_warm_reason;
#else
typedef uint32_t hugekit_warm_reason;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A flag that asks work to stop. Made by `hugekit_cancel_new`.
typedef struct hugekit_cancel hugekit_cancel;

// A chain of deltas: states of some memory, saved one after the other as changes. To find changes,
// the chain keeps a tag of each block of 4 KiB, in 24 bytes of memory. The chain keeps at most 64
// files of earlier states open. Made by `hugekit_chain_new`.
typedef struct hugekit_chain hugekit_chain;

// The bytes of a state of memory that changed since the previous state. For the first state, all
// bytes. Made by `hugekit_changes_first` and `hugekit_changes_since`, for a region by
// `hugekit_region_changes`. `hugekit_changes_write` and `hugekit_chain_save` consume the changes
// and make an epoch.
typedef struct hugekit_changes hugekit_changes;

// The time since a state was saved. During an epoch, the library records the granules that are
// written; the first write to each granule costs one fault. `hugekit_changes_since` and
// `hugekit_region_changes` consume the epoch.
typedef struct hugekit_epoch hugekit_epoch;

// Sealed memory that no process can change, and that many processes map privately. Made by
// `hugekit_image_load` and `hugekit_image_get`.
typedef struct hugekit_image hugekit_image;

// An image as the private memory of this process. Made by `hugekit_image_map`.
typedef struct hugekit_mapping hugekit_mapping;

// A range of a region that forks and snapshots copy at once. Made by `hugekit_region_pin`.
typedef struct hugekit_pin hugekit_pin;

// A pool of memory that is zeroed when a region is allocated. Made by `hugekit_pool_new`.
typedef struct hugekit_pool hugekit_pool;

// Zeroed memory of a pool, committed and mapped. Made by `hugekit_region_new` and
// `hugekit_region_fork`.
typedef struct hugekit_region hugekit_region;

// Populated memory for the copies of granules, which one snapshot after another uses. Made by
// `hugekit_reserve_new`.
typedef struct hugekit_reserve hugekit_reserve;

// The bytes of memory at one moment, while threads continue to write. Made by
// `hugekit_snapshot_new` and `hugekit_region_snapshot`.
typedef struct hugekit_snapshot hugekit_snapshot;

// The bytes of a snapshot, mapped at addresses of their own. Made by `hugekit_snapshot_view`.
typedef struct hugekit_view hugekit_view;

// A part of the bytes of a call.
typedef struct hugekit_part {
    // The start in bytes.
    size_t offset;
    // The length in bytes.
    size_t len;
} hugekit_part;

// A callback that is called as `progress(done, total, context)`, in bytes, after every piece. The
// thread that processed the piece calls it: the calling thread or a helper. Calls do not overlap,
// and `done` ascends. Other threads wait for the call, so the callback should be short. It must
// return normally: an exception that leaves it ends the process.
typedef void (*hugekit_progress)(size_t done, size_t total, void *context);

// Options of work on memory. Zero means the default everywhere: set `size` and the fields that you
// need.
typedef struct hugekit_options {
    // `sizeof(hugekit_options)`.
    size_t size;
    // The number of threads, the calling thread included. 0: as many as are useful. The call uses
    // no more threads than there are allowed CPUs, or pieces that are long enough for a thread.
    size_t threads;
    // Called after every piece. NULL: no callback.
    hugekit_progress progress;
    // Passed to `progress` unchanged.
    void *context;
    // The flag that stops the work early, or NULL.
    const struct hugekit_cancel *cancel;
    // `HUGEKIT_HAS_TARGET`, `HUGEKIT_LOW_PRIORITY`, or both.
    uint32_t flags;
    // A `hugekit_reuse`: the next use of the written memory. `hugekit_populate` does not use it.
    uint32_t reuse;
    // A `hugekit_reuse`: the next use of the source. Only `hugekit_copy_with` uses it.
    uint32_t source_reuse;
    // Zero. Anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    uint32_t reserved;
    // The byte that is used next, as an offset in bytes from the start. `HUGEKIT_HAS_TARGET` must
    // be set.
    size_t target;
} hugekit_options;

// A report of completed work.
typedef struct hugekit_report {
    // `sizeof(hugekit_report)`, set by the caller.
    size_t size;
    // Bytes that are done: all bytes of the request.
    size_t bytes;
    // Threads that shared the work, the calling thread included.
    size_t threads;
    // Threads that processed at least one piece. The other threads started too late.
    size_t took_part;
} hugekit_report;

// Facts about the machine that programs may need. Unknown facts are 0. `hugekit_doctor` returns
// more facts.
typedef struct hugekit_machine {
    // `sizeof(hugekit_machine)`, set by the caller.
    size_t size;
    // Bytes of a base page.
    size_t page_size;
    // CPUs that the calling thread may run on.
    size_t allowed_cpus;
    // The number of NUMA nodes.
    size_t nodes;
    // Bytes of memory.
    uint64_t memory_total;
    // Bytes of memory that are available without swapping.
    uint64_t memory_available;
    // Bytes of a core's second-level cache.
    size_t l2_bytes;
    // Bytes of the last-level cache.
    size_t llc_bytes;
    // Reserved huge pages of 2 MiB.
    uint64_t huge_2m_total;
    // Reserved huge pages of 2 MiB that are free and not promised to a mapping.
    uint64_t huge_2m_free;
    // Reserved huge pages of 1 GiB.
    uint64_t huge_1g_total;
    // Reserved huge pages of 1 GiB that are free and not promised to a mapping.
    uint64_t huge_1g_free;
    // A `hugekit_userfaultfd`. Forks, snapshots and clearing at the first access need it.
    uint32_t userfaultfd;
    // Zero.
    uint32_t reserved;
} hugekit_machine;

// The built-in thresholds that choose routines and threads.
typedef struct hugekit_profile {
    // `sizeof(hugekit_profile)`, set by the caller.
    size_t size;
    // Bytes around a target that stay in the cache.
    size_t near_bytes;
    // Bytes that stay in the cache if all of the memory is used next.
    size_t near_bytes_all;
    // Shortest length in bytes that is divided among threads, if the options do not set the number
    // of threads.
    size_t parallel_from;
    // Shortest piece in bytes. Dividing shorter lengths costs more than it saves.
    size_t min_chunk;
    // The highest number of threads, if the options do not set the number of threads.
    size_t thread_cap;
} hugekit_profile;

// Options of a pool. Zero means the default everywhere: set `size` and the fields that you need.
typedef struct hugekit_pool_options {
    // `sizeof(hugekit_pool_options)`.
    size_t size;
    // A `hugekit_backing`: the first backing to try.
    uint32_t backing;
    // Flags such as `HUGEKIT_POOL_STRICT`.
    uint32_t flags;
    // Threads that populate the pool, and that later clear or populate regions. 0: as many as are
    // useful.
    size_t threads;
    // Called after every piece that `hugekit_pool_new` populates. NULL: no callback.
    hugekit_progress progress;
    // Passed to `progress` unchanged.
    void *context;
    // The scrubber starts when fewer than this many bytes are clean. 0 in both fields: the
    // scrubber clears all dirty memory, but slowly while regions are allocated and freed.
    size_t scrub_below;
    // The scrubber stops when this many bytes are clean.
    size_t scrub_up_to;
    // Low-priority threads that clear in the background. 0: one.
    size_t scrub_threads;
    // A `hugekit_clearing` for regions that do not set their own.
    uint32_t clearing;
    // A `hugekit_nodes`: the NUMA nodes of the memory.
    uint32_t nodes;
    // The list of nodes, if `nodes` needs a list. Read before `hugekit_pool_new` returns.
    const uint32_t *node_list;
    // The length of the list.
    size_t node_count;
    // The name of the pool in `/proc/self/maps`: `/memfd:hugekit:NAME`. NULL: `"pool"`.
    const char *name;
    // The socket of a `hugekit broker` from which the memory is leased, or NULL. The capacity must
    // be the size of a unit of the broker. The broker must run as root or as this process's user.
    const char *broker;
    // The descriptor of the memory, if `HUGEKIT_POOL_ADOPT` is set.
    int32_t file;
    // Zero.
    uint32_t reserved;
} hugekit_pool_options;

// The state of a pool at one moment. States are counted in pages of the backing. Work is counted
// in bytes since the pool was made.
typedef struct hugekit_stats {
    // `sizeof(hugekit_stats)`, set by the caller.
    size_t size;
    // Bytes of a page of the backing.
    size_t page_size;
    // Pages that are not populated yet.
    size_t holes;
    // Pages that are clean and free.
    size_t clean;
    // Pages of regions, and pages that are being cleared or populated for a region.
    size_t in_use;
    // Pages that contain bytes of their last owner.
    size_t dirty;
    // Pages that are base pages because no huge page was free.
    size_t fragmented;
    // Bytes cleared by the scrubber's threads.
    uint64_t scrubbed_in_background;
    // Bytes cleared when a region was allocated.
    uint64_t scrubbed_at_allocation;
    // Bytes cleared by `hugekit_pool_scrub`.
    uint64_t scrubbed_on_request;
    // Bytes cleared when a part of a region was released.
    uint64_t scrubbed_at_release;
    // Bytes cleared at the first access.
    uint64_t scrubbed_at_fault;
    // Bytes that the pool asked the kernel to populate.
    uint64_t populated;
    // Regions that were allocated.
    uint64_t allocations;
    // Allocated regions that waited until the scrubber finished a piece.
    uint64_t waits;
} hugekit_stats;

// Options of a region. Zero means the default everywhere: set `size` and the fields that you need.
typedef struct hugekit_region_options {
    // `sizeof(hugekit_region_options)`.
    size_t size;
    // Threads that clear or populate at allocation. 0: the number of the pool.
    size_t threads;
    // Called with the bytes of each extent that are cleared or populated. NULL: no callback.
    hugekit_progress progress;
    // Passed to `progress` unchanged.
    void *context;
    // A `hugekit_clearing`: the moment at which dirty memory is cleared.
    uint32_t clearing;
    // A `hugekit_fault_mode` for memory that is cleared at its first access.
    uint32_t fault_mode;
    // Threads for `HUGEKIT_FAULT_MODE_THREADED`; 0: one.
    size_t handler_threads;
} hugekit_region_options;

// Options of a fork. The options of a region's first fork apply to its later forks, and to forks
// of forks.
typedef struct hugekit_fork_options {
    // `sizeof(hugekit_fork_options)`.
    size_t size;
    // The granule: the number of bytes that one copy contains, a power of two. On reserved huge
    // pages, only a page of the backing is possible; on other backings, a base page up to 2 MiB.
    // 0: a page of the backing, or 64 KiB on base pages.
    size_t granule;
    // The highest number of mappings of the process that copies of the fork group may use. 0: half
    // of `vm.max_map_count`, for all fork groups together.
    size_t max_vmas;
    // A `hugekit_fault_mode` for the fork group.
    uint32_t fault_mode;
    // Zero. Anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    uint32_t reserved;
    // Threads for `HUGEKIT_FAULT_MODE_THREADED`; 0: one.
    size_t handler_threads;
} hugekit_fork_options;

// Options of a snapshot. Zero means the default everywhere: set `size` and the fields that you
// need.
typedef struct hugekit_snapshot_options {
    // `sizeof(hugekit_snapshot_options)`.
    size_t size;
    // A `hugekit_fault_mode` for writers. Snapshots of the same memory must have the same mode.
    uint32_t fault_mode;
    // A `hugekit_granule`: the bytes that one write copies.
    uint32_t granule;
    // Threads for `HUGEKIT_FAULT_MODE_THREADED`; 0: one.
    size_t handler_threads;
    // The highest number of bytes of copies that the snapshot may hold at a time, in whole
    // granules. If writers need more, the writers continue, the snapshot is lost, and
    // `hugekit_last_remedy` names a value that works.
    //
    // 0: the length of the memory, so writers never need more. If less memory is available when
    // the snapshot is taken, on the machine or in the control group, the limit is the available
    // memory, but at least 64 MiB. The limit is never lower than the length of `reserve`.
    size_t max_cow_bytes;
    // Bytes for copies that are populated before the snapshot is taken, so that no write waits for
    // this memory. 0: none.
    size_t populate_copies;
    // `HUGEKIT_SNAPSHOT_IN_BACKGROUND`, or 0.
    uint32_t flags;
    // Zero. Anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    uint32_t reserved;
    // A reserve, whose memory the copies use first, or NULL. Snapshots that exist at the same time
    // share the reserve. If other snapshots use all of the reserve, copies use new memory.
    const struct hugekit_reserve *reserve;
} hugekit_snapshot_options;

// A range of memory.
typedef struct hugekit_range {
    // The start of the range.
    const void *memory;
    // The length in bytes.
    size_t len;
} hugekit_range;

// The costs of a snapshot until now, or until it ended.
typedef struct hugekit_snapshot_stats {
    // `sizeof(hugekit_snapshot_stats)`, set by the caller.
    size_t size;
    // Granules of the snapshot.
    size_t granules;
    // Bytes of a granule.
    size_t granule_bytes;
    // Granules that writers copied.
    uint64_t copied_by_writers;
    // Granules that other code copied: `hugekit_snapshot_prepare_write`, the background thread, or
    // the call that took the snapshot.
    uint64_t copied_by_others;
    // Bytes of the copies that exist now.
    size_t retained;
    // The highest number of bytes of copies at any moment.
    size_t most_retained;
    // The limit of the bytes of copies.
    size_t cap;
    // The longest time in nanoseconds that one write waited for a copy, without the time to
    // deliver a signal.
    uint64_t longest_fault_ns;
    // Bytes of `cap` that were allocated in advance, in a reserve or in a region's pool.
    size_t reserved;
} hugekit_snapshot_stats;

// A callback that receives `len` bytes of a state, from `offset` on. It returns 0 to continue, or
// an errno to stop.
typedef int32_t (*hugekit_take)(size_t offset, const void *bytes, size_t len, void *context);

// The ID of a state of a chain. Two states with the same ID have the same bytes. All zeroes mean
// no state.
typedef struct hugekit_state {
    uint8_t number[16];
} hugekit_state;

// The result of a save. Set `size` before the call.
typedef struct hugekit_saved {
    // `sizeof(hugekit_saved)`.
    size_t size;
    // The ID of the state.
    struct hugekit_state state;
    // Bytes of the changed blocks of 4 KiB.
    uint64_t changed;
    // Bytes that were written to the file.
    uint64_t written;
    // 1 if the delta contains the whole state, so that it can be applied to any memory; otherwise
    // 0.
    uint32_t is_full;
    // Zero.
    uint32_t reserved;
} hugekit_saved;

// Options of a load. Zero means the default everywhere: set `size` and the fields that you need.
typedef struct hugekit_image_options {
    // `sizeof(hugekit_image_options)`.
    size_t size;
    // The paths of deltas of the memory file, the oldest first, or NULL.
    const char *const *deltas;
    // The number of these paths.
    size_t delta_count;
    // The state of a raw memory file. A first delta that begins with another state is refused. All
    // zeroes: the first delta may begin with any state of the same length.
    struct hugekit_state state;
    // The name of the image in `/proc/self/maps`: `/memfd:hugekit:NAME`. NULL: `"image"`.
    const char *name;
    // Threads that read a raw memory file. 0: as many as are useful. Deltas are applied by one
    // thread.
    size_t threads;
    // Called with the bytes of the sources that were read, and the bytes of all sources. NULL: no
    // callback.
    hugekit_progress progress;
    // Passed to `progress` unchanged.
    void *context;
    // The flag that stops the load early, or NULL.
    const struct hugekit_cancel *cancel;
    // Zero. Anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    uint32_t reserved;
} hugekit_image_options;

// The size of an image, in bytes.
typedef struct hugekit_image_facts {
    // `sizeof(hugekit_image_facts)`, set by the caller.
    size_t size;
    // The length of the image.
    uint64_t bytes;
    // Bytes that are populated. The other bytes are zero.
    uint64_t present;
    // Bytes that were on huge pages when the image was loaded.
    uint64_t huge;
} hugekit_image_facts;

// Options of `hugekit_warm`. Zero means the default everywhere: set `size` and the fields that you
// need.
typedef struct hugekit_warm_options {
    // `sizeof(hugekit_warm_options)`.
    size_t size;
    // `HUGEKIT_WARM_` flags.
    uint32_t flags;
    // Zero. Anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    uint32_t reserved;
    // Called after each 64 MiB with the bytes that were read again, and all bytes. NULL: no
    // callback.
    hugekit_progress progress;
    // Passed to `progress` unchanged.
    void *context;
    // The flag that stops the call early, or NULL.
    const struct hugekit_cancel *cancel;
} hugekit_warm_options;

// The page cache of a file, after a check or a warm-up. A unit is an aligned 2 MiB of the file.
typedef struct hugekit_warm_report {
    // `sizeof(hugekit_warm_report)`, set by the caller.
    size_t size;
    // Units of the file that are not holes.
    uint64_t units;
    // Units that are huge.
    uint64_t huge;
    // Units that were huge before the call.
    uint64_t already_huge;
    // Units without data, which were skipped.
    uint64_t holes;
    // A `hugekit_warm_reason`: the reason if `huge` is less than `units`.
    uint32_t reason;
} hugekit_warm_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the reason of this thread's last failed call, in English with figures. Returns the empty
// string if no call has failed. If the heap had no room for the reason, the text says only that.
// Never NULL. The text is valid until the thread's next failed call; successful calls do not
// change it.
const char *hugekit_last_error(void);

// Returns a step by which an administrator or the program can prevent the error of
// `hugekit_last_error`, for example a command for root. Returns the empty string if no step is
// known. Never NULL. The text is valid as long as the text of `hugekit_last_error`.
const char *hugekit_last_remedy(void);

// Returns the kernel's `errno` of the call of `hugekit_last_error`. Returns 0 if the kernel was
// not called, or if its errno is not known.
int32_t hugekit_last_errno(void);

// Returns the parts that the call of `hugekit_last_error` had processed before it was cancelled or
// before it failed. Offsets are relative to the bytes of the call, or to the region if the call
// has a region. Parts ascend. The bytes between two parts are not done.
//
// Writes the first `room` parts to `parts`, and returns the number of all parts. `parts` may be
// NULL if `room` is 0. Returns 0 if nothing was done, or if the call does not clear, copy or
// populate.
//
// Requires:
// `parts` is NULL, or `room` parts can be written to it.
size_t hugekit_last_done(struct hugekit_part *parts, size_t room);

// Returns the name of a status, for example `"no memory"`. Returns `"unknown status"` for any
// other number. The text is static.
const char *hugekit_status_name(int32_t status);

// Returns the version of the library, for example `"0.1.0"`. The text is static. `HUGEKIT_VERSION`
// is the version of the header.
const char *hugekit_version(void);

// Makes a flag that is not set. Returns NULL, which means no flag, if the heap has no room. Free
// the flag with `hugekit_cancel_free` after all calls that use it have returned.
struct hugekit_cancel *hugekit_cancel_new(void);

// Sets the flag. A set flag cannot be unset. Operations that use the flag stop after their current
// pieces. Any thread and any signal handler may call this. Does nothing for NULL.
//
// Requires:
// `cancel` is NULL, or a flag that is not freed.
void hugekit_cancel_set(const struct hugekit_cancel *cancel);

// Frees the flag. Does nothing for NULL.
//
// Requires:
// `cancel` is NULL, or a flag that no thread uses any more.
void hugekit_cancel_free(struct hugekit_cancel *cancel);

// Sets `len` bytes at `memory` to zero, on the calling thread, by the routine that is fastest for
// this length. `memory` may be NULL if `len` is 0.
//
// Requires:
// The memory can be written. During the call no other thread accesses it.
hugekit_status hugekit_clear(void *memory, size_t len);

// Sets `len` bytes at `memory` to zero, with options: next use, several threads, progress.
// `options` and `report` may be NULL.
//
// Fails with `HUGEKIT_STATUS_INVALID` for a target outside the memory or an unknown option; the
// memory is unchanged then. Fails with `HUGEKIT_STATUS_CANCELLED` if the work is cancelled; some
// bytes may be zero then.
//
// Requires:
// The memory can be written. During the call no other thread accesses it. `options` is NULL or
// such a structure, and its flag is not freed during the call. `report` is NULL or such a
// structure.
hugekit_status hugekit_clear_with(void *memory,
                                  size_t len,
                                  const struct hugekit_options *options,
                                  struct hugekit_report *report);

// Copies `len` bytes from `from` to `to`, on the calling thread, by the routine that is fastest
// for this length. `from` and `to` may be NULL if `len` is 0.
//
// Fails with `HUGEKIT_STATUS_INVALID` if source and destination overlap; nothing is written then.
//
// Requires:
// `from` can be read and `to` can be written. During the call no other thread writes to `from` or
// `to`, or reads from `to`.
hugekit_status hugekit_copy(void *to, const void *from, size_t len);

// Copies as `hugekit_copy` does, with options: next use of source and destination, several
// threads, progress. `options` and `report` may be NULL. Fails as `hugekit_copy` and
// `hugekit_clear_with` do.
//
// Requires:
// `from` can be read and `to` can be written. During the call no other thread writes to `from` or
// `to`, or reads from `to`. `options` is NULL or such a structure, and its flag is not freed
// during the call. `report` is NULL or such a structure.
hugekit_status hugekit_copy_with(void *to,
                                 const void *from,
                                 size_t len,
                                 const struct hugekit_options *options,
                                 struct hugekit_report *report);

// Populates every page that contains a byte of the memory, writable, on several threads
// (`MADV_POPULATE_WRITE`). The content of the memory does not change. Any address is allowed.
// `options` and `report` may be NULL.
//
// Fails with:
// - `HUGEKIT_STATUS_INVALID` if a part of the memory is not mapped or cannot be written.
// - `HUGEKIT_STATUS_NO_MEMORY` if memory is short.
// - `HUGEKIT_STATUS_UNSUPPORTED` before Linux 5.14.
//
// Pages that were populated before the error stay populated.
//
// Requires:
// `options` is NULL or such a structure, and its flag is not freed during the call. `report` is
// NULL or such a structure.
hugekit_status hugekit_populate(void *memory,
                                size_t len,
                                const struct hugekit_options *options,
                                struct hugekit_report *report);

// Fills `machine` with the facts at this moment. The call reads `/proc` and `/sys`, and lasts at
// most a millisecond.
//
// Requires:
// `machine` is a `hugekit_machine` whose size is set.
hugekit_status hugekit_machine_query(struct hugekit_machine *machine);

// Stores in `*text` the output of `hugekit doctor --json`: findings with verdicts and remedies, as
// JSON in UTF-8. Free the text with `hugekit_string_free`.
//
// Requires:
// `text` can be written.
hugekit_status hugekit_doctor(char **text);

// Frees a text of the library. Does nothing for NULL.
//
// Requires:
// `text` is NULL, or a text of the library that was not freed before.
void hugekit_string_free(char *text);

// Fills `profile` with the thresholds in use.
//
// Requires:
// `profile` is a `hugekit_profile` whose size is set.
hugekit_status hugekit_profile_query(struct hugekit_profile *profile);

// Returns the name of the routine that would clear `len` bytes now, without options, for example
// `"memset"` or `"avx2_streaming"`. The text is static.
const char *hugekit_clear_routine(size_t len);

// Returns the name of the routine that would copy `len` bytes now, without options. The text is
// static.
const char *hugekit_copy_routine(size_t len);

// Switches learning on or off: clears and copies of this process find the fastest routine by
// timing their own work. By default on. With 0, timings are kept but not used. Any thread may call
// this at any time.
void hugekit_set_learning(int enabled);

// Discards all timings: the next operations begin as in a new process.
void hugekit_forget_learned(void);

// Makes a pool of `capacity` bytes, rounded up to a multiple of the backing's page. Populates all
// of the pool in parallel, and stores its handle in `*pool`. `options` may be NULL. Free the pool
// with `hugekit_pool_free`.
//
// Fails with:
// - `HUGEKIT_STATUS_NO_MEMORY` if memory or huge pages are short, or a control group's limit is
//   too low. The call checks this before it populates.
// - `HUGEKIT_STATUS_UNSUPPORTED` if the kernel has no such pages.
// - `HUGEKIT_STATUS_INVALID` for a capacity of 0 or an unknown option.
//
// Requires:
// `pool` can be written. `options` is NULL or such a structure. Its texts are NULL or end with a
// zero byte. Its list is as long as `node_count`. With `HUGEKIT_POOL_ADOPT`, its file meets the
// conditions of that flag.
hugekit_status hugekit_pool_new(size_t capacity,
                                const struct hugekit_pool_options *options,
                                struct hugekit_pool **pool);

// Frees the handle. The pool exists until its last region is freed. Does nothing for NULL. In a
// forked child the call frees only the handle.
//
// Requires:
// `pool` is NULL, or a pool that no thread uses any more.
void hugekit_pool_free(struct hugekit_pool *pool);

// Returns a `hugekit_backing`: the backing of the pool. 0 for NULL.
//
// Requires:
// `pool` is NULL or a pool.
uint32_t hugekit_pool_backing(const struct hugekit_pool *pool);

// Returns the backings that were tried before, one per line, each with the reason why it was not
// used. Returns the empty string if the pool uses the first backing. Never NULL. The text is valid
// as long as the handle.
//
// Requires:
// `pool` is NULL or a pool.
const char *hugekit_pool_fallbacks(const struct hugekit_pool *pool);

// Returns the capacity of the pool in bytes. 0 for NULL.
//
// Requires:
// `pool` is NULL or a pool.
size_t hugekit_pool_capacity(const struct hugekit_pool *pool);

// Returns the page size of the backing in bytes. Every region consists of whole pages. 0 for NULL.
//
// Requires:
// `pool` is NULL or a pool.
size_t hugekit_pool_page_size(const struct hugekit_pool *pool);

// Fills `stats` with the state of the pool at this moment. Fails with `HUGEKIT_STATUS_FORKED` in a
// forked child.
//
// Requires:
// `pool` is NULL or a pool. `stats` is a `hugekit_stats` whose size is set.
hugekit_status hugekit_pool_stats(const struct hugekit_pool *pool, struct hugekit_stats *stats);

// Clears all memory that is dirty now, with the pool's threads, and stores the number of cleared
// bytes in `*bytes`, which may be NULL. Fails with `HUGEKIT_STATUS_FORKED` in a forked child.
//
// Requires:
// `pool` is NULL or a pool. `bytes` is NULL or can be written.
hugekit_status hugekit_pool_scrub(const struct hugekit_pool *pool, uint64_t *bytes);

// Stops the scrubber until `hugekit_pool_resume_scrubbing` is called. Returns when the scrubber
// has stopped. Fails with `HUGEKIT_STATUS_FORKED` in a forked child.
//
// Requires:
// `pool` is NULL or a pool.
hugekit_status hugekit_pool_pause_scrubbing(const struct hugekit_pool *pool);

// Starts the scrubber again after `hugekit_pool_pause_scrubbing`. Fails with
// `HUGEKIT_STATUS_FORKED` in a forked child.
//
// Requires:
// `pool` is NULL or a pool.
hugekit_status hugekit_pool_resume_scrubbing(const struct hugekit_pool *pool);

// Allocates `len` zeroed bytes of the pool, contiguous, rounded up to a multiple of the backing's
// page, and stores the handle in `*region`. `options` may be NULL. Free the region with
// `hugekit_region_free`.
//
// Fails with:
// - `HUGEKIT_STATUS_NO_MEMORY` if the pool has no contiguous free memory of this length. After a
//   success, accesses never fail for lack of memory.
// - `HUGEKIT_STATUS_INVALID` for a length of 0, and `HUGEKIT_STATUS_FORKED` in a forked child.
// - `HUGEKIT_STATUS_NOT_PERMITTED` if `HUGEKIT_CLEARING_ON_FAULT` is set and the process may not
//   handle faults.
//
// After an error the pool is unchanged.
//
// Children of fork(2) do not inherit the memory: an access in a child ends in SIGSEGV.
//
// Requires:
// `pool` is NULL or a pool. `region` can be written. `options` is NULL or such a structure.
hugekit_status hugekit_region_new(const struct hugekit_pool *pool,
                                  size_t len,
                                  const struct hugekit_region_options *options,
                                  struct hugekit_region **region);

// Returns the memory to the pool, which clears the memory before another region gets it. Does
// nothing for NULL. In a forked child the call frees only the handle.
//
// Requires:
// `region` is NULL, or a region that no thread uses any more, neither by its handle nor by its
// address or file.
void hugekit_region_free(struct hugekit_region *region);

// Frees a region whose memory a system call or a device may still read or write, for example by
// `vmsplice`, by `O_DIRECT`, or by a buffer registered with `io_uring`. The pages return to the
// kernel, not to the pool. On an error no region ever gets the pages again, and the handle is
// freed too.
//
// While a range is pinned, the call fails with `HUGEKIT_STATUS_CONFLICT`, and the handle stays
// valid.
//
// Requires:
// `region` is NULL, or a region that no thread of this process uses any more, neither by its
// handle nor by its address or file.
hugekit_status hugekit_region_retire(struct hugekit_region *region);

// Pins a range: every fork and snapshot of the region copies the range at once, and the region
// keeps its pages, until `*pin` is freed. Pin memory that a device, an `io_uring` ring or a
// running system call accesses by its pages, because write protection does not stop these
// accesses. A fork that is made during such a write contains the written words or not.
//
// The region may be freed before the pin: its memory exists until the pin is freed too. Fails
// with:
// - `HUGEKIT_STATUS_INVALID` for a range outside the region.
// - `HUGEKIT_STATUS_NO_MEMORY` or `HUGEKIT_STATUS_SYSTEM` if bytes that are shared with earlier
//   forks cannot be copied now.
//
// Requires:
// `region` is NULL or a region. `pin` can be written.
hugekit_status hugekit_region_pin(const struct hugekit_region *region,
                                  size_t offset,
                                  size_t len,
                                  struct hugekit_pin **pin);

// Frees the pin: later forks and snapshots share the range again. Does nothing for NULL. In a
// forked child the call frees only the handle.
//
// Requires:
// `pin` is NULL, or a pin that no thread uses any more.
void hugekit_pin_free(struct hugekit_pin *pin);

// Returns the address of the region, a multiple of the page size of its backing. The address never
// changes, and is valid for `hugekit_region_mapped_len` bytes until the region is freed. NULL for
// NULL.
//
// Requires:
// `region` is NULL or a region.
void *hugekit_region_address(const struct hugekit_region *region);

// Returns the requested length of the region in bytes. 0 for NULL.
//
// Requires:
// `region` is NULL or a region.
size_t hugekit_region_len(const struct hugekit_region *region);

// Returns the number of mapped bytes: the length rounded up to a multiple of the backing's page. 0
// for NULL.
//
// Requires:
// `region` is NULL or a region.
size_t hugekit_region_mapped_len(const struct hugekit_region *region);

// Returns a `hugekit_fault_mode`: the mode in which faults of the region are handled. 0 for NULL,
// and if the library handles no faults of the region.
//
// Requires:
// `region` is NULL or a region.
uint32_t hugekit_region_serving(const struct hugekit_region *region);

// Stores the file of the pool, and the region's offset in the file in bytes. This is for a program
// that maps the memory itself, for example a device process (vhost-user). KVM's memory slots need
// only the address. Do not close the descriptor: it belongs to the pool. The call clears memory
// that is not cleared yet. After the call, the region cannot be forked.
//
// Fails with `HUGEKIT_STATUS_CONFLICT` for a region that was forked or is a fork.
//
// Requires:
// `region` is NULL or a region. `descriptor` and `offset` can be written. The descriptor gives
// access to the whole pool. The program accesses only `hugekit_region_mapped_len` bytes from the
// offset on, and only while the region exists.
hugekit_status hugekit_region_file(const struct hugekit_region *region, int *descriptor, uint64_t *offset);

// Maps every page that contains a byte of the range now, so that later accesses cause no faults.
// `options` may be NULL. Only its threads (0 means one thread here) and progress have an effect.
// `report` may be NULL.
//
// Fails with `HUGEKIT_STATUS_INVALID` for a range outside the region.
//
// Requires:
// `region` is NULL or a region. `options` and `report` are NULL or such structures.
hugekit_status hugekit_region_populate(const struct hugekit_region *region,
                                       size_t offset,
                                       size_t len,
                                       const struct hugekit_options *options,
                                       struct hugekit_report *report);

// Discards the bytes of a range. Afterwards the range reads as zeroes, and stays allocated and
// mapped. Bytes that other threads write during the call may be discarded or not.
//
// Fails with `HUGEKIT_STATUS_INVALID` unless the range consists of whole pages of the backing. The
// range may also end at the region's end.
//
// Requires:
// `region` is NULL or a region.
hugekit_status hugekit_region_release(const struct hugekit_region *region, size_t offset, size_t len);

// Makes a range writable without a fault. Call this before a system call or a device writes to the
// range. Dirty bytes are cleared, and shared bytes are copied. The range stays prepared until it
// is released, or until the region is forked or snapshotted. Only regions whose faults are handled
// in place need this call.
//
// Fails with `HUGEKIT_STATUS_INVALID` for a range outside the region.
//
// Requires:
// `region` is NULL or a region.
hugekit_status hugekit_region_prepare_write(const struct hugekit_region *region, size_t offset, size_t len);

// Makes a region with the same bytes, and stores its handle in `*fork`. Neither region sees later
// writes to the other. `options` may be NULL.
//
// The call write-protects the region and copies nothing. The first write to a granule, by the
// region or by the fork, copies the granule; the parent keeps its pages. If another thread writes
// to a granule during the call, the fork may contain this store or not. Region and fork may be
// freed in any order.
//
// The fork reserves as many bytes of the pool as the region has. Fails with:
// - `HUGEKIT_STATUS_NO_MEMORY` if the pool does not have these bytes.
// - `HUGEKIT_STATUS_NOT_PERMITTED` if the process may not handle faults.
// - `HUGEKIT_STATUS_UNSUPPORTED` on pages of 1 GiB.
// - `HUGEKIT_STATUS_CONFLICT` after `hugekit_region_file`.
//
// Requires:
// `region` is NULL or a region. `fork` can be written. `options` is NULL or such a structure.
hugekit_status hugekit_region_fork(const struct hugekit_region *region,
                                   const struct hugekit_fork_options *options,
                                   struct hugekit_region **fork);

// Stores in `*bytes` the number of bytes that the region shares with forks at this moment, in
// whole granules. Later writes may have to copy up to this many bytes.
//
// Requires:
// `region` is NULL or a region. `bytes` can be written.
hugekit_status hugekit_region_shared_bytes(const struct hugekit_region *region, size_t *bytes);

// Allocates and populates `bytes`, rounded up to a multiple of 2 MiB, on transparent huge pages if
// there are any, and stores the handle in `*reserve`. The call lasts 0.1 to 0.2 s per GiB, or
// longer if free memory is fragmented.
//
// Without a reserve, a write to snapshotted memory waits until the kernel has found and cleared
// memory for the copy. The reserve is large enough if it has as many bytes as writers change until
// a snapshot is read. Snapshots that exist at the same time share the reserve.
//
// Fails with `HUGEKIT_STATUS_NO_MEMORY` if less memory is available.
//
// Requires:
// `reserve` can be written.
hugekit_status hugekit_reserve_new(size_t bytes, struct hugekit_reserve **reserve);

// Returns the length of the reserve in bytes. 0 for NULL.
//
// Requires:
// `reserve` is NULL or a reserve.
size_t hugekit_reserve_len(const struct hugekit_reserve *reserve);

// Frees the reserve. Its memory is freed when the last snapshot that uses it is freed. Does
// nothing for NULL. In a forked child the call frees only the handle.
//
// Requires:
// `reserve` is NULL, or a reserve that no thread uses any more. Snapshots may still use it.
void hugekit_reserve_free(struct hugekit_reserve *reserve);

// Takes a snapshot of private anonymous memory of this process, from any allocator (`malloc`,
// `mmap`), on any page size, and stores its handle in `*snapshot`. `options` may be NULL. Free the
// snapshot with `hugekit_snapshot_free`, which lifts the protection.
//
// For 1 GiB this lasts 0.4 to 2 ms on huge pages, and 12 to 27 ms on base pages. If another thread
// writes to a granule during the call, the snapshot may contain this store or not, as with
// fork(2).
//
// Fails with:
// - `HUGEKIT_STATUS_INVALID` for no bytes, or for memory that is not mapped.
// - `HUGEKIT_STATUS_UNSUPPORTED` for shared memory, a file or a thread's stack, or before Linux
//   5.14. For memory of a pool use `hugekit_region_snapshot`.
// - `HUGEKIT_STATUS_NOT_PERMITTED` if the process may not handle faults.
//
// Other threads may write, unmap, remap, protect, discard and fork the memory meanwhile. If this
// removes bytes of the snapshot, a read of the snapshot returns an error.
//
// Requires:
// Until the snapshot is freed:
// - No thread that writes to the memory blocks SIGBUS, and no other code replaces the library's
//   handler of SIGBUS without passing signals on to it.
// - No thread has its stack, its alternate signal stack or its thread-local variables in the
//   memory.
// - If faults are handled in place (`hugekit_snapshot_serving`), no system call writes to the
//   memory unless the program called `hugekit_snapshot_prepare_write` before, or handles EFAULT.
// - No other code, in this or another process, handles faults of the memory (`userfaultfd`,
//   ptrace, CRIU).
hugekit_status hugekit_snapshot_new(const void *memory,
                                    size_t len,
                                    const struct hugekit_snapshot_options *options,
                                    struct hugekit_snapshot **snapshot);

// Takes a snapshot of each of `count` ranges, like calls of `hugekit_snapshot_new` one after the
// other, and stores the handles in `snapshots`, in the order of the ranges.
//
// Ranges that touch are snapshotted together, which saves 1 ms per range on huge pages. The same
// holds if less than a page lies between two ranges and belongs to an allocator. `options` apply
// to each range. Ranges that are snapshotted together share the bytes of copies that they may
// hold, and their costs (`hugekit_snapshot_statistics`) are counted together.
//
// Fails as `hugekit_snapshot_new` does, for the first range that is refused. The call then takes
// no snapshot.
//
// Requires:
// The conditions of `hugekit_snapshot_new`, for all ranges. `ranges` is NULL or has `count`
// elements. `count` handles can be written to `snapshots`.
hugekit_status hugekit_snapshot_new_several(const struct hugekit_range *ranges,
                                            size_t count,
                                            const struct hugekit_snapshot_options *options,
                                            struct hugekit_snapshot **snapshots);

// Takes a snapshot of a region, by a read-only fork. For 1 GiB this lasts 0.4 to 2 ms on huge
// pages, and 67 ms on base pages. The snapshot reserves as many bytes of the pool as the region
// has, so it is never lost to writers. The snapshot may outlive the region. `options` may be NULL.
// Fails as `hugekit_region_fork` does.
//
// Requires:
// `region` is NULL or a region. `snapshot` can be written. `options` is NULL or such a structure.
hugekit_status hugekit_region_snapshot(const struct hugekit_region *region,
                                       const struct hugekit_fork_options *options,
                                       struct hugekit_snapshot **snapshot);

// Frees the snapshot. The protection of the memory is lifted when the views of the snapshot are
// freed too. Does nothing for NULL. In a forked child the call frees only the handle.
//
// Requires:
// `snapshot` is NULL, or a snapshot that no thread uses any more.
void hugekit_snapshot_free(struct hugekit_snapshot *snapshot);

// Returns the length of the snapshot in bytes. 0 for NULL, and after the snapshot has ended.
//
// Requires:
// `snapshot` is NULL or a snapshot.
size_t hugekit_snapshot_len(const struct hugekit_snapshot *snapshot);

// Returns a `hugekit_fault_mode`: the mode in which faults of writers are handled. In place, a
// system call may write to the memory only after `hugekit_snapshot_prepare_write`. 0 for NULL, if
// nothing is protected, and after the snapshot has ended.
//
// Requires:
// `snapshot` is NULL or a snapshot.
uint32_t hugekit_snapshot_serving(const struct hugekit_snapshot *snapshot);

// Copies `len` bytes of the snapshot from `offset` on to `to`. Several threads may read at the
// same time, and each byte may be read many times.
//
// Fails with `HUGEKIT_STATUS_INVALID` for bytes outside the snapshot, or after the snapshot has
// ended. Fails with `HUGEKIT_STATUS_LOST` if writers changed more than the snapshot may hold, or
// if the memory was unmapped or discarded; the content of `to` is unspecified then.
//
// Requires:
// `snapshot` is NULL or a snapshot. `to` can be written, and during the call no other thread
// accesses it.
hugekit_status hugekit_snapshot_read(const struct hugekit_snapshot *snapshot,
                                     size_t offset,
                                     void *to,
                                     size_t len);

// Copies all bytes to `to` and ends the snapshot. `len` must be the length of the snapshot. Copied
// granules are released, so writers need not copy them aside any more. `options` may be NULL; only
// its progress and cancel have an effect.
//
// Fails as `hugekit_snapshot_read` does, and with `HUGEKIT_STATUS_CANCELLED`; the snapshot has
// ended after these errors. Fails with `HUGEKIT_STATUS_INVALID` if `len` differs, and with
// `HUGEKIT_STATUS_CONFLICT` if the snapshot has a view; nothing is done then, and the snapshot has
// not ended.
//
// Requires:
// `snapshot` is NULL or a snapshot. `to` can be written, and during the call no other thread
// accesses it.
hugekit_status hugekit_snapshot_copy(const struct hugekit_snapshot *snapshot,
                                     void *to,
                                     size_t len,
                                     const struct hugekit_options *options);

// Writes all bytes in order to an open file, pipe or socket, and ends the snapshot. The file may
// be slow: writers of the memory do not wait for it. `options` may be NULL; only its progress and
// cancel have an effect. The call neither closes nor synchronises the descriptor.
//
// Fails as `hugekit_snapshot_copy` does, and with `HUGEKIT_STATUS_SYSTEM` if writing fails. The
// bytes that were written before the error are a prefix of the snapshot.
//
// Requires:
// `snapshot` is NULL or a snapshot. The descriptor stays open during the call.
hugekit_status hugekit_snapshot_write(const struct hugekit_snapshot *snapshot,
                                      int descriptor,
                                      const struct hugekit_options *options);

// Maps a snapshot as memory and stores the view's handle in `*view`. The call copies no byte:
// `hugekit_view_bytes` and `hugekit_view_rebase` copy the bytes that they return, because they can
// report that the snapshot is lost, and a page fault could not. Copied bytes use memory until the
// view is freed. View and snapshot may be freed in any order.
//
// Fails with `HUGEKIT_STATUS_INVALID` after the snapshot has ended, and with
// `HUGEKIT_STATUS_NO_MEMORY` if the process has no addresses for the view.
//
// Requires:
// `snapshot` is NULL or a snapshot. `view` can be written.
hugekit_status hugekit_snapshot_view(const struct hugekit_snapshot *snapshot, struct hugekit_view **view);

// Frees the view. Does nothing for NULL. In a forked child the call frees only the handle.
//
// Requires:
// `view` is NULL, or a view that no thread uses any more, neither by its handle nor by addresses
// in it.
void hugekit_view_free(struct hugekit_view *view);

// Returns the length of the snapshot in bytes. 0 for NULL.
//
// Requires:
// `view` is NULL or a view.
size_t hugekit_view_len(const struct hugekit_view *view);

// Copies `len` bytes from `offset` on into the view, and stores their address in `*bytes`. These
// bytes can be read, and do not move or change until the view is freed. Several threads may call
// this at the same time.
//
// Fails as `hugekit_snapshot_read` does.
//
// Requires:
// `view` is NULL or a view. `bytes` can be written.
hugekit_status hugekit_view_bytes(const struct hugekit_view *view,
                                  size_t offset,
                                  size_t len,
                                  const void **bytes);

// Converts `pointer`, an address of the snapshotted memory, to an address in the view, and stores
// the address in `*there`. A program can thus follow the pointers in a snapshot. The call copies
// `len` bytes from there on into the view. Their alignment is the same as in the memory, up to the
// alignment of a page. The caller must know if their content is valid: it may contain a part of a
// store that raced with the taking of the snapshot.
//
// Fails as `hugekit_snapshot_read` does, and with `HUGEKIT_STATUS_INVALID` for a pointer to other
// memory.
//
// Requires:
// `view` is NULL or a view. `there` can be written.
hugekit_status hugekit_view_rebase(const struct hugekit_view *view,
                                   const void *pointer,
                                   size_t len,
                                   const void **there);

// Makes a range of the memory writable without a fault. Call this before a system call writes to
// the range, if faults are handled in place. The granules of the range are copied aside, and the
// snapshot keeps its bytes. Fails as `hugekit_snapshot_read` does.
//
// Requires:
// `snapshot` is NULL or a snapshot.
hugekit_status hugekit_snapshot_prepare_write(const struct hugekit_snapshot *snapshot,
                                              size_t offset,
                                              size_t len);

// Fills `stats` with the costs of the snapshot.
//
// Requires:
// `snapshot` is NULL or a snapshot. `stats` is a `hugekit_snapshot_stats` whose size is set.
hugekit_status hugekit_snapshot_statistics(const struct hugekit_snapshot *snapshot,
                                           struct hugekit_snapshot_stats *stats);

// Takes a snapshot of memory, as `hugekit_snapshot_new` does, and stores a handle of its bytes in
// `*changes`. Later states can then be saved as changes. `options` may be NULL;
// `HUGEKIT_SNAPSHOT_IN_BACKGROUND` has no effect. Fails as `hugekit_snapshot_new` does.
//
// Requires:
// The conditions of `hugekit_snapshot_new`, until the last of the changes and epochs that follow
// is consumed or freed.
hugekit_status hugekit_changes_first(const void *memory,
                                     size_t len,
                                     const struct hugekit_snapshot_options *options,
                                     struct hugekit_changes **changes);

// Takes a snapshot of the bytes of the epoch's memory that were written since the epoch began, and
// stores its handle in `*changes`. The epoch is consumed, and must still be freed. Memory that was
// unmapped, discarded or replaced since the epoch began counts as written if it is mapped now.
// `options` may be NULL; the granule is the epoch's granule.
//
// Fails as `hugekit_snapshot_new` does, and with:
// - `HUGEKIT_STATUS_CONFLICT` for the epoch of a region.
// - `HUGEKIT_STATUS_INVALID` if the epoch is consumed already.
// - `HUGEKIT_STATUS_LOST` if the written bytes are unknown. Begin with `hugekit_changes_first`
//   again.
//
// Requires:
// The conditions of `hugekit_changes_first`. `epoch` is NULL or an epoch.
hugekit_status hugekit_changes_since(const struct hugekit_epoch *epoch,
                                     const struct hugekit_snapshot_options *options,
                                     struct hugekit_changes **changes);

// Takes a snapshot of the bytes of a region that were written since the epoch began, and stores
// its handle in `*changes`. If `epoch` is NULL, all bytes are in the snapshot. The epoch is
// consumed, and must still be freed. A region has one epoch at a time, the last one. Pinned ranges
// count as written.
//
// Fails as `hugekit_region_fork` does, and with `HUGEKIT_STATUS_CONFLICT` if the epoch is not the
// last epoch of the region.
//
// Requires:
// `region` is NULL or a region. `epoch` is NULL or an epoch. `options` is NULL or such a
// structure. `changes` can be written.
hugekit_status hugekit_region_changes(const struct hugekit_region *region,
                                      const struct hugekit_epoch *epoch,
                                      const struct hugekit_fork_options *options,
                                      struct hugekit_changes **changes);

// Returns the length of the whole state in bytes. 0 for NULL, and if the changes are consumed.
//
// Requires:
// `changes` is NULL or changes.
size_t hugekit_changes_len(const struct hugekit_changes *changes);

// Stores the ranges that may have changed in `parts`, ascending, at most `room` of them, and the
// number of all ranges in `*count`. The ranges are whole granules, except at the start and end of
// the state.
//
// Fails with `HUGEKIT_STATUS_INVALID` if the changes are consumed.
//
// Requires:
// `changes` is NULL or changes. `parts` is NULL if `room` is 0, otherwise `room` parts can be
// written to it. `count` can be written.
hugekit_status hugekit_changes_parts(const struct hugekit_changes *changes,
                                     struct hugekit_part *parts,
                                     size_t room,
                                     size_t *count);

// Makes `len` bytes from `offset` on writable without a fault. Call this before a system call or a
// device writes to these bytes. The bytes are copied aside, and count as written in the next
// state.
//
// Fails as `hugekit_snapshot_prepare_write` does.
//
// Requires:
// `changes` is NULL or changes.
hugekit_status hugekit_changes_prepare_write(const struct hugekit_changes *changes,
                                             size_t offset,
                                             size_t len);

// Calls `take` for the changed bytes in order, at most 2 MiB at a time. Stores in `*epoch` a
// handle of the epoch that began when the snapshot was taken. `take` may be slow: no other thread
// waits for it. The changes are consumed, also on an error, and must still be freed.
//
// Fails with:
// - `HUGEKIT_STATUS_SYSTEM` if `take` returned an errno, which `hugekit_last_errno` then returns.
// - `HUGEKIT_STATUS_LOST` if writers changed more than the snapshot may hold, or if the memory was
//   unmapped.
// - `HUGEKIT_STATUS_INVALID` if the changes were consumed before.
//
// After an error there is no epoch.
//
// Requires:
// `changes` is NULL or changes. `epoch` can be written. `take` may be called with `context`.
hugekit_status hugekit_changes_write(const struct hugekit_changes *changes,
                                     hugekit_take take,
                                     void *context,
                                     struct hugekit_epoch **epoch);

// Frees the handle. Changes that were not consumed make no epoch. Does nothing for NULL. In a
// forked child the call frees only the handle.
//
// Requires:
// `changes` is NULL, or changes that no thread uses any more.
void hugekit_changes_free(struct hugekit_changes *changes);

// Makes `len` bytes from `offset` on writable without a fault between two states, as
// `hugekit_changes_prepare_write` does.
//
// Requires:
// `epoch` is NULL or an epoch.
hugekit_status hugekit_epoch_prepare_write(const struct hugekit_epoch *epoch, size_t offset, size_t len);

// Returns the number of bytes of the granules that are written all the time. Writes to these
// granules cost no faults, and the granules count as changed in the next state. 0 for NULL, and if
// the epoch is consumed.
//
// Requires:
// `epoch` is NULL or an epoch.
size_t hugekit_epoch_unwatched(const struct hugekit_epoch *epoch);

// Frees the handle. If the epoch was not consumed, the library stops recording writes. Does
// nothing for NULL. In a forked child the call frees only the handle.
//
// Requires:
// `epoch` is NULL, or an epoch that no thread uses any more.
void hugekit_epoch_free(struct hugekit_epoch *epoch);

// Makes a chain of states of `length` bytes and stores its handle in `*chain`. The first state is
// saved in full.
//
// Requires:
// `chain` can be written.
hugekit_status hugekit_chain_new(size_t length, struct hugekit_chain **chain);

// Frees the chain. Does nothing for NULL.
//
// Requires:
// `chain` is NULL, or a chain that no thread uses any more.
void hugekit_chain_free(struct hugekit_chain *chain);

// Writes the changed blocks of 4 KiB to an open file as a delta. Stores a handle of the epoch in
// `*epoch`, and the result in `*saved`, which may be NULL. The changes are consumed, and must
// still be freed.
//
// The call neither closes nor synchronises the descriptor: the state is durable only after the
// caller has synchronised the descriptor. If an earlier file was removed or written to, the next
// delta contains all blocks of that file in which a byte was written in memory.
//
// The first state is saved in full, so it needs changes of all bytes: from
// `hugekit_changes_first`, or from `hugekit_region_changes` without an epoch. The state after a
// failed call also needs changes of all bytes, because the failed call makes no epoch. The chain
// then continues from the last saved state.
//
// Fails with:
// - `HUGEKIT_STATUS_INVALID` if the chain's states have another length, if a first state is not
//   complete, or if the changes are consumed already.
// - `HUGEKIT_STATUS_SYSTEM` if writing to the file fails.
// - `HUGEKIT_STATUS_LOST` if the snapshot is lost.
//
// After an error there is no epoch.
//
// Requires:
// `chain` is NULL or a chain. `changes` is NULL or changes. The descriptor stays open during the
// call. `saved` is NULL or can be written. `epoch` can be written.
hugekit_status hugekit_chain_save(const struct hugekit_chain *chain,
                                  const struct hugekit_changes *changes,
                                  int descriptor,
                                  struct hugekit_saved *saved,
                                  struct hugekit_epoch **epoch);

// Applies a delta from an open file to `len` bytes of memory: changes the memory from the state
// `*base` to the delta's state, and stores the ID of the new state in `*state`, which may be NULL.
// For a full delta, `base` is NULL or all zeroes.
//
// The whole delta is read and checked before a byte of memory changes. The delta begins at the
// descriptor's position and is read twice, so the file must be a regular file. The call does not
// close the descriptor.
//
// Fails with `HUGEKIT_STATUS_INVALID` for a delta that is damaged, truncated, of another base or
// of another length; the error contains the offset. Fails with `HUGEKIT_STATUS_SYSTEM` if the file
// cannot be read.
//
// Requires:
// `memory` can be written, and during the call no other thread accesses it. The descriptor stays
// open. `base` is NULL or such a structure. `state` is NULL or can be written.
hugekit_status hugekit_delta_apply(void *memory,
                                   size_t len,
                                   const struct hugekit_state *base,
                                   int descriptor,
                                   struct hugekit_state *state);

// Loads an image from a file, and stores its handle in `*image`. `path` is a full delta, or a raw
// memory file as Firecracker, Cloud Hypervisor and QEMU write it. `options` may be NULL. Holes and
// blocks of zeroes need no memory. Free the image with `hugekit_image_free`.
//
// Fails with:
// - `HUGEKIT_STATUS_INVALID` for a file that is not regular or is empty, and for a delta that is
//   damaged or does not follow on the previous source.
// - `HUGEKIT_STATUS_CONFLICT` for a file that was changed during the load.
// - `HUGEKIT_STATUS_NO_MEMORY` if memory is short.
// - `HUGEKIT_STATUS_SYSTEM` or `HUGEKIT_STATUS_NOT_PERMITTED` if a file cannot be read.
//
// The error contains the name of the file. After an error, the loaded memory is freed.
//
// Requires:
// `path` is NULL or ends with a zero byte. `image` can be written. `options` is NULL or such a
// structure. Its texts are NULL or end with a zero byte, and its list is as long as `delta_count`.
hugekit_status hugekit_image_load(const char *path,
                                  const struct hugekit_image_options *options,
                                  struct hugekit_image **image);

// Gets an image that a broker holds, and stores its handle in `*image`. `socket` is the path of
// the socket of a `hugekit broker`, which must run as root or as this process's user. `name` is
// the name of the image. Free the image with `hugekit_image_free`.
//
// Fails with `HUGEKIT_STATUS_INVALID` if the broker has no image of this name, and with
// `HUGEKIT_STATUS_SYSTEM` if no broker listens at the socket.
//
// Requires:
// `socket` and `name` are NULL or end with a zero byte. `image` can be written.
hugekit_status hugekit_image_get(const char *socket, const char *name, struct hugekit_image **image);

// Fills `facts` with the size of the image.
//
// Requires:
// `image` is NULL or an image. `facts` can be written, and its size is set.
hugekit_status hugekit_image_query(const struct hugekit_image *image, struct hugekit_image_facts *facts);

// Returns the descriptor of the image's file, opened for reading. This is for a program that maps
// the image itself: a child that inherits the descriptor opens `/proc/self/fd/N`. The descriptor
// belongs to the image and is closed on `exec`: duplicate it, or clear `FD_CLOEXEC` in the child.
// -1 for NULL.
//
// Requires:
// `image` is NULL or an image.
int hugekit_image_file(const struct hugekit_image *image);

// Maps the image privately at a multiple of 2 MiB, and stores the mapping's handle in `*mapping`.
// The program may write to the memory; no other process sees its writes. Mapping and image may be
// freed in any order. Children of `fork(2)` inherit the memory.
//
// The first read of each 2 MiB on a huge page costs a page fault. The first write to a base page
// copies the page, and the 2 MiB around it are then mapped by base pages. If memory is short at
// this moment, the kernel's OOM killer ends a process.
//
// Fails with `HUGEKIT_STATUS_SYSTEM` if the process has no addresses or mappings left.
//
// Requires:
// `image` is NULL or an image. `mapping` can be written.
hugekit_status hugekit_image_map(const struct hugekit_image *image, struct hugekit_mapping **mapping);

// Frees the image. Its memory returns to the kernel when no process has a descriptor or a mapping
// of it. Does nothing for NULL.
//
// Requires:
// `image` is NULL, or an image that no thread uses any more.
void hugekit_image_free(struct hugekit_image *image);

// Returns the address of the first byte, a multiple of 2 MiB. NULL for NULL.
//
// Requires:
// `mapping` is NULL or a mapping.
void *hugekit_mapping_address(const struct hugekit_mapping *mapping);

// Returns the length of the image in bytes. 0 for NULL.
//
// Requires:
// `mapping` is NULL or a mapping.
size_t hugekit_mapping_len(const struct hugekit_mapping *mapping);

// Unmaps the memory and frees the mapping. Does nothing for NULL.
//
// Requires:
// `mapping` is NULL, or a mapping that no thread uses any more, neither by its handle nor by
// addresses in it.
void hugekit_mapping_free(struct hugekit_mapping *mapping);

// Puts the page cache of a file on huge pages. Every process that maps the file afterwards gets
// one page fault for each 2 MiB. `path` is a regular file of at least 2 MiB that this user may
// read. `options` may be NULL. Fills `report`, which may be NULL. Units that stay on small pages
// are no failure: see `reason`.
//
// Units that are huge already do not change. The other units are dropped from the cache and read
// again. The file needs as much memory as it has data. Dirty pages are written to the disk before
// the drop, so the content does not change.
//
// Fails with:
// - `HUGEKIT_STATUS_INVALID` for a file that is not regular, is shorter than 2 MiB, or consists of
//   one hole.
// - `HUGEKIT_STATUS_NO_MEMORY` if the machine or a control group has less memory than the file.
//   Nothing is dropped then.
// - `HUGEKIT_STATUS_NOT_PERMITTED` for a check of another user's file.
// - `HUGEKIT_STATUS_CONFLICT` for a file that was truncated or replaced during the call.
// - `HUGEKIT_STATUS_SYSTEM` if the file cannot be read.
//
// Requires:
// `path` is NULL or ends with a zero byte. `options` is NULL or such a structure. `report` is NULL
// or can be written, and its size is set.
hugekit_status hugekit_warm(const char *path,
                            const struct hugekit_warm_options *options,
                            struct hugekit_warm_report *report);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HUGEKIT_H */
