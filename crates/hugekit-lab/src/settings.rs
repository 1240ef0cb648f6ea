//! Settings of the machine that an experiment needs, changed for a while and put back.
//!
//! Every change is undone in reverse order: by [`Settings::restore`], which reports what could not
//! be undone, or by the drop, on an error or a panic.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hugekit::machine::hugepages::{self, Pool};
use hugekit::machine::{self, Root};

use crate::LabError;

/// Settings of transparent huge pages by size.
const FOLIOS: &str = "/sys/kernel/mm/transparent_hugepage";

/// The largest folio that a page table of base pages maps on any architecture.
const LARGEST_FOLIO: usize = 512 << 20;

/// Changes made so far, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    allowed: bool,
    changed: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    /// A file, and what it held.
    Word(PathBuf, String),
    /// Huge pages of this size that were added on this machine. What others add or take meanwhile
    /// stays as they want it.
    Pages { root: Root, page_size: u64, added: u64 },
}

impl Settings {
    /// Settings that may be changed, if `allowed`.
    pub(crate) fn new(allowed: bool) -> Self {
        Self { allowed, changed: Vec::new() }
    }

    /// Writes `value` into the file of a choice such as `always [madvise] never` unless one of
    /// `enough` is chosen already. Returns whether one of them is in force now.
    pub(crate) fn choose(
        &mut self,
        path: &Path,
        enough: &[&str],
        value: &str,
    ) -> Result<bool, LabError> {
        let before = fs::read_to_string(path).map_err(failed("read", path))?;
        let before = chosen(&before);
        if enough.contains(&before) {
            return Ok(true);
        }
        if !self.allowed {
            return Ok(false);
        }
        fs::write(path, value).map_err(failed("change", path))?;
        self.changed.push(Change::Word(path.to_owned(), before.to_owned()));
        Ok(true)
    }

    /// Reserves huge pages until `wanted` of this size are free and promised to nobody, if that is
    /// allowed, or as many as the kernel finds. Returns the pool as it is then; `None` where the
    /// kernel has no such pages.
    pub(crate) fn reserve(
        &mut self,
        root: &Root,
        page_size: u64,
        wanted: u64,
    ) -> Result<Option<Pool>, LabError> {
        let Some(before) = huge_pages(root, page_size)? else { return Ok(None) };
        let missing = wanted.saturating_sub(before.unpromised());
        if missing == 0 || !self.allowed {
            return Ok(Some(before));
        }
        let path = count_of(root, page_size);
        let asked = before.total - before.surplus + missing;
        fs::write(&path, asked.to_string()).map_err(failed("change", &path))?;
        let after = huge_pages(root, page_size)?.unwrap_or(before.clone());
        let added = after.total.saturating_sub(before.total);
        self.changed.push(Change::Pages { root: root.clone(), page_size, added });
        Ok(Some(after))
    }

    /// Has anonymous memory that asks for it be on folios of this size, and of no other, if that is allowed.
    /// Returns whether it is so now; a kernel that has no such folios is left alone.
    pub(crate) fn only_folios_of(&mut self, root: &Root, bytes: usize) -> Result<bool, LabError> {
        let folder = root.path(FOLIOS);
        let file = |size: usize| folder.join(format!("hugepages-{}kB/enabled", size >> 10));
        if !self.allowed || !file(bytes).exists() {
            return Ok(false);
        }
        let sizes = (1..).map(|order| rustix::param::page_size() << order);
        for size in
            sizes.take_while(|&size| size <= LARGEST_FOLIO).filter(|&size| file(size).exists())
        {
            let value = if size == bytes { "madvise" } else { "never" };
            self.choose(&file(size), &[value], value)?;
        }
        Ok(true)
    }

    /// Puts everything back; the first failure is reported, and the others are still tried.
    pub(crate) fn restore(&mut self) -> Result<(), LabError> {
        let mut outcome = Ok(());
        while let Some(change) = self.changed.pop() {
            outcome = outcome.and(change.undo());
        }
        outcome
    }
}

impl Change {
    fn undo(self) -> Result<(), LabError> {
        match self {
            Self::Word(path, before) => fs::write(&path, before).map_err(failed("restore", &path)),
            Self::Pages { root, page_size, added } => {
                let Some(now) = huge_pages(&root, page_size)? else { return Ok(()) };
                let path = count_of(&root, page_size);
                let rest = (now.total - now.surplus).saturating_sub(added);
                fs::write(&path, rest.to_string()).map_err(failed("restore", &path))
            }
        }
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        let _ = self.restore();
    }
}

/// The kernel's huge pages of this size; `None` where it has none.
pub(crate) fn huge_pages(root: &Root, page_size: u64) -> Result<Option<Pool>, machine::Error> {
    match hugepages::read(root) {
        Err(error) if error.is_not_found() => Ok(None),
        pools => Ok(pools?.into_iter().find(|pool| pool.page_size == page_size)),
    }
}

fn count_of(root: &Root, page_size: u64) -> PathBuf {
    let kib = page_size >> 10;
    root.path(format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"))
}

/// The word in brackets; the whole text where there are none.
fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text, |(word, _)| word).trim()
}

fn failed(verb: &'static str, path: &Path) -> impl Fn(io::Error) -> LabError {
    move |cause| LabError::Setting { verb, path: path.display().to_string(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("enabled");
        fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn what_is_enough_stays() {
        let (_dir, path) = file("always [madvise] never\n");
        let mut settings = Settings::new(true);
        assert!(settings.choose(&path, &["always", "madvise"], "madvise").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "always [madvise] never\n");
    }

    #[test]
    fn nothing_changes_unless_allowed() {
        let (_dir, path) = file("always madvise [never]\n");
        let mut settings = Settings::new(false);
        assert!(!settings.choose(&path, &["madvise"], "madvise").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "always madvise [never]\n");
    }

    #[test]
    fn a_change_is_put_back_on_drop_and_on_panic() {
        let (_dir, path) = file("always madvise [never]\n");
        let changed = std::panic::catch_unwind(|| {
            let mut settings = Settings::new(true);
            assert!(settings.choose(&path, &["madvise"], "madvise").unwrap());
            assert_eq!(fs::read_to_string(&path).unwrap(), "madvise");
            panic!("an experiment failed");
        });
        assert!(changed.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "never");
    }

    /// A machine with so many huge pages of 2 MiB in all and free, written out as the kernel would.
    fn machine(total: u64, free: u64) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("sys/kernel/mm/hugepages/hugepages-2048kB");
        fs::create_dir_all(&pool).unwrap();
        let counts = [
            ("nr_hugepages", total),
            ("free_hugepages", free),
            ("resv_hugepages", 2),
            ("surplus_hugepages", 0),
            ("nr_overcommit_hugepages", 0),
        ];
        for (name, count) in counts {
            fs::write(pool.join(name), count.to_string()).unwrap();
        }
        let root = Root::at(dir.path());
        (dir, root)
    }

    fn count(root: &Root) -> String {
        fs::read_to_string(count_of(root, 2 << 20)).unwrap()
    }

    #[test]
    fn huge_pages_are_added_to_what_is_free_and_taken_back() {
        let (_dir, root) = machine(10, 7);
        let mut settings = Settings::new(true);
        settings.reserve(&root, 2 << 20, 5).unwrap();
        assert_eq!(count(&root), "10");
        let pool = settings.reserve(&root, 2 << 20, 512).unwrap().unwrap();
        // Of the seven free ones, two are promised.
        assert_eq!(count(&root), "517");
        assert_eq!(pool.total, 517);
        fs::write(count_of(&root, 2 << 20), "520").unwrap();
        settings.restore().unwrap();
        assert_eq!(count(&root), "13", "three of them are somebody else's");
    }

    #[test]
    fn no_huge_page_is_added_unless_allowed() {
        let (_dir, root) = machine(10, 7);
        let pool = Settings::new(false).reserve(&root, 2 << 20, 512).unwrap().unwrap();
        assert_eq!((count(&root).as_str(), pool.unpromised()), ("10", 5));
    }

    #[test]
    fn a_size_that_the_kernel_lacks_is_none() {
        let (_dir, root) = machine(10, 7);
        assert!(Settings::new(true).reserve(&root, 1 << 30, 1).unwrap().is_none());
    }

    #[test]
    fn folios_of_one_size_are_allowed_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let file =
            |kib: usize| dir.path().join(format!("{}/hugepages-{kib}kB/enabled", &FOLIOS[1..]));
        for (kib, text) in [(16, "always inherit madvise [never]"), (2048, "[inherit] never")] {
            fs::create_dir_all(file(kib).parent().unwrap()).unwrap();
            fs::write(file(kib), text).unwrap();
        }
        let (root, read) = (Root::at(dir.path()), |kib| fs::read_to_string(file(kib)).unwrap());
        assert!(!Settings::new(false).only_folios_of(&root, 16 << 10).unwrap());
        let mut settings = Settings::new(true);
        assert!(!settings.only_folios_of(&root, 64 << 10).unwrap());
        assert_eq!(read(2048), "[inherit] never");
        assert!(settings.only_folios_of(&root, 16 << 10).unwrap());
        assert_eq!((read(16).as_str(), read(2048).as_str()), ("madvise", "never"));
        settings.restore().unwrap();
        assert_eq!((read(16).as_str(), read(2048).as_str()), ("never", "inherit"));
    }

    #[test]
    fn an_unreadable_setting_names_its_file() {
        let error = Settings::new(true).choose(Path::new("/no/such/file"), &[], "x").unwrap_err();
        assert_eq!(error.to_string(), "cannot read /no/such/file");
    }
}
