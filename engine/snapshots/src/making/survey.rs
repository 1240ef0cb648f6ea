//! Checks that memory can be snapshotted, before any change.

use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::param::page_size;

use crate::error::{SnapshotError, Unsuitable};
use hugekit_machine::mappings::{self, MappedRange};
use hugekit_machine::{Root, threads};
use hugekit_sys::process::thread_local_bytes;
use hugekit_sys::thread::descriptor_of;

/// The highest number of bytes of a thread's descriptor before its list of robust locks, and behind
/// the list, including alignment (glibc 2.36 on x86-64: 736 and 1,568).
const BEFORE: usize = 1024;
const BEHIND: usize = 2048;

/// The lowest number of bytes of a thread's descriptor behind that list.
const LEAST_BEHIND: usize = 1536;

/// The number of checks after which a signal counts as blocked permanently, and the time between
/// checks.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// The longest time that a thread may wait for a CPU.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the mappings that contain `range`. Checks that all of them can be snapshotted, as far as hugekit can see.
pub(super) fn mappings_of(range: &Range<usize>) -> Result<Vec<MappedRange>, SnapshotError> {
    let root = Root::default();
    let touched = mappings::read_some(&root, |addresses| overlap(addresses, range))?;
    check_no_hole(&touched, range)?;
    let mergeable = mappings::mergeable(&root, range)?;
    for mapping in &touched {
        if let Some(reason) = defect(mapping, &mergeable) {
            return Err(SnapshotError::Unsuitable { mapping: mapping.clone(), reason });
        }
    }
    belongs_to_no_thread(range)?;
    Ok(touched)
}

/// Returns for each range why it cannot be snapshotted; `None` if it can, as far as the kernel lists it.
pub(super) fn unsuitable(
    ranges: &[Range<usize>],
) -> Result<Vec<Option<Unsuitable>>, SnapshotError> {
    let root = Root::default();
    let start = ranges.iter().map(|range| range.start).min().unwrap_or(0);
    let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
    let mergeable = mappings::mergeable(&root, &(start..end))?;
    let mapped = mappings::read_some(&root, |addresses| {
        ranges.iter().any(|range| overlap(addresses, range))
    })?;
    let reason = |range| {
        let mut touched = mapped.iter().filter(|mapping| overlap(&mapping.addresses, range));
        touched.find_map(|mapping| defect(mapping, &mergeable))
    };
    Ok(ranges.iter().map(reason).collect())
}

/// Checks that no thread blocks SIGBUS for longer than a moment. The C library blocks all signals while a thread
/// starts or ends, and then writes only to its own memory.
pub(super) fn no_thread_blocks_sigbus() -> Result<(), SnapshotError> {
    let root = Root::default();
    for thread in threads::ids(&root)? {
        if blocks_sigbus(&root, thread)? {
            return Err(SnapshotError::Blocked { thread });
        }
    }
    Ok(())
}

/// Returns true if a thread continues to block SIGBUS. A look does not count if the thread has only
/// waited for a CPU since the previous one: a new thread may wait long on a busy machine.
fn blocks_sigbus(root: &Root, thread: u32) -> Result<bool, SnapshotError> {
    let (began, mut looks, mut before) = (Instant::now(), 0, None);
    while threads::blocks(root, thread, libc::SIGBUS as u32)? == Some(true) {
        let now = threads::progress(root, thread);
        let waits = now == before && now.is_some_and(|(is_runnable, _)| is_runnable);
        looks += u32::from(!waits);
        if looks == LOOKS || began.elapsed() > PATIENCE {
            return Ok(true);
        }
        before = now;
        std::thread::sleep(PAUSE);
    }
    Ok(false)
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

fn check_no_hole(touched: &[MappedRange], range: &Range<usize>) -> Result<(), SnapshotError> {
    let mut reached = range.start;
    for MappedRange { addresses, .. } in touched {
        if addresses.start > reached {
            return Err(SnapshotError::Unmapped { hole: reached..addresses.start });
        }
        reached = addresses.end;
    }
    if reached < range.end {
        return Err(SnapshotError::Unmapped { hole: reached..range.end });
    }
    Ok(())
}

fn defect(mapping: &MappedRange, mergeable: &[usize]) -> Option<Unsuitable> {
    // Names that the program has given (`prctl(PR_SET_VMA_ANON_NAME)`) begin with `[anon:`.
    let is_kernels = mapping.name.starts_with('[')
        && mapping.name != "[heap]"
        && mapping.name != "[stack]"
        && !mapping.name.starts_with("[anon:");
    if mapping.is_shared {
        Some(Unsuitable::Shared)
    } else if mapping.inode != 0 || mapping.name.starts_with('/') {
        Some(Unsuitable::File)
    } else if mapping.name == "[stack]" {
        Some(Unsuitable::Stack { thread: std::process::id() })
    } else if is_kernels {
        Some(Unsuitable::Kernels)
    } else if !mapping.is_readable {
        Some(Unsuitable::Unreadable)
    } else if mergeable.contains(&mapping.addresses.start) {
        Some(Unsuitable::Mergeable)
    } else {
        None
    }
}

/// Checks that the range contains no thread's stack or thread-local variables, as far as the C library shows them.
fn belongs_to_no_thread(range: &Range<usize>) -> Result<(), SnapshotError> {
    let root = Root::default();
    let with_descriptor = |thread| Some((descriptor_of(thread)?, thread));
    let mut threads: Vec<(usize, u32)> =
        threads::ids(&root)?.into_iter().filter_map(with_descriptor).collect();
    threads.sort_unstable();
    let of = |addresses: &Range<usize>| {
        let Range { start, end } = *addresses;
        let first = threads.partition_point(|&(descriptor, _)| descriptor < start);
        threads[first..].iter().take_while(move |&&(descriptor, _)| descriptor < end)
    };
    for mapping in mappings::read_some(&root, |addresses| of(addresses).next().is_some())? {
        for &(descriptor, thread) in of(&mapping.addresses) {
            // If the thread has ended since, its stack may have been where another mapping is now.
            let is_there = || descriptor_of(thread) == Some(descriptor);
            if overlap(&own_of(thread, descriptor, &mapping), range) && is_there() {
                let reason = Unsuitable::Stack { thread };
                return Err(SnapshotError::Unsuitable { mapping, reason });
            }
        }
    }
    Ok(())
}

/// Returns true if writes to a page can be stopped while the calling thread copies it. The page
/// must not contain the stack frames of the calling thread, or the stack or variables of any
/// thread: the kernel also writes to these when it resumes a thread (restartable sequences).
pub(super) fn probe_stoppable(page: usize) -> Result<bool, SnapshotError> {
    let here = std::ptr::from_ref(&page).addr();
    let is_no_threads = match belongs_to_no_thread(&(page..page + page_size())) {
        Err(SnapshotError::Unsuitable { .. }) => false,
        found => found.map(|()| true)?,
    };
    Ok(is_no_threads && (here.abs_diff(page) > FRAMES || probe_own_stack(here)?))
}

/// All stack frames of a thread that makes a snapshot lie within this many bytes, on any stack.
const FRAMES: usize = 256 << 10;

/// Returns true if an address of the calling thread's stack lies on the original stack of this
/// thread. No page of an original stack is mistaken for one of another thread.
fn probe_own_stack(here: usize) -> Result<bool, SnapshotError> {
    let of_here =
        mappings::read_some(&Root::default(), |addresses| addresses.contains(&here))?.pop();
    let Some(MappedRange { addresses, name, .. }) = of_here else { return Ok(false) };
    let is_below = |descriptor| addresses.contains(&descriptor) && here < descriptor;
    let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    Ok(name == "[stack]" || descriptor_of(own).is_some_and(is_below))
}

/// Returns the last possible end of a thread's own memory behind its descriptor. If the C library maps the stack, the
/// stack ends with this memory at the end of a page. Memory above belongs to another mapping that the kernel has
/// joined.
fn end_of(descriptor: usize) -> usize {
    let page_end = (descriptor + 1).next_multiple_of(page_size());
    let may_end_there = cfg!(target_arch = "x86_64") && page_end - descriptor >= LEAST_BEHIND;
    let most = descriptor + BEHIND;
    if may_end_there { most.min(page_end) } else { most }
}

/// Returns the part of a mapping that belongs to the thread whose descriptor lies in it. The kernel joins
/// neighbouring mappings, so memory above may have any owner. The thread's stack lies below, down to its guard page.
/// The first thread has its stack elsewhere, and only its variables here.
fn own_of(thread: u32, descriptor: usize, mapping: &MappedRange) -> Range<usize> {
    let above = end_of(descriptor).min(mapping.addresses.end);
    // On x86 a thread's variables lie below its descriptor, elsewhere above.
    let (before, behind) = if cfg!(target_arch = "x86_64") {
        (thread_local_bytes(), 0)
    } else {
        (0, thread_local_bytes())
    };
    let start = if thread == std::process::id() {
        descriptor.saturating_sub(before + BEFORE).max(mapping.addresses.start)
    } else {
        mapping.addresses.start
    };
    start - start % page_size()..above + behind
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(addresses: Range<usize>) -> MappedRange {
        let name = String::new();
        MappedRange { addresses, is_readable: true, is_shared: false, inode: 0, name }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn survey_above_a_stack_is_not_the_threads() {
        let (page, top) = (page_size(), 64 * page_size());
        let joined = mapped(page..2 * top);
        // As glibc 2.36 places it.
        let thread = std::process::id() + 1;
        assert_eq!(own_of(thread, top - 1632, &joined), page..top);
        // A descriptor that goes on in the next page.
        assert_eq!(own_of(thread, top - 1000, &joined), page..top - 1000 + BEHIND);
    }

    #[test]
    #[cfg(target_env = "gnu")]
    #[cfg_attr(
        target_arch = "aarch64",
        ignore = "qemu, which tests this CPU, lacks get_robust_list(2)"
    )]
    fn survey_beside_the_own_stack_tells_it_from_others() {
        let here = || std::ptr::from_ref(&page_size()).addr();
        assert!(probe_own_stack(here()).unwrap());
        let heap = Box::new(0);
        assert!(!probe_own_stack(std::ptr::from_ref(&*heap).addr()).unwrap());
    }

    #[test]
    #[cfg(target_env = "gnu")]
    #[cfg_attr(
        target_arch = "aarch64",
        ignore = "qemu, which tests this CPU, lacks get_robust_list(2)"
    )]
    fn page_above_the_own_stack_may_be_stopped_wherever_the_frames_are() {
        // Above the first stack that is mapped may lie the first thread's variables, and above one that was used before
        // anything. So several live at the same time.
        const THREADS: usize = 8;
        let all = std::sync::Barrier::new(THREADS);
        let judge = || {
            let above = end_of_own_stack();
            all.wait();
            let is_no_threads = belongs_to_no_thread(&(above..above + page_size())).is_ok();
            assert!(above.abs_diff(std::ptr::from_ref(&above).addr()) < FRAMES);
            assert!(!is_no_threads || probe_stoppable(above).unwrap());
            all.wait();
            is_no_threads
        };
        let judged: Vec<bool> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(judge)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(judged.contains(&true), "above a stack lies another thread's guard page");
    }

    fn end_of_own_stack() -> usize {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        end_of(descriptor_of(own).unwrap()).next_multiple_of(page_size())
    }

    #[test]
    fn survey_of_a_range_with_holes_finds_them() {
        let maps = [mapped(10..20), mapped(20..30), mapped(40..50)];
        let hole = |range: Range<usize>| {
            let touched: Vec<_> =
                maps.iter().filter(|map| overlap(&map.addresses, &range)).cloned().collect();
            match check_no_hole(&touched, &range) {
                Err(SnapshotError::Unmapped { hole }) => Some(hole),
                other => other.map(|()| None).unwrap(),
            }
        };
        assert_eq!(hole(10..30), None);
        assert_eq!(hole(15..21), None);
        assert_eq!(hole(5..21), Some(5..10));
        assert_eq!(hole(25..45), Some(30..40));
        assert_eq!(hole(45..60), Some(50..60));
        assert_eq!(hole(60..70), Some(60..70));
    }

    #[test]
    fn survey_of_an_unsuitable_mapping_says_why() {
        let with = |change: fn(&mut MappedRange)| {
            let mut mapping = mapped(10..20);
            change(&mut mapping);
            defect(&mapping, &[30])
        };
        assert_eq!(with(|_| {}), None);
        assert_eq!(with(|map| map.name = "[heap]".into()), None);
        assert_eq!(with(|map| map.name = "[anon:mine]".into()), None);
        assert_eq!(with(|map| map.is_shared = true), Some(Unsuitable::Shared));
        assert_eq!(with(|map| map.inode = 7), Some(Unsuitable::File));
        assert_eq!(with(|map| map.name = "/dev/zero".into()), Some(Unsuitable::File));
        assert_eq!(with(|map| map.name = "[vvar]".into()), Some(Unsuitable::Kernels));
        assert_eq!(with(|map| map.is_readable = false), Some(Unsuitable::Unreadable));
        assert_eq!(with(|map| map.addresses.start = 30), Some(Unsuitable::Mergeable));
        assert!(matches!(with(|map| map.name = "[stack]".into()), Some(Unsuitable::Stack { .. })));
    }
}
