//! The memory of a guest in QEMU's arguments: the objects that a lease can replace.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use hugekit::HUGE_PAGE_BYTES;
use hugekit::pool::Backing;

use super::config_file::Section;
use super::left::{Left, Reason};
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
    /// Bytes of the reserved huge pages that QEMU would use itself; 0 for other memory.
    pub(super) page_size: u64,
    /// The NUMA nodes that it must be on; none for any node.
    pub(super) nodes: Vec<u32>,
    /// The kernel may merge its pages with those of other programs (KSM), if it does so at all. It
    /// does not merge a lease, which is shared memory.
    pub(super) is_mergeable: bool,
}

impl GuestMemory {
    /// Returns the objects that become guest memory by `-machine` or `-numa`. Empty if QEMU is
    /// started only to answer a question, or if no lease can replace an object.
    pub(super) fn of_arguments(arguments: &[OsString]) -> Vec<Self> {
        let mut memory: Vec<Self> = objects(arguments).filter_map(Result::ok).collect();
        let is_off = |value: &OsStr| {
            let machine = Properties::of_argument(value);
            machine.and_then(|machine| machine.switch("mem-merge")) == Some(false)
        };
        if values(arguments, &["machine", "M"]).any(|(_, value)| is_off(value)) {
            memory.iter_mut().for_each(|memory| memory.is_mergeable = false);
        }
        memory
    }

    /// No object of memory, or one whose mistakes QEMU reports itself, is none.
    fn of_object(at: usize, value: &OsStr, used: &[String]) -> Option<Result<Self, Left>> {
        let properties = Properties::of_argument(value)?;
        let object_type = properties.object_type()?;
        let kind = object_type.strip_prefix("memory-backend-")?;
        let id = properties.text("id")?;
        let bytes = properties.bytes("size").filter(|&bytes| bytes > 0)?;
        if kind == "file" && !properties.has("mem-path") {
            return None;
        }
        let reason =
            if used.contains(&id) { stays(kind, &properties, &id) } else { Some(Reason::Unnamed) };
        if let Some(reason) = reason {
            return Some(Err(Left { name: id, reason }));
        }
        let (nodes, page_size) = (properties.numbers("host-nodes"), page_size(&properties));
        let is_private = kind == "ram" && properties.switch("share") != Some(true);
        let is_mergeable = is_private && properties.switch("merge") != Some(false);
        Some(Ok(Self { at, properties, id, bytes, page_size, nodes, is_mergeable }))
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
        if backing.is_transparent() && !properties.has("align") {
            // Otherwise QEMU maps the file where no huge page can start.
            properties.set("align", backing.page_size().into());
        }
        arguments[self.at] = properties.to_argument();
    }
}

/// Returns the objects of memory: those that a lease can replace, and those that stay.
pub(super) fn objects(
    arguments: &[OsString],
) -> impl Iterator<Item = Result<GuestMemory, Left>> + '_ {
    let used = used(arguments);
    let asked = if is_question(arguments) { &[] } else { arguments };
    values(asked, &["object"])
        .filter_map(move |(at, value)| GuestMemory::of_object(at, value, &used))
}

/// Returns true if QEMU is started only to answer a question, as libvirt asks for the capabilities
/// of a machine without memory.
pub(super) fn is_question(arguments: &[OsString]) -> bool {
    let is_one = |argument: &OsString| QUESTIONS.iter().any(|question| argument == question);
    let is_none = |value: &OsStr| {
        let properties = Properties::of_argument(value);
        let name = properties.and_then(|found| found.object_type().or(found.text("type")));
        name.as_deref() == Some("none")
    };
    arguments.iter().any(is_one) || values(arguments, &["machine", "M"]).any(|(_, v)| is_none(v))
}

/// Returns the first of these options, as it was written.
pub(super) fn first_option(arguments: &[OsString], names: &'static [&str]) -> Option<String> {
    let named = arguments.iter().find(|argument| is_option(argument, names))?;
    Some(named.to_string_lossy().into_owned())
}

/// Returns the reason why no lease replaces an object that is guest memory, if none does.
fn stays(kind: &str, properties: &Properties, id: &str) -> Option<Reason> {
    // QEMU maps a lease as shared memory. Private memory stays private if it was asked for.
    if properties.switch("share") == Some(false) {
        return Some(Reason::Private);
    }
    let is_on = |name| properties.switch(name) == Some(true);
    match kind {
        "ram" | "memfd" => None,
        "file" if is_on("readonly") || is_on("pmem") || properties.has("offset") => {
            Some(Reason::FileProperties)
        }
        "file" => (!is_new_file(properties, id)).then_some(Reason::OwnFile),
        _ => Some(Reason::OtherType),
    }
}

/// Returns true if QEMU itself would make the file: in a folder of memory, or, as libvirt asks,
/// under the name of the object. A file that exists may have content, and is the user's.
fn is_new_file(properties: &Properties, id: &str) -> bool {
    let Some(path) = properties.text("mem-path") else { return false };
    let path = Path::new(&path);
    match path.symlink_metadata() {
        Ok(_) => is_folder_of_memory(path),
        Err(error) => {
            let is_named = path.file_name().is_some_and(|name| name == id);
            error.kind() == std::io::ErrorKind::NotFound && is_named
        }
    }
}

fn is_folder_of_memory(path: &Path) -> bool {
    path.is_dir() && file_system(path).is_some_and(|(kind, _)| [TMPFS, HUGETLBFS].contains(&kind))
}

/// Its type, and the size of its blocks, which of huge pages is the size of a page.
fn file_system(path: &Path) -> Option<(u64, u64)> {
    let facts = rustix::fs::statfs(path).ok()?;
    Some((facts.f_type as u64 & 0xffff_ffff, facts.f_bsize as u64))
}

/// Returns the size of the reserved huge pages that QEMU would use; 0 for other memory.
fn page_size(properties: &Properties) -> u64 {
    if properties.switch("hugetlb") == Some(true) {
        return properties.bytes("hugetlbsize").unwrap_or(HUGE_PAGE_BYTES) as u64;
    }
    let path = properties.text("mem-path");
    match path.and_then(|path| file_system(Path::new(&path))) {
        Some((HUGETLBFS, page_size)) => page_size,
        _ => 0,
    }
}

/// Returns the names of objects that are the memory of the machine or of a node.
fn used(arguments: &[OsString]) -> Vec<String> {
    let named = |options: &'static [&str], property: &'static str| {
        values(arguments, options)
            .filter_map(move |(_, value)| Properties::of_argument(value)?.text(property))
    };
    let sections = config_files(arguments);
    let in_files = sections.iter().filter_map(|section| match section.group.as_str() {
        "machine" => section.text("memory-backend"),
        "numa" => section.text("memdev"),
        _ => None,
    });
    let in_arguments = named(&["machine", "M"], "memory-backend").chain(named(&["numa"], "memdev"));
    in_arguments.chain(in_files.map(str::to_owned)).collect()
}

/// Returns the sections of all files that QEMU reads further options from.
pub(super) fn config_files(arguments: &[OsString]) -> Vec<Section> {
    let files = values(arguments, &["readconfig"]);
    files.flat_map(|(_, path)| Section::of_file(Path::new(path))).collect()
}

/// Returns the values of options with one of these names, and their places.
fn values<'a>(
    arguments: &'a [OsString],
    names: &'static [&str],
) -> impl Iterator<Item = (usize, &'a OsStr)> {
    let pairs = arguments.iter().zip(arguments.iter().enumerate().skip(1));
    pairs
        .filter(move |(option, _)| is_option(option, names))
        .map(|(_, (at, value))| (at, value.as_os_str()))
}

fn is_option(argument: &OsStr, names: &[&str]) -> bool {
    let option = argument.to_str().unwrap_or_default();
    let name = option.strip_prefix("--").or_else(|| option.strip_prefix('-'));
    name.is_some_and(|name| names.contains(&name))
}

#[cfg(test)]
mod tests;
