//! Pools.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::fmt::Write as _;
use std::mem::offset_of;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use engine::pool::{Backing, BackingReport, Clearing, NodePolicy, PoolBuilder};
use engine::{HeapShortage, Pool};

use crate::status::{
    self, Answer, Refusal, answer, c_string, give_checked, handle, hugekit_status,
};
use crate::versioned::{self, CallerOptions, OutParameter, Versioned};
use crate::work::{hugekit_progress, threads, told};

/// A pool of memory that is zeroed when a region is allocated. Made by `hugekit_pool_new`.
pub struct hugekit_pool {
    pub(crate) pool: Pool,
    fallbacks: CString,
}

/// The backings of a pool: kinds of pages, the fastest first.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum hugekit_backing {
    /// Only for an option: `HUGEKIT_BACKING_HUGETLB2M`, or the next backing that is available.
    Default = 0,
    /// Reserved huge pages of 1 GiB. Pools use them only on request, because the kernel can only
    /// map, release and protect whole pages of 1 GiB.
    Hugetlb1g = 1,
    /// Reserved huge pages of 2 MiB.
    Hugetlb2m = 2,
    /// Shared memory on transparent huge pages.
    Thp = 3,
    /// Shared memory on base pages. Every machine supports this backing; mapping it is slowest.
    Base = 4,
}

/// C has a name for each backing, in the same order and with the same number as in Rust.
const _: () = {
    use hugekit_backing::{Base, Hugetlb1g, Hugetlb2m, Thp};
    let names: [hugekit_backing; Backing::ALL.len()] = [Hugetlb1g, Hugetlb2m, Thp, Base];
    let mut at = 0;
    while at < names.len() {
        assert!(names[at] as u32 == Backing::ALL[at].number(), "hugekit_backing differs");
        at += 1;
    }
};

/// The moment at which dirty memory is cleared for its next owner.
#[repr(u32)]
#[expect(dead_code, reason = "C has the names, the library is given numbers")]
pub enum hugekit_clearing {
    /// For a pool: at allocation. For a region: as for its pool.
    Default = 0,
    /// Before the allocation returns, by several threads. Every access then works as for ordinary
    /// memory.
    OnAllocation = 1,
    /// At the first access to each page. The bytes near the accessed address stay in the cache.
    /// Needs userfaultfd(2).
    OnFault = 2,
}

/// The NUMA nodes that provide a pool's memory.
#[repr(u32)]
#[expect(dead_code, reason = "C has the names, the library is given numbers")]
pub enum hugekit_nodes {
    /// The nodes of the memory policy of the populating thread. `numactl` sets such a policy, for
    /// example.
    Process = 0,
    /// The node of the CPU that populates the memory.
    Local = 1,
    /// Only the nodes of the list. Populating fails if they have no memory left.
    Bind = 2,
    /// The nodes of the list in turn, page by page.
    Interleave = 3,
    /// The one node of the list, and other nodes if it has no memory left.
    Preferred = 4,
}

/// The first backing is required: `hugekit_pool_new` fails if it is not available. Without this
/// flag the next backings are tried, and `hugekit_pool_fallbacks` returns the reasons.
pub const HUGEKIT_POOL_STRICT: u32 = 1;

/// Each region is populated when it is allocated, and each fork when it is made. Without this flag
/// `hugekit_pool_new` populates all memory, so no region and no fork waits for it. Set the flag if
/// the capacity is only an upper limit.
pub const HUGEKIT_POOL_POPULATE_ON_ALLOCATION: u32 = 2;

/// No thread clears memory in the background. Memory is cleared only by an allocation or by
/// `hugekit_pool_scrub`.
pub const HUGEKIT_POOL_NO_SCRUBBER: u32 = 4;

/// Core dumps do not contain the bytes of regions. Without this flag they do.
pub const HUGEKIT_POOL_NOT_IN_CORE_DUMPS: u32 = 8;

/// The pool uses the file `hugekit_pool_options.file`. Another process has made and populated this
/// file; `hugekit lease` passes such a file, for example. The call checks that the file is memory,
/// that its length cannot change, and that its length is the capacity.
///
/// The caller guarantees that all bytes of the file are zero, and that no other code writes to the
/// file as long as the pool or one of its regions exists. `hugekit_pool_new` closes the descriptor,
/// also on failure, unless it refuses the options structure itself.
pub const HUGEKIT_POOL_ADOPT: u32 = 16;

const FLAGS: u32 = HUGEKIT_POOL_STRICT
    | HUGEKIT_POOL_POPULATE_ON_ALLOCATION
    | HUGEKIT_POOL_NO_SCRUBBER
    | HUGEKIT_POOL_NOT_IN_CORE_DUMPS
    | HUGEKIT_POOL_ADOPT;

/// Options of a pool. Zero means the default everywhere: set `size` and the fields that you need.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_pool_options {
    /// `sizeof(hugekit_pool_options)`.
    pub size: usize,
    /// A `hugekit_backing`: the first backing to try.
    pub backing: u32,
    /// Flags such as `HUGEKIT_POOL_STRICT`.
    pub flags: u32,
    /// Threads that populate the pool, and that later clear or populate regions. 0: as many as are
    /// useful.
    pub threads: usize,
    /// Called after every piece that `hugekit_pool_new` populates. NULL: no callback.
    pub progress: hugekit_progress,
    /// Passed to `progress` unchanged.
    pub context: *mut c_void,
    /// The scrubber starts when fewer than this many bytes are clean. 0 in both fields: the
    /// scrubber clears all dirty memory, but slowly while regions are allocated and freed.
    pub scrub_below: usize,
    /// The scrubber stops when this many bytes are clean.
    pub scrub_up_to: usize,
    /// Low-priority threads that clear in the background. 0: one.
    pub scrub_threads: usize,
    /// A `hugekit_clearing` for regions that do not set their own.
    pub clearing: u32,
    /// A `hugekit_nodes`: the NUMA nodes of the memory.
    pub nodes: u32,
    /// The list of nodes, if `nodes` needs a list. Read before `hugekit_pool_new` returns.
    pub node_list: *const u32,
    /// The length of the list.
    pub node_count: usize,
    /// The name of the pool in `/proc/self/maps`: `/memfd:hugekit:NAME`. NULL: `"pool"`.
    pub name: *const c_char,
    /// The socket of a `hugekit broker` from which the memory is leased, or NULL. The capacity must
    /// be the size of a unit of the broker. The broker must run as root or as this process's user.
    pub broker: *const c_char,
    /// The descriptor of the memory, if `HUGEKIT_POOL_ADOPT` is set.
    pub file: i32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: integers and pointers, the first of which is the size; the function is null or what the caller
// put there.
unsafe impl Versioned for hugekit_pool_options {
    const NAME: &str = "hugekit_pool_options";
    const FIRST: usize = offset_of!(Self, name) + size_of::<*const c_char>();
}

impl CallerOptions for hugekit_pool_options {
    fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// Makes a pool of `capacity` bytes, rounded up to a multiple of the backing's page. Populates all
/// of the pool in parallel, and stores its handle in `*pool`. `options` may be NULL. Free the pool
/// with `hugekit_pool_free`.
///
/// Fails with:
/// - `HUGEKIT_STATUS_NO_MEMORY` if memory or huge pages are short, or a control group's limit is
///   too low. The call checks this before it populates.
/// - `HUGEKIT_STATUS_UNSUPPORTED` if the kernel has no such pages.
/// - `HUGEKIT_STATUS_INVALID` for a capacity of 0 or an unknown option.
///
/// # Safety
/// `pool` can be written. `options` is NULL or such a structure. Its texts are NULL or end with a
/// zero byte. Its list is as long as `node_count`. With `HUGEKIT_POOL_ADOPT`, its file meets the
/// conditions of that flag.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_pool_new(
    capacity: usize,
    options: *const hugekit_pool_options,
    pool: *mut *mut hugekit_pool,
) -> hugekit_status {
    // SAFETY: `pool` is NULL or can be written. `options` is NULL or such a structure, whose texts, list and file are
    // as its fields say, which `make` asks for.
    answer(unsafe { give_checked(pool, "pool", || make(capacity, options)) })
}

/// # Safety
/// `options` is NULL or such a structure: its texts are NULL or end with a zero byte, its list is as long as it says, and
/// its file, with `HUGEKIT_POOL_ADOPT`, is as promised there.
unsafe fn make(capacity: usize, options: *const hugekit_pool_options) -> Answer<hugekit_pool> {
    // SAFETY: `options` is NULL or such a structure; its texts end with a zero byte, its list is as long as it says,
    // and its file is the callee's to close.
    let (options, name, broker, file, nodes) = unsafe {
        let options = versioned::read(options)?;
        let text = |text: *const c_char| (!text.is_null()).then(|| CStr::from_ptr(text));
        let file = adopted(&options)?;
        // Not before: the file is closed whatever happens.
        HeapShortage::check()?;
        (options, text(options.name), text(options.broker), file, nodes(&options)?)
    };
    let unknown = options.flags & !FLAGS;
    if unknown != 0 {
        return Err(Refusal::invalid(format_args!(
            "hugekit_pool_options.flags has unknown bits {unknown:#x}"
        )));
    }
    let is = |flag| options.flags & flag != 0;
    let progress = told(options.progress, options.context);
    let mut builder = Pool::builder(capacity)
        .strict(is(HUGEKIT_POOL_STRICT))
        .populate_on_allocation(is(HUGEKIT_POOL_POPULATE_ON_ALLOCATION))
        .in_core_dumps(!is(HUGEKIT_POOL_NOT_IN_CORE_DUMPS))
        .scrub_threads(if is(HUGEKIT_POOL_NO_SCRUBBER) { 0 } else { options.scrub_threads.max(1) })
        .threads(threads(options.threads))
        .nodes(nodes);
    builder = backing(options.backing)?.into_iter().fold(builder, PoolBuilder::backing);
    builder = clearing("hugekit_pool_options", options.clearing)?
        .into_iter()
        .fold(builder, PoolBuilder::clearing);
    if (options.scrub_below, options.scrub_up_to) != (0, 0) {
        builder = builder.watermarks(options.scrub_below, options.scrub_up_to);
    }
    if let Some(name) = name {
        builder = builder.name(name.to_string_lossy());
    }
    if let Some(progress) = &progress {
        builder = builder.progress(progress);
    }
    builder = match (broker, file) {
        (Some(_), Some(_)) => {
            return Err(Refusal::invalid("hugekit_pool_options has a broker and a file"));
        }
        (Some(broker), None) => builder.broker(OsStr::from_bytes(broker.to_bytes())),
        // SAFETY: all bytes of the file are zero, and nothing else writes to it as long as the pool or a region of it
        // lives (`HUGEKIT_POOL_ADOPT`).
        (None, Some(file)) => unsafe { builder.adopt(file) },
        (None, None) => builder,
    };
    let pool = builder.build()?;
    let fallbacks = fallbacks(pool.backing_report());
    Ok(hugekit_pool { pool, fallbacks })
}

/// Returns the file that is to be adopted, if one is.
///
/// # Safety
/// The descriptor, if it is open, is the callee's to close.
unsafe fn adopted(options: &hugekit_pool_options) -> Answer<Option<OwnedFd>> {
    if options.flags & HUGEKIT_POOL_ADOPT == 0 {
        return Ok(None);
    }
    // SAFETY: asks for the flags of a descriptor, if it is one.
    if options.file < 0 || unsafe { libc::fcntl(options.file, libc::F_GETFD) } < 0 {
        return Err(Refusal::invalid(format_args!(
            "hugekit_pool_options.file is {}, no descriptor",
            options.file
        )));
    }
    // SAFETY: the descriptor is open (checked above), and the caller leaves it to the callee to close.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(options.file) }))
}

fn backing(number: u32) -> Answer<Option<Backing>> {
    if number == hugekit_backing::Default as u32 {
        return Ok(None);
    }
    let found = Backing::ALL.iter().copied().find(|backing| backing.number() == number);
    found.map(Some).ok_or_else(|| {
        Refusal::invalid(format_args!(
            "hugekit_pool_options.backing is {number}, no hugekit_backing"
        ))
    })
}

pub(crate) fn clearing(name: &str, number: u32) -> Answer<Option<Clearing>> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(Clearing::OnAllocation)),
        2 => Ok(Some(Clearing::OnFault)),
        _ => {
            Err(Refusal::invalid(format_args!("{name}.clearing is {number}, no hugekit_clearing")))
        }
    }
}

/// # Safety
/// The list is as long as the options say.
unsafe fn nodes(options: &hugekit_pool_options) -> Answer<NodePolicy> {
    let hugekit_pool_options { nodes, node_list, node_count, .. } = *options;
    let list = if node_list.is_null() || node_count > 1 << 16 {
        &[]
    } else {
        // SAFETY: `node_list` is not null and has `node_count` entries.
        unsafe { std::slice::from_raw_parts(node_list, node_count) }
    };
    match (nodes, list) {
        (0, _) => Ok(NodePolicy::Process),
        (1, _) => Ok(NodePolicy::Local),
        (2, [_, ..]) => Ok(NodePolicy::Bind(list.to_vec())),
        (3, [_, ..]) => Ok(NodePolicy::Interleave(list.to_vec())),
        (4, &[node]) => Ok(NodePolicy::Preferred(node)),
        _ => Err(Refusal::invalid(format_args!(
            "hugekit_pool_options.nodes is {nodes} with a list of {node_count}: no such policy, or not its list"
        ))),
    }
}

fn fallbacks(report: &BackingReport) -> CString {
    let mut text = String::new();
    for fallback in &report.fallbacks {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}: {}", fallback.backing, fallback.reason);
    }
    c_string(text)
}

/// Frees the handle. The pool exists until its last region is freed. Does nothing for NULL. In a
/// forked child the call frees only the handle.
///
/// # Safety
/// `pool` is NULL, or a pool that no thread uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_pool_free(pool: *mut hugekit_pool) {
    // SAFETY: `pool` is NULL or came from `hugekit_pool_new`, and no thread uses it any more.
    drop(unsafe { status::take_handle(pool) });
}

/// Returns a `hugekit_backing`: the backing of the pool. 0 for NULL.
///
/// # Safety
/// `pool` is NULL or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_pool_backing(pool: *const hugekit_pool) -> u32 {
    // SAFETY: `pool` is NULL or a handle that is not freed meanwhile.
    let backing = unsafe { pool.as_ref() }.map(|pool| pool.pool.backing());
    backing.map_or(hugekit_backing::Default as u32, Backing::number)
}

/// Returns the backings that were tried before, one per line, each with the reason why it was not
/// used. Returns the empty string if the pool uses the first backing. Never NULL. The text is valid
/// as long as the handle.
///
/// # Safety
/// `pool` is NULL or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_pool_fallbacks(pool: *const hugekit_pool) -> *const c_char {
    // SAFETY: `pool` is NULL or a handle that is not freed while the text is used.
    unsafe { pool.as_ref() }.map_or(c"", |pool| pool.fallbacks.as_c_str()).as_ptr()
}

/// Returns the capacity of the pool in bytes. 0 for NULL.
///
/// # Safety
/// `pool` is NULL or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_pool_capacity(pool: *const hugekit_pool) -> usize {
    // SAFETY: `pool` is NULL or a handle that is not freed meanwhile.
    unsafe { pool.as_ref() }.map_or(0, |pool| pool.pool.capacity())
}

/// Returns the page size of the backing in bytes. Every region consists of whole pages. 0 for NULL.
///
/// # Safety
/// `pool` is NULL or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_pool_page_size(pool: *const hugekit_pool) -> usize {
    // SAFETY: `pool` is NULL or a handle that is not freed meanwhile.
    unsafe { pool.as_ref() }.map_or(0, |pool| pool.pool.page_size())
}

/// The state of a pool at one moment. States are counted in pages of the backing. Work is counted
/// in bytes since the pool was made.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_stats {
    /// `sizeof(hugekit_stats)`, set by the caller.
    pub size: usize,
    /// Bytes of a page of the backing.
    pub page_size: usize,
    /// Pages that are not populated yet.
    pub holes: usize,
    /// Pages that are clean and free.
    pub clean: usize,
    /// Pages of regions, and pages that are being cleared or populated for a region.
    pub in_use: usize,
    /// Pages that contain bytes of their last owner.
    pub dirty: usize,
    /// Pages that are base pages because no huge page was free.
    pub fragmented: usize,
    /// Bytes cleared by the scrubber's threads.
    pub scrubbed_in_background: u64,
    /// Bytes cleared when a region was allocated.
    pub scrubbed_at_allocation: u64,
    /// Bytes cleared by `hugekit_pool_scrub`.
    pub scrubbed_on_request: u64,
    /// Bytes cleared when a part of a region was released.
    pub scrubbed_at_release: u64,
    /// Bytes cleared at the first access.
    pub scrubbed_at_fault: u64,
    /// Bytes that the pool asked the kernel to populate.
    pub populated: u64,
    /// Regions that were allocated.
    pub allocations: u64,
    /// Allocated regions that waited until the scrubber finished a piece.
    pub waits: u64,
}

// SAFETY: integers, the first of which is the size.
unsafe impl Versioned for hugekit_stats {
    const NAME: &str = "hugekit_stats";
    const FIRST: usize = offset_of!(Self, waits) + size_of::<u64>();
}

/// Fills `stats` with the state of the pool at this moment. Fails with `HUGEKIT_STATUS_FORKED` in a
/// forked child.
///
/// # Safety
/// `pool` is NULL or a pool. `stats` is a `hugekit_stats` whose size is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_pool_stats(
    pool: *const hugekit_pool,
    stats: *mut hugekit_stats,
) -> hugekit_status {
    // SAFETY: `pool` is NULL or a handle that is not freed meanwhile; `stats` is NULL or can be written for the size
    // that it states.
    answer((|| unsafe {
        let (pool, place) = (handle(pool, "pool")?, OutParameter::needed(stats)?);
        let stats = pool.pool.stats()?;
        place.fill(&hugekit_stats {
            size: 0,
            page_size: stats.page_size,
            holes: stats.holes,
            clean: stats.clean,
            in_use: stats.in_use,
            dirty: stats.dirty,
            fragmented: stats.fragmented,
            scrubbed_in_background: stats.scrubbed_in_background,
            scrubbed_at_allocation: stats.scrubbed_at_allocation,
            scrubbed_on_request: stats.scrubbed_on_request,
            scrubbed_at_release: stats.scrubbed_at_release,
            scrubbed_at_fault: stats.scrubbed_at_fault,
            populated: stats.populated,
            allocations: stats.allocations,
            waits: stats.waits,
        });
        Ok(())
    })())
}

/// Clears all memory that is dirty now, with the pool's threads, and stores the number of cleared
/// bytes in `*bytes`, which may be NULL. Fails with `HUGEKIT_STATUS_FORKED` in a forked child.
///
/// # Safety
/// `pool` is NULL or a pool. `bytes` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_pool_scrub(
    pool: *const hugekit_pool,
    bytes: *mut u64,
) -> hugekit_status {
    // SAFETY: `pool` is NULL or a handle that is not freed meanwhile; `bytes` is NULL or can be written.
    answer((|| unsafe {
        let scrubbed = handle(pool, "pool")?.pool.scrub()?;
        if let Some(place) = bytes.as_mut() {
            *place = scrubbed;
        }
        Ok(())
    })())
}

/// Stops the scrubber until `hugekit_pool_resume_scrubbing` is called. Returns when the scrubber
/// has stopped. Fails with `HUGEKIT_STATUS_FORKED` in a forked child.
///
/// # Safety
/// `pool` is NULL or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_pool_pause_scrubbing(pool: *const hugekit_pool) -> hugekit_status {
    // SAFETY: `pool` is NULL or a handle that is not freed meanwhile.
    answer(unsafe { handle(pool, "pool") }.and_then(|pool| Ok(pool.pool.pause_scrubbing()?)))
}

/// Starts the scrubber again after `hugekit_pool_pause_scrubbing`. Fails with
/// `HUGEKIT_STATUS_FORKED` in a forked child.
///
/// # Safety
/// `pool` is NULL or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_pool_resume_scrubbing(
    pool: *const hugekit_pool,
) -> hugekit_status {
    // SAFETY: `pool` is NULL or a handle that is not freed meanwhile.
    answer(unsafe { handle(pool, "pool") }.and_then(|pool| Ok(pool.pool.resume_scrubbing()?)))
}
