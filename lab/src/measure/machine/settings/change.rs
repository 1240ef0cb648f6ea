//! One change of a setting, as it is kept in the journal, and how it is undone.

use std::fs;
use std::path::{Path, PathBuf};

use hugekit_machine::Root;
use hugekit_machine::hugepages::HugePagePool;
use serde::{Deserialize, Serialize};

use super::{count_of, failed, huge_pages};
use crate::measure::LabError;

/// A change of a setting of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum SettingChange {
    /// The choice in a file.
    Word { path: PathBuf, before: String, value: String },
    /// Huge pages of this size that the administrator has reserved on this machine.
    Pages {
        /// The folder of the machine's files.
        root: PathBuf,
        page_size: u64,
        before: u64,
        asked: u64,
        /// The number of pages that the kernel found, once it is known.
        got: Option<u64>,
    },
}

/// The outcome, in words.
#[derive(Debug)]
pub(super) enum Undone {
    NothingToDo,
    PutBack(String),
    /// Another program or the administrator changed it meanwhile.
    Left(String),
}

impl SettingChange {
    pub(super) fn pages(root: &Root, page_size: u64, before: u64, asked: u64) -> Self {
        Self::Pages { root: root.path("/"), page_size, before, asked, got: None }
    }

    /// True if the change is one of this machine's files.
    pub(super) fn is_of(&self, machine: &Root) -> bool {
        let root = machine.path("/");
        match self {
            Self::Word { path, .. } => path.starts_with(root),
            Self::Pages { root: of, .. } => *of == root,
        }
    }

    /// Puts back what was there before, if what is there now is ours.
    pub(super) fn undo(&self) -> Result<Undone, LabError> {
        match self {
            Self::Word { path, before, value } => {
                let now = fs::read_to_string(path).map_err(failed("read", path))?;
                put_back(path, chosen(&now), before, |now| now == value)
            }
            Self::Pages { root, page_size, before, asked, got } => {
                let root = Root::at(root);
                let Some(pool) = huge_pages(&root, *page_size)? else {
                    return Ok(Undone::NothingToDo);
                };
                // A lab that was killed in the act has not seen how many the kernel found.
                let ours = got.map_or(before + 1..=*asked, |got| got..=got);
                let is_ours = |now: &str| now.parse().is_ok_and(|now| ours.contains(&now));
                let (now, before) = (pages(&pool).to_string(), before.to_string());
                put_back(&count_of(&root, *page_size), &now, &before, is_ours)
            }
        }
    }
}

fn put_back(
    path: &Path,
    now: &str,
    before: &str,
    is_ours: impl Fn(&str) -> bool,
) -> Result<Undone, LabError> {
    let shown = path.display();
    if now == before {
        return Ok(Undone::NothingToDo);
    }
    if !is_ours(now) {
        let said = format!(
            "{shown} is {now} now, which the lab did not set: left as it is (it was {before})"
        );
        return Ok(Undone::Left(said));
    }
    fs::write(path, before).map_err(failed("restore", path))?;
    Ok(Undone::PutBack(format!("{shown} is {before} again")))
}

/// Pages that the administrator reserved: the surplus ones come and go by themselves.
pub(super) fn pages(pool: &HugePagePool) -> u64 {
    pool.total.saturating_sub(pool.surplus)
}

/// The word in brackets; the whole text where there are none.
pub(super) fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text, |(word, _)| word).trim()
}
