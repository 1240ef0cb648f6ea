//! The allocator of a process, which may ask for huge pages itself.

use hugekit_machine::processes::ProcessFolder;

/// The library that has jemalloc, as Debian's Redis uses it. A program that contains jemalloc is not recognized.
const LIBRARY: &[u8] = b"/libjemalloc";

const VARIABLE: &[u8] = b"MALLOC_CONF=";
const SETTING: &[u8] = b"thp:always";

/// Returns whether a process uses jemalloc, and was started without its setting for huge pages. A process that cannot be
/// read does not.
pub(crate) fn could_ask_for_huge_pages(folder: &ProcessFolder) -> bool {
    let read = |name| folder.read(name).unwrap_or_default();
    has(&read("maps"), LIBRARY) && !is_set(&read("environ"))
}

fn is_set(environment: &[u8]) -> bool {
    let mut variables = environment.split(|&byte| byte == 0);
    variables.any(|variable| variable.starts_with(VARIABLE) && has(variable, SETTING))
}

fn has(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use hugekit_invented_machines::Files;
    use hugekit_machine::Root;

    use super::*;

    #[test]
    fn jemalloc_without_the_setting_could_ask() {
        let jemalloc = "7f00-7f10 r-xp 0 fe:01 7 /usr/lib/libjemalloc.so.2\n";
        let libc = "7f00-7f10 r-xp 0 fe:01 7 /usr/lib/libc.so.6\n";
        let rows = [
            (jemalloc, "A=1\0B=2\0", true),
            (jemalloc, "A=1\0MALLOC_CONF=thp:always\0", false),
            (jemalloc, "MALLOC_CONF=narenas:1,thp:always\0", false),
            (jemalloc, "MALLOC_CONF=thp:never\0X=thp:always\0", true),
            (libc, "", false),
        ];
        for (maps, environment, expected) in rows {
            let files = Files::new().unwrap();
            files.file("/proc/7/maps", maps);
            files.file("/proc/7/environ", environment);
            let folder = ProcessFolder::within(&Root::at(files.path()), 7).unwrap();
            assert_eq!(could_ask_for_huge_pages(&folder), expected, "{maps} {environment:?}");
        }
    }
}
