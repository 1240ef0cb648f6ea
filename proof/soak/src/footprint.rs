//! The resources of a process: to be the same at the end as at the start.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

/// Bytes that the heap may grow by for reasons of its own: names, lists and caches of the C library's.
const HEAP_SLACK: usize = 256 << 10;

/// Bytes of memory that may come and go with page tables' rounding and stacks' depths.
const MEMORY_SLACK: usize = 1 << 20;

/// Descriptors, threads, mappings and memory of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    pub descriptors: Vec<String>,
    /// By name.
    pub threads: Vec<String>,
    /// Mapped and resident bytes by the name of the mapping, without the heap and the stack.
    pub mappings: BTreeMap<String, (usize, usize)>,
    pub heap_in_use: usize,
}

/// Makes what the C library keeps for itself small and steady, so that the rest can be compared: call it first.
pub fn steady_heap() {
    // SAFETY: no precondition.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 << 10);
    }
}

impl Footprint {
    /// Its resources at this moment.
    ///
    /// # Panics
    /// Without `/proc`.
    #[must_use]
    pub fn now() -> Self {
        free_stacks();
        // SAFETY: no precondition.
        let heap_in_use = unsafe {
            libc::malloc_trim(0);
            libc::mallinfo2().uordblks
        };
        let link = |entry: std::io::Result<fs::DirEntry>| fs::read_link(entry.ok()?.path()).ok();
        let open = fs::read_dir("/proc/self/fd").expect("/proc");
        let mut descriptors: Vec<String> =
            open.filter_map(link).map(|target| kind_of(&target.to_string_lossy())).collect();
        descriptors.sort_unstable();
        let tasks = fs::read_dir("/proc/self/task").expect("/proc");
        let name = |task: std::io::Result<fs::DirEntry>| {
            fs::read_to_string(task.ok()?.path().join("comm")).ok()
        };
        let mut threads: Vec<String> = tasks.filter_map(name).collect();
        threads.iter_mut().for_each(|name| name.truncate(name.trim_end().len()));
        threads.sort_unstable();
        Self { descriptors, threads, mappings: mappings(), heap_in_use }
    }

    /// The resources that are more now than at `start`, one line each.
    #[must_use]
    pub fn grown_since(&self, start: &Self) -> Vec<String> {
        let mut grown = Vec::new();
        if !is_part_of(&self.threads, &start.threads) {
            grown.push(format!("threads: {:?}, now {:?}", start.threads, self.threads));
        }
        if self.descriptors != start.descriptors {
            grown.push(format!("descriptors: {:?}, now {:?}", start.descriptors, self.descriptors));
        }
        if self.heap_in_use > start.heap_in_use + HEAP_SLACK {
            grown.push(format!("heap: {} bytes, now {}", start.heap_in_use, self.heap_in_use));
        }
        for (name, &(mapped, resident)) in &self.mappings {
            let before = start.mappings.get(name).copied().unwrap_or_default();
            if mapped > before.0 || resident > before.1 + MEMORY_SLACK {
                grown.push(format!(
                    "mapped {name:?}: {} bytes ({} resident), now {mapped} ({resident})",
                    before.0, before.1
                ));
            }
        }
        grown
    }
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mapped, resident) = self
            .mappings
            .values()
            .fold((0, 0), |sum, mapping| (sum.0 + mapping.0, sum.1 + mapping.1));
        write!(
            f,
            "{} threads, {} descriptors, {mapped} bytes mapped, {resident} resident, {} of the heap in use",
            self.threads.len(),
            self.descriptors.len(),
            self.heap_in_use
        )
    }
}

/// Has the C library unmap the stacks of threads that have ended. A detached thread cannot unmap the stack that it runs
/// on, which stays until the next thread ends, whatever `glibc.pthread.stack_cache_size` is.
fn free_stacks() {
    let thread = std::thread::spawn(|| {});
    thread.join().expect("it does nothing");
}

/// Returns true if all of `part` are in `whole`, as often.
fn is_part_of(part: &[String], whole: &[String]) -> bool {
    let times = |name, names: &[String]| names.iter().filter(|other| *other == name).count();
    part.iter().all(|name| times(name, part) <= times(name, whole))
}

/// Without the numbers that tell one pipe from another.
fn kind_of(target: &str) -> String {
    target.split_once(":[").map_or(target, |(kind, _)| kind).to_owned()
}

fn mappings() -> BTreeMap<String, (usize, usize)> {
    let text = fs::read_to_string("/proc/self/smaps").expect("/proc");
    let mut mappings: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if let Some((start, end)) = fields[0].split_once('-') {
            let address = |text| usize::from_str_radix(text, 16).unwrap_or(0);
            name = format!("{} {}", fields[1], fields.get(5..).unwrap_or_default().join(" "));
            mappings.entry(name.clone()).or_default().0 += address(end) - address(start);
        } else if matches!(fields[0], "Rss:" | "Shared_Hugetlb:" | "Private_Hugetlb:") {
            let kib: usize = fields[1].parse().unwrap_or(0);
            mappings.entry(name.clone()).or_default().1 += kib << 10;
        }
    }
    mappings.retain(|name, _| !name.ends_with("[heap]") && !name.ends_with("[stack]"));
    mappings
}
