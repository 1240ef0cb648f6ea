//! Transparent huge pages: the kernel's policies for anonymous memory and for shared memory.
//!
//! A policy file lists all choices and marks the current one: `always [madvise] never`. Each page
//! size up to the processor's own has files of its own. Their choice `inherit` refers to the global
//! file.

use hugekit::HUGE_PAGE_BYTES;
use hugekit_machine::hugepages::size_of;
use hugekit_machine::hugepages::transparent_size;
use hugekit_machine::{Error, Root};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// The current choice of a policy file, and all choices that the file offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting<T> {
    /// The current choice.
    pub(crate) current: T,
    /// The offered choices, in the kernel's order. Words that this library does not know are left
    /// out.
    pub(crate) offered: Vec<T>,
}

/// A word of a policy file.
pub(crate) trait Choice: Copy + PartialEq + 'static {
    /// Every choice with the kernel's word for it.
    const WORDS: &'static [(Self, &'static str)];

    /// Returns the kernel's word.
    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(choice, _)| *choice == self).map_or("", |(_, word)| word)
    }
}

/// The anonymous memory that gets huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enabled {
    /// Any that is large enough.
    Always,
    /// The global policy applies. Only in the files of one page size.
    Inherit,
    /// Only after `MADV_HUGEPAGE`.
    Madvise,
    /// None.
    Never,
}

impl Choice for Enabled {
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Always, "always"),
        (Self::Inherit, "inherit"),
        (Self::Madvise, "madvise"),
        (Self::Never, "never"),
    ];
}

/// The action of a fault when no huge page is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defrag {
    /// Compacts memory while the program waits.
    Always,
    /// Wakes background compaction.
    Defer,
    /// Waits after `MADV_HUGEPAGE`, defers otherwise.
    DeferMadvise,
    /// Waits after `MADV_HUGEPAGE`, does nothing otherwise.
    Madvise,
    /// Nothing.
    Never,
}

impl Choice for Defrag {
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Always, "always"),
        (Self::Defer, "defer"),
        (Self::DeferMadvise, "defer+madvise"),
        (Self::Madvise, "madvise"),
        (Self::Never, "never"),
    ];
}

/// Which shared memory (memfd, System V, shared anonymous) gets huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shmem {
    /// Any.
    Always,
    /// The global policy applies. Only in the files of one page size.
    Inherit,
    /// Only if the huge page lies within the file's size.
    WithinSize,
    /// Only after `MADV_HUGEPAGE`.
    Advise,
    /// None.
    Never,
    /// None, whatever a mount or a page size says.
    Deny,
    /// Any, whatever a mount or a page size says.
    Force,
}

impl Choice for Shmem {
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Always, "always"),
        (Self::Inherit, "inherit"),
        (Self::WithinSize, "within_size"),
        (Self::Advise, "advise"),
        (Self::Never, "never"),
        (Self::Deny, "deny"),
        (Self::Force, "force"),
    ];
}

/// Transparent huge pages of the processor's own size for anonymous memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Thp {
    /// Which memory gets them.
    pub(crate) enabled: Setting<Enabled>,
    /// Their size in bytes.
    pub(crate) page_size: u64,
}

impl Thp {
    /// Reads the global policy and the page size.
    ///
    /// # Errors
    /// A file cannot be read or parsed. A kernel without THP does not have the files.
    pub(crate) fn read(root: &Root) -> Result<Self, Error> {
        let page_size = transparent_size(root)?;
        Ok(Self {
            enabled: setting(root, "enabled")?,
            page_size: page_size.unwrap_or(HUGE_PAGE_BYTES as u64),
        })
    }
}

/// Returns what faults do when no huge page is free.
///
/// # Errors
/// The file cannot be read or understood.
pub(crate) fn defrag(root: &Root) -> Result<Setting<Defrag>, Error> {
    setting(root, "defrag")
}

/// Returns the global policy for shared memory.
///
/// # Errors
/// The file cannot be read or understood.
pub(crate) fn shmem(root: &Root) -> Result<Setting<Shmem>, Error> {
    setting(root, "shmem_enabled")
}

/// The background thread that collapses base pages into huge ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Khugepaged {
    /// True if it compacts memory to find a huge page.
    pub(crate) defrag: bool,
    /// The most base pages of a huge page that may be untouched and are filled in.
    pub(crate) max_ptes_none: u64,
    /// Its pause between scans in milliseconds.
    pub(crate) scan_sleep_ms: u64,
}

/// Reads the settings of khugepaged.
///
/// # Errors
/// A file cannot be read or understood.
pub(crate) fn khugepaged(root: &Root) -> Result<Khugepaged, Error> {
    let number = |name| root.read_number(format!("{THP}/khugepaged/{name}"));
    Ok(Khugepaged {
        defrag: number("defrag")? != 0,
        max_ptes_none: number("max_ptes_none")?,
        scan_sleep_ms: number("scan_sleep_millisecs")?,
    })
}

/// The policies of one page size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageSize {
    /// In bytes.
    pub(crate) bytes: u64,
    /// For anonymous memory, where it can have pages of this size.
    pub(crate) enabled: Option<Setting<Enabled>>,
    /// For shared memory (Linux 6.11).
    pub(crate) shmem: Option<Setting<Shmem>>,
}

/// Returns the page sizes that have policies of their own, smallest first; empty before Linux 6.8.
///
/// # Errors
/// A file or the directory cannot be read or understood.
pub(crate) fn page_sizes(root: &Root) -> Result<Vec<PageSize>, Error> {
    let mut sizes: Vec<u64> = root.names(THP)?.iter().filter_map(|name| size_of(name)).collect();
    sizes.sort_unstable();
    sizes.into_iter().map(|bytes| page_size(root, bytes)).collect()
}

fn page_size(root: &Root, bytes: u64) -> Result<PageSize, Error> {
    let directory = format!("hugepages-{}kB", bytes >> 10);
    Ok(PageSize {
        bytes,
        enabled: optional(setting(root, &format!("{directory}/enabled")))?,
        shmem: optional(setting(root, &format!("{directory}/shmem_enabled")))?,
    })
}

fn optional<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Err(error) if error.is_not_found() => Ok(None),
        other => other.map(Some),
    }
}

fn setting<T: Choice>(root: &Root, name: &str) -> Result<Setting<T>, Error> {
    root.read_value(format!("{THP}/{name}"), "choices, one in brackets", parse)
}

fn parse<T: Choice>(text: &str) -> Option<Setting<T>> {
    let known =
        |word: &str| T::WORDS.iter().find(|(_, name)| *name == word).map(|(choice, _)| *choice);
    let bare = |word: &str| word.trim_matches(['[', ']']).to_owned();
    let current = text.split_ascii_whitespace().find(|word| word.starts_with('['))?;
    Some(Setting {
        current: known(&bare(current))?,
        offered: text.split_ascii_whitespace().filter_map(|word| known(&bare(word))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use hugekit_invented_machines::Files;

    use super::*;

    #[test]
    fn the_choice_in_brackets_is_in_force() {
        let machine = Files::new().unwrap();
        let files = [("enabled", "always [madvise] never"), ("hpage_pmd_size", "536870912")];
        machine.files(THP, &files);
        let thp = Thp::read(&Root::at(machine.path())).unwrap();
        assert_eq!(thp.enabled.current, Enabled::Madvise);
        assert_eq!(thp.enabled.offered, [Enabled::Always, Enabled::Madvise, Enabled::Never]);
        assert_eq!(thp.page_size, 512 << 20);
    }

    #[test]
    fn every_word_reads_back() {
        fn all<T: Choice + std::fmt::Debug>() {
            for (choice, word) in T::WORDS {
                let setting: Setting<T> = parse(&format!("[{word}]")).unwrap();
                assert_eq!((setting.current, choice.word()), (*choice, *word));
            }
        }
        all::<Enabled>();
        all::<Defrag>();
        all::<Shmem>();
    }

    #[test]
    fn a_word_from_the_future_is_passed_over_unless_it_is_in_force() {
        let offered = parse::<Defrag>("perhaps [never]").unwrap().offered;
        assert_eq!(offered, [Defrag::Never]);
        assert_eq!(parse::<Defrag>("[perhaps] never"), None);
        assert_eq!(parse::<Defrag>("always never"), None);
        assert_eq!(parse::<Defrag>(""), None);
    }

    #[test]
    fn page_sizes_are_sorted_and_may_lack_a_policy() {
        let machine = Files::new().unwrap();
        let policy = [("enabled", "always [inherit] madvise never")];
        machine.files(&format!("{THP}/hugepages-2048kB"), &policy);
        machine.files(&format!("{THP}/hugepages-64kB"), &policy);
        machine.file(format!("{THP}/hugepages-8kB/shmem_enabled"), "inherit [never]");
        let sizes = page_sizes(&Root::at(machine.path())).unwrap();
        let bytes: Vec<u64> = sizes.iter().map(|size| size.bytes >> 10).collect();
        assert_eq!(bytes, [8, 64, 2048]);
        assert_eq!(sizes[0].enabled, None);
        assert_eq!(sizes[0].shmem.as_ref().unwrap().current, Shmem::Never);
    }

    #[test]
    fn a_kernel_without_thp_has_no_files() {
        let machine = Files::new().unwrap();
        assert!(Thp::read(&Root::at(machine.path())).unwrap_err().is_not_found());
        assert!(page_sizes(&Root::at(machine.path())).unwrap_err().is_not_found());
    }
}
