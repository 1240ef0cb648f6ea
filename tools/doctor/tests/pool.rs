//! The doctor's line about shared memory compared with the pages of a pool on this machine.

use std::fs;

use hugekit::pool::Backing;
use hugekit::{HUGE_PAGE_BYTES, Pool};
use hugekit_doctor::{Line, Verdict, examine};
use hugekit_machine::Root;
use hugekit_testing::trials::skipped;

const FOLIOS: usize = 4;

/// Bytes of the mapping at `address` that the page tables map by huge pages; `None` if the kernel does not print them.
fn bytes_on_huge_pages(address: usize) -> Option<usize> {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let begins = format!("{address:x}-");
    let mapping = smaps.lines().skip_while(|line| !line.starts_with(&begins)).skip(1);
    let field = |line: &str| {
        let kib = line.strip_prefix("ShmemPmdMapped:")?.trim().strip_suffix(" kB")?;
        kib.parse::<usize>().ok()
    };
    mapping.take(40).find_map(field).map(|kib| kib << 10)
}

fn line_about_shared_memory() -> Option<Line> {
    let report = examine(&Root::default()).unwrap();
    let is_about_it =
        |line: &Line| line.topic.0 == "transparent huge pages" && line.name == "shared memory";
    report.lines.into_iter().find(is_about_it)
}

#[test]
fn line_about_shared_memory_says_what_a_pool_gets() {
    let line = line_about_shared_memory().unwrap();
    let pool = Pool::builder(FOLIOS * HUGE_PAGE_BYTES).ladder([Backing::Thp, Backing::Base]);
    let pool = pool.build().unwrap();
    let mut region = pool.region(pool.capacity()).unwrap();
    region.fill(1);
    let Some(huge) = bytes_on_huge_pages(region.as_ptr().addr()) else {
        return skipped("/proc/self/smaps has no ShmemPmdMapped");
    };
    // Single folios may be base pages, when memory is fragmented.
    assert_eq!(huge > 0, line.verdict != Verdict::Missing, "{huge} bytes of huge pages: {line:?}");
    assert_eq!(line.value.contains("collaps"), pool.backing_report().by_collapse, "{line:?}");
}
