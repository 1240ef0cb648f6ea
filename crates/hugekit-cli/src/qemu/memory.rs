//! The memory of a guest in QEMU's arguments: the objects that a lease can replace.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use hugekit::HUGE_PAGE_BYTES;
use hugekit::pool::Backing;
use hugekit_record::size::Size;

use super::properties::Properties;

/// The property of a block of memory by which a saved guest finds its memory again.
const CANONICAL: &str = "x-use-canonical-path-for-ramblock-id";

/// Properties that say how QEMU makes or frees memory. A lease is already made.
const OF_NEW_MEMORY: [&str; 8] = [
    "prealloc",
    "prealloc-threads",
    "prealloc-context",
    "reserve",
    "hugetlb",
    "hugetlbsize",
    "seal",
    "discard-data",
];

/// Options with which QEMU prints an answer and ends.
const QUESTIONS: [&str; 5] = ["-h", "-help", "--help", "-version", "--version"];

/// `f_type` of statfs(2).
const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58f6;

/// An object of guest memory, which QEMU would make itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GuestMemory {
    /// The place of its properties in the arguments.
    at: usize,
    properties: Properties,
    pub(super) id: String,
    pub(super) bytes: usize,
    /// Of the reserved huge pages that QEMU would use itself; 0 for other memory.
    pub(super) page_size: u64,
    /// The NUMA nodes that it must be on; none for any node.
    pub(super) nodes: Vec<u32>,
}

impl GuestMemory {
    /// The objects that become guest memory by `-machine` or `-numa`. Empty if QEMU is started only to answer a question,
    /// or if no lease can replace an object.
    pub(super) fn of_arguments(arguments: &[OsString]) -> Vec<Self> {
        if arguments.iter().any(|argument| QUESTIONS.iter().any(|question| argument == question)) {
            return Vec::new();
        }
        let used = used(arguments);
        let objects = values(arguments, &["object"]);
        objects
            .filter_map(|(at, value)| Self::of_object(at, value))
            .filter(|memory| used.contains(&memory.id))
            .collect()
    }

    fn of_object(at: usize, value: &OsStr) -> Option<Self> {
        let properties = Properties::of_argument(value)?;
        let id = properties.text("id")?;
        let is_new = match properties.object_type()?.as_str() {
            "memory-backend-ram" | "memory-backend-memfd" => true,
            "memory-backend-file" => is_new_file(&properties, &id),
            _ => false,
        };
        let Size(bytes) = properties.text("size")?.parse().ok()?;
        let nodes = properties.numbers("host-nodes");
        // QEMU maps a lease as shared memory. Private memory stays private if it was asked for.
        let may_share = properties.switch("share") != Some(false);
        let page_size = page_size(&properties);
        let may_replace = is_new && may_share && bytes > 0;
        may_replace.then_some(Self { at, properties, id, bytes, page_size, nodes })
    }

    /// Puts a populated file in the place of the memory.
    pub(super) fn replace(&self, arguments: &mut [OsString], path: &str, backing: Backing) {
        let mut properties = self.properties.clone();
        let was_ram = properties.object_type().as_deref() == Some("memory-backend-ram");
        if was_ram && !properties.has(CANONICAL) {
            // Memory of this type never has the canonical path as its name, but files have on old machine types.
            properties.set(CANONICAL, false.into());
        }
        properties.set_object_type("memory-backend-file");
        properties.remove(&OF_NEW_MEMORY);
        properties.set("mem-path", path.into());
        properties.set("share", true.into());
        if backing == Backing::Thp && !properties.has("align") {
            // Otherwise QEMU maps the file where no huge page can start.
            properties.set("align", HUGE_PAGE_BYTES.into());
        }
        arguments[self.at] = properties.to_argument();
    }
}

/// Whether QEMU itself would make the file: in a folder of memory, or, as libvirt asks, under the name of the object. A
/// file that exists may have content, and is the user's.
fn is_new_file(properties: &Properties, id: &str) -> bool {
    let Some(path) = properties.text("mem-path") else { return false };
    let path = Path::new(&path);
    let is_made = match path.symlink_metadata() {
        Ok(_) => is_folder_of_memory(path),
        Err(error) => {
            let is_named = path.file_name().is_some_and(|name| name == id);
            error.kind() == std::io::ErrorKind::NotFound && is_named
        }
    };
    let is_on = |name| properties.switch(name) == Some(true);
    is_made && !is_on("readonly") && !is_on("pmem") && !properties.has("offset")
}

fn is_folder_of_memory(path: &Path) -> bool {
    path.is_dir() && file_system(path).is_some_and(|(kind, _)| [TMPFS, HUGETLBFS].contains(&kind))
}

/// Its type, and the size of its blocks, which of huge pages is the size of a page.
fn file_system(path: &Path) -> Option<(u64, u64)> {
    let facts = rustix::fs::statfs(path).ok()?;
    Some((facts.f_type as u64 & 0xffff_ffff, facts.f_bsize as u64))
}

/// The size of the reserved huge pages that QEMU would use; 0 for other memory.
fn page_size(properties: &Properties) -> u64 {
    if properties.switch("hugetlb") == Some(true) {
        let size = properties.text("hugetlbsize").and_then(|size| size.parse::<Size>().ok());
        return size.map_or(HUGE_PAGE_BYTES, |Size(bytes)| bytes) as u64;
    }
    let path = properties.text("mem-path");
    match path.and_then(|path| file_system(Path::new(&path))) {
        Some((HUGETLBFS, page_size)) => page_size,
        _ => 0,
    }
}

/// The names of objects that are the memory of the machine or of a node.
fn used(arguments: &[OsString]) -> Vec<String> {
    let named = |options: &'static [&str], property: &'static str| {
        values(arguments, options)
            .filter_map(move |(_, value)| Properties::of_argument(value)?.text(property))
    };
    named(&["machine", "M"], "memory-backend").chain(named(&["numa"], "memdev")).collect()
}

/// The values of options with one of these names, and their places.
fn values<'a>(
    arguments: &'a [OsString],
    names: &'static [&str],
) -> impl Iterator<Item = (usize, &'a OsStr)> {
    let is_named = |option: &OsStr| {
        let option = option.to_str().unwrap_or_default();
        let name = option.strip_prefix("--").or_else(|| option.strip_prefix('-'));
        name.is_some_and(|name| names.contains(&name))
    };
    let pairs = arguments.iter().zip(arguments.iter().enumerate().skip(1));
    pairs
        .filter(move |(option, _)| is_named(option))
        .map(|(_, (at, value))| (at, value.as_os_str()))
}

#[cfg(test)]
mod tests;
