//! How much memory and disk space a part may use, and what the machine is.

use anyhow::ensure;
use hugekit::HUGE_PAGE_BYTES;
use hugekit_machine::cgroup::{Cgroups, MemoryLeft};
use hugekit_machine::plain;
use hugekit_machine::size::{MIB, Size};
use hugekit_machine::{Memory, Root};

/// With less, times are those of other things.
const LEAST: usize = 4 * MIB;

/// Returns the number of bytes that the tour could use without harm to other programs: of the
/// machine, and of the control group.
fn available() -> anyhow::Result<u64> {
    let root = Root::default();
    let machine = Memory::read(&root)?.available;
    // Where the limit is hidden, a part whose process is killed says so.
    let group = match Cgroups::read(&root).map(|groups| groups.memory_left()) {
        Ok(MemoryLeft::Limited(limit)) => limit.left(),
        _ => u64::MAX,
    };
    Ok(machine.min(group))
}

/// Returns the number of bytes for a part that has them this many times at once: the wanted size,
/// if half of the available memory suffices.
pub(super) fn bytes(wanted: usize, copies: usize) -> anyhow::Result<usize> {
    let available = usize::try_from(available()?).unwrap_or(usize::MAX);
    let most = available / 2 / copies / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    let bytes = wanted.clamp(1, most.max(1)).next_multiple_of(HUGE_PAGE_BYTES).min(most);
    ensure!(
        bytes > 0 && bytes >= LEAST.min(wanted),
        "it needs {}, and {} of memory are available",
        Size(2 * copies * LEAST),
        Size(available / MIB * MIB)
    );
    Ok(bytes)
}

/// Returns as many of these bytes as a file may have, in the folder for temporary files.
pub(super) fn in_a_file(bytes: usize) -> anyhow::Result<usize> {
    let folder = std::env::temp_dir();
    let free = rustix::fs::statvfs(&folder).map(|found| found.f_bavail * found.f_frsize);
    let free = usize::try_from(free?).unwrap_or(usize::MAX);
    let fits = bytes.min(free / 2) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    ensure!(
        fits > 0 && fits >= LEAST.min(bytes),
        "{} has only {} free for a file",
        folder.display(),
        Size(free / MIB * MIB)
    );
    Ok(fits)
}

/// Returns the facts that matter to all parts.
pub(super) fn facts() -> String {
    let kernel = plain(&rustix::system::uname().release().to_string_lossy());
    let available = available().map_or_else(
        |error| format!("memory unknown ({error})"),
        |bytes| format!("{:.1} GiB of memory available", bytes as f64 / f64::from(1 << 30)),
    );
    format!("Linux {kernel}, {available}, THP {}", huge_pages())
}

/// Returns the setting, which is the word in brackets.
fn huge_pages() -> String {
    let setting = Root::default().read("/sys/kernel/mm/transparent_hugepage/enabled");
    let setting = setting.unwrap_or_default();
    let chosen = setting.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen.map_or_else(|| "none".to_owned(), |(chosen, _)| plain(chosen))
}
