//! Settings of the machine that an experiment needs, changed for a while and put back.
//!
//! Every change is undone in reverse order: by [`Settings::restore`], which reports what could not
//! be undone, by the drop, on an error or a panic, or by the next start ([`put_back`]): each change is
//! written to a journal, to the disk, before it is made, and a lab that is killed leaves the journal. A setting that
//! was changed again meanwhile is left as it is. The lab that may change settings has the machine's turn
//! (`SettingsLock`), so that no lab takes another one's setting for the administrator's.

mod change;
mod journal;
mod lock;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hugekit_machine as machine;
use hugekit_machine::Root;
use hugekit_machine::hugepages::{self, HugePagePool};

use self::change::{SettingChange, Undone, chosen, pages};
use self::journal::Journal;
use self::lock::SettingsLock;
use crate::measure::{LabError, Observer};

/// Settings of transparent huge pages by size.
const FOLIOS: &str = "/sys/kernel/mm/transparent_hugepage";

/// The largest folio that a page table of base pages maps on any architecture.
const LARGEST_FOLIO: usize = 512 << 20;

/// The folder of the lock and the journal. Like the settings, it is gone at the next boot.
const STATE: &str = "/run/hugekit";

/// The longest wait for another lab. A run of everything takes three minutes.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Changes made so far, if any may be made.
#[derive(Debug, Default)]
pub struct Settings(Option<Allowed>);

#[derive(Debug)]
struct Allowed {
    journal: Journal,
    /// Notes on settings: put back for another run, or left as they are.
    notes: Vec<String>,
    /// True while the journal has the changes of an earlier run, which was killed before it restored them.
    after_a_kill: bool,
    /// Let go last.
    _lock: SettingsLock,
}

impl Settings {
    /// Settings that may be read only.
    pub fn none() -> Self {
        Self::default()
    }

    /// Settings that may be changed: waits for the machine's turn, and puts back first what a run before could
    /// not.
    pub fn in_turn(
        root: &Root,
        patience: Duration,
        observer: &dyn Observer,
    ) -> Result<Self, LabError> {
        let folder = root.path(STATE);
        let lock = SettingsLock::wait(&folder, patience, observer)?;
        let (journal, notes) = Journal::left_behind(&folder, root)?;
        let mut allowed = Allowed { journal, notes, after_a_kill: true, _lock: lock };
        allowed.restore_to(0)?;
        allowed.after_a_kill = false;
        Ok(Self(Some(allowed)))
    }

    /// Notes on changes, each once.
    pub fn notes(&mut self) -> Vec<String> {
        self.0.as_mut().map_or(Vec::new(), |allowed| std::mem::take(&mut allowed.notes))
    }

    /// Writes `value` into the file of a choice such as `always [madvise] never` unless one of
    /// `enough` is chosen already. Returns whether one of them is in force now.
    pub fn choose(&mut self, path: &Path, enough: &[&str], value: &str) -> Result<bool, LabError> {
        let before = fs::read_to_string(path).map_err(failed("read", path))?;
        let before = chosen(&before).to_owned();
        if enough.contains(&before.as_str()) {
            return Ok(true);
        }
        let Some(allowed) = &mut self.0 else { return Ok(false) };
        let change = SettingChange::Word { path: path.to_owned(), before, value: value.to_owned() };
        allowed.journal.about_to(change)?;
        fs::write(path, value).map_err(failed("change", path))?;
        Ok(true)
    }

    /// Reserves huge pages until `wanted` of this size are free and promised to no mapping, if that is
    /// allowed, or as many as the kernel finds. Returns the pool as it is then; `None` where the
    /// kernel has no such pages.
    pub fn reserve(
        &mut self,
        root: &Root,
        page_size: u64,
        wanted: u64,
    ) -> Result<Option<HugePagePool>, LabError> {
        let Some(before) = huge_pages(root, page_size)? else { return Ok(None) };
        let missing = wanted.saturating_sub(before.unpromised());
        let Some(allowed) = self.0.as_mut().filter(|_| missing > 0) else {
            return Ok(Some(before));
        };
        // Surplus pages become the administrator's before the kernel adds any.
        let asked = before.total + missing;
        let path = count_of(root, page_size);
        let change = SettingChange::pages(root, page_size, pages(&before), asked);
        allowed.journal.about_to(change)?;
        fs::write(&path, asked.to_string()).map_err(failed("change", &path))?;
        let after = huge_pages(root, page_size)?.unwrap_or(before);
        allowed.journal.did_reach(pages(&after))?;
        Ok(Some(after))
    }

    /// Has khugepaged collapse all that it may as fast as it can, if that is allowed; returns whether it does so now.
    pub fn khugepaged_without_rest(&mut self, root: &Root) -> Result<bool, LabError> {
        let folder = root.path(FOLIOS).join("khugepaged");
        for (file, value) in [("scan_sleep_millisecs", "0"), ("pages_to_scan", "4194304")] {
            let path = folder.join(file);
            if !path.exists() || !self.choose(&path, &[value], value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives all programs transparent huge pages, and lets khugepaged collapse what has few holes within seconds, if that is
    /// allowed; returns whether it is so now.
    pub fn huge_pages_for_all(&mut self, root: &Root) -> Result<bool, LabError> {
        let folder = root.path(FOLIOS);
        let settings = [
            ("enabled", "always"),
            ("khugepaged/scan_sleep_millisecs", "1000"),
            ("khugepaged/pages_to_scan", "65536"),
            ("khugepaged/max_ptes_none", "51"),
        ];
        for (file, value) in settings {
            let path = folder.join(file);
            if !path.exists() || !self.choose(&path, &[value], value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Has anonymous memory that asks for it be on folios of this size, and of no other, if that is allowed.
    /// Returns whether it is so now; a kernel that has no such folios is left alone.
    pub fn only_folios_of(&mut self, root: &Root, bytes: usize) -> Result<bool, LabError> {
        let folder = root.path(FOLIOS);
        let file = |size: usize| folder.join(format!("hugepages-{}kB/enabled", size >> 10));
        if self.0.is_none() || !file(bytes).exists() {
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

    /// The number of changes so far, for going back to this state.
    pub fn mark(&self) -> usize {
        self.0.as_ref().map_or(0, |allowed| allowed.journal.changes().len())
    }

    /// Puts back what was changed since; the first failure is reported, and the others are still tried.
    pub fn restore_to(&mut self, mark: usize) -> Result<(), LabError> {
        self.0.as_mut().map_or(Ok(()), |allowed| allowed.restore_to(mark))
    }

    /// Puts everything back.
    pub fn restore(&mut self) -> Result<(), LabError> {
        self.restore_to(0)
    }
}

impl Allowed {
    /// A change that cannot be put back stays in the journal, for the next start.
    fn restore_to(&mut self, mark: usize) -> Result<(), LabError> {
        let mut outcome = Ok(());
        for index in (mark..self.journal.changes().len()).rev() {
            match self.journal.changes()[index].undo() {
                Ok(undone) => {
                    self.note(undone);
                    outcome = outcome.and(self.journal.forget(index));
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// A run that restores its own changes needs no note.
    fn note(&mut self, undone: Undone) {
        let note = match undone {
            Undone::Left(said) if !self.after_a_kill => said,
            Undone::PutBack(said) | Undone::Left(said) if self.after_a_kill => {
                format!("of a `--setup` that was killed: {said}")
            }
            _ => return,
        };
        self.notes.push(note);
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        let _ = self.restore_to(0);
    }
}

/// Puts back what a `--setup` that was killed has left changed, and says what that was. Where a lab is at work,
/// its changes are its own; where this user may not, it says which user may.
///
/// # Errors
/// [`LabError`] if a setting could not be put back.
pub fn put_back(root: &Root) -> Result<Vec<String>, LabError> {
    let folder = root.path(STATE);
    if !journal::is_in(&folder) {
        return Ok(Vec::new());
    }
    match Settings::in_turn(root, Duration::ZERO, &crate::measure::Quiet) {
        Ok(mut settings) => Ok(settings.notes()),
        Err(LabError::Busy { .. }) => Ok(Vec::new()),
        Err(LabError::NotRoot { .. }) => {
            let said = "a `--setup` that was killed has left settings changed; `hugekit doctor` puts them back \
                        if root runs it";
            Ok(vec![said.to_owned()])
        }
        Err(error) => Err(error),
    }
}

/// The kernel's huge pages of this size; `None` where it has none.
pub fn huge_pages(root: &Root, page_size: u64) -> Result<Option<HugePagePool>, machine::Error> {
    match hugepages::read(root) {
        Err(error) if error.is_not_found() => Ok(None),
        pools => Ok(pools?.into_iter().find(|pool| pool.page_size == page_size)),
    }
}

fn count_of(root: &Root, page_size: u64) -> PathBuf {
    let kib = page_size >> 10;
    root.path(format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"))
}

fn failed(verb: &'static str, path: &Path) -> impl Fn(io::Error) -> LabError {
    move |cause| LabError::Setting { verb, path: path.display().to_string(), source: cause }
}

#[cfg(test)]
mod tests;
