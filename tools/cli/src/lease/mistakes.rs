//! Mistakes in the arguments of QEMU and Cloud Hypervisor: the program would copy the memory, would need more of it
//! than there is, or would leave a part unused.

use std::ffi::{OsStr, OsString};

use hugekit_machine::size::Size;

use super::command::names_memory;
use crate::qemu::properties::Properties;
use hugekit_terminal::outcome::UsageError;

/// The size of memory that an argument names: of how many bytes, from which byte on.
struct NamedSize {
    bytes: usize,
    from: usize,
}

/// Refuses arguments with which a program would copy the memory, or would need more than `leased`.
pub(super) fn check(arguments: &[OsString], leased: Size) -> Result<(), UsageError> {
    let mut before = OsStr::new("");
    for argument in arguments {
        let mistake = names_memory(argument).then(|| mistake(before, argument, leased)).flatten();
        if let Some(mistake) = mistake {
            return Err(UsageError(format!("{}: {mistake}", argument.display())));
        }
        before = argument;
    }
    Ok(())
}

/// Returns a warning if an argument leaves a part of the memory without a use.
pub(super) fn unused(arguments: &[OsString], leased: Size) -> Option<String> {
    let named = arguments.iter().filter(|argument| names_memory(argument));
    let used = named.filter_map(|argument| part(argument)).max_by_key(|part| part.bytes)?;
    let NamedSize { bytes, from: 0 } = used else { return None };
    let (used, all) = (Size(bytes), of_qemu(leased.0));
    (bytes < leased.0).then(|| {
        format!("warning: {leased} are leased, but only {used} are used: write size={all}")
    })
}

fn mistake(before: &OsStr, argument: &OsStr, leased: Size) -> Option<String> {
    if maps_privately(before, argument) {
        let size = of_qemu(leased.0);
        return Some(format!(
            "with -mem-path QEMU would copy the memory: write -machine memory-backend=m \
             -object memory-backend-file,id=m,size={size},mem-path={{}},share=on"
        ));
    }
    if let Some(option) = unshared(argument) {
        return Some(format!("the program would copy the memory: add {option}"));
    }
    let NamedSize { bytes, from } = part(argument)?;
    let (wanted, fits) = (Size(bytes.saturating_add(from)), of_qemu(leased.0));
    (wanted.0 > leased.0).then(|| {
        format!("{wanted} are used, but {leased} are leased: write size={fits}, or --size {wanted}")
    })
}

/// Returns true if QEMU's option of this name, which maps its file privately, names the memory.
fn maps_privately(before: &OsStr, argument: &OsStr) -> bool {
    let is_option =
        |text: &OsStr| [OsStr::new("-mem-path"), OsStr::new("--mem-path")].contains(&text);
    is_option(before) || argument.to_string_lossy().contains("-mem-path {}")
}

/// Returns the missing option if the argument belongs to a program that would copy the memory
/// without it.
fn unshared(argument: &OsStr) -> Option<&'static str> {
    let text = argument.to_string_lossy().replace([' ', '"'], "").replace(':', "=");
    let has = |options: &[&str]| options.iter().any(|option| text.contains(option));
    if text.contains("memory-backend-file") && !has(&["share=on", "share=true", "share=yes"]) {
        return Some("share=on");
    }
    let is_zone = text.contains("file={}") && text.contains("size=");
    (is_zone && !has(&["shared=on", "shared=true"])).then_some("shared=on")
}

/// Returns the memory of an object of QEMU or a zone of Cloud Hypervisor.
fn part(argument: &OsStr) -> Option<NamedSize> {
    let properties = Properties::of_argument(argument)?;
    let names_file = properties.has("mem-path") || properties.has("file");
    let from = properties.bytes("offset").unwrap_or(0);
    names_file.then_some(NamedSize { bytes: properties.bytes("size")?, from })
}

/// Returns a size as QEMU and Cloud Hypervisor read it.
fn of_qemu(bytes: usize) -> String {
    let units = [(30, "G"), (20, "M")];
    match units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASED: Size = Size(4 << 30);

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(Into::into).collect()
    }

    fn refused(text: &str) -> String {
        check(&words(text), LEASED).unwrap_err().0
    }

    fn accepted(text: &str) {
        check(&words(text), LEASED).unwrap();
    }

    #[test]
    fn memory_that_would_be_copied_is_refused() {
        let qemu = "-object memory-backend-file,id=m,size=4G,mem-path={}";
        assert!(refused(qemu).contains("add share=on"));
        accepted(&format!("{qemu},share=on"));
        accepted(r#"-object {"qom-type":"memory-backend-file","mem-path":"{}","share":true}"#);
        let zone = "--memory-zone id=m,size=4G,file={}";
        assert!(refused(zone).contains("add shared=on"));
        accepted(&format!("{zone},shared=on"));
    }

    #[test]
    fn each_argument_that_names_the_memory_is_looked_at() {
        let object = "-object memory-backend-file,id=m,mem-path={}";
        assert!(refused(&format!("{object},share=on {object}")).contains("add share=on"));
    }

    #[test]
    fn option_that_maps_memory_privately_is_refused() {
        for text in ["-m 4G -mem-path {} -mem-prealloc", "--mem-path /proc/self/fd/{fd}"] {
            let said = refused(text);
            let object = "memory-backend-file,id=m,size=4G,mem-path={},share=on";
            assert!(said.contains(object), "{said}");
        }
        let script = [OsString::from("exec qemu -mem-path {}")];
        assert!(check(&script, LEASED).is_err());
        accepted("-mem-path /dev/shm {}");
    }

    #[test]
    fn object_larger_than_the_lease_is_refused() {
        let object = |size: &str| {
            format!("-object memory-backend-file,id=m,size={size},mem-path={{}},share=on")
        };
        let said = refused(&object("8G"));
        assert!(said.contains("8GiB are used, but 4GiB are leased: write size=4G, or"), "{said}");
        assert!(refused(&object("2G,offset=3G")).contains("5GiB are used"));
        let json = r#"-object {"qom-type":"memory-backend-file","mem-path":"{}","share":true,"size":4294967297}"#;
        refused(json);
        refused("--memory-zone id=m,size=5G,file={},shared=on");
        for size in ["4G", "4096M", "4294967296", "2G", "2G,offset=2G", "much"] {
            accepted(&object(size));
        }
    }

    #[test]
    fn memory_that_no_object_uses_is_a_warning() {
        let warning = |size: &str| {
            let object = format!("memory-backend-file,id=m,size={size},mem-path={{}},share=on");
            unused(&words(&format!("-object {object}")), LEASED)
        };
        assert!(warning("1G").unwrap().contains("only 1GiB are used: write size=4G"));
        assert_eq!(warning("4G"), None);
        assert_eq!(warning("2G,offset=2G"), None);
        assert_eq!(unused(&words("cat {}"), LEASED), None);
    }

    #[test]
    fn sizes_are_written_as_qemu_reads_them() {
        assert_eq!([3 << 30, 6 << 20, 5, 0].map(of_qemu), ["3G", "6M", "5", "0"]);
    }
}
