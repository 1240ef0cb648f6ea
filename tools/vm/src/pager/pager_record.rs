//! What a pager leaves of itself: a `.pager` file in the state folder. By this the next pager
//! finds VMs that had connected to it when it was killed, before it had recorded them.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::firecracker::layout::Layout;
use crate::pager::json_file;
use crate::pager::source::Identity;
use crate::vmm::process::start_time;

const VERSION: u32 = 1;

/// Longer files are not ours.
const LONGEST: u64 = 256 << 10;

/// Layouts that are remembered of one memory file.
const MOST_LAYOUTS: usize = 8;

/// The file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PagerRecord {
    version: u32,
    /// Its place among the pagers of its process.
    number: u64,
    pub(crate) pid: i32,
    pub(crate) started: u64,
    /// The name that its socket was bound to, which its peers see.
    pub(crate) socket: Vec<u8>,
    pub(crate) source: Identity,
    /// Layouts of VMs that were restored from this memory, one of each kind.
    layouts: Vec<Layout>,
}

impl PagerRecord {
    /// Makes the record of this process.
    pub(crate) fn of_this_process(socket: &Path, source: &Identity) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let pid = rustix::process::getpid().as_raw_pid();
        Ok(Self {
            version: VERSION,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            pid,
            started: start_time(pid)?,
            socket: socket.as_os_str().as_bytes().to_vec(),
            source: source.clone(),
            layouts: Vec::new(),
        })
    }

    pub(crate) fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// Remembers a layout; whether it is of a new kind.
    pub(crate) fn learn(&mut self, layout: &Layout) -> bool {
        let is_new = self.layouts.len() < MOST_LAYOUTS
            && !self.layouts.iter().any(|known| known.is_like(layout));
        if is_new {
            self.layouts.push(layout.clone());
        }
        is_new
    }

    /// Writes it whole or not at all.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        json_file::write(&folder.join(self.name()), self)
    }

    pub(crate) fn remove(&self, folder: &Path) {
        let _ = fs::remove_file(folder.join(self.name()));
    }

    fn name(&self) -> String {
        format!("{}-{}-{}.pager", self.pid, self.started, self.number)
    }
}

/// Finds the records of earlier pagers at a socket.
pub(crate) fn find(folder: &Path, socket: &Path) -> io::Result<Vec<PagerRecord>> {
    let is_record = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "pager");
    let paths = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).filter(is_record);
    let records = paths.filter_map(|path| read(&path));
    Ok(records.filter(|record| record.socket == socket.as_os_str().as_bytes()).collect())
}

fn read(path: &Path) -> Option<PagerRecord> {
    let is_short = fs::symlink_metadata(path).is_ok_and(|found| found.len() <= LONGEST);
    let bytes = is_short.then(|| fs::read(path).ok())??;
    let mut record: PagerRecord = serde_json::from_slice(&bytes).ok()?;
    let layouts = std::mem::take(&mut record.layouts);
    record.layouts = layouts.into_iter().filter_map(|l| l.checked(u64::MAX).ok()).collect();
    (record.version == VERSION).then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::firecracker::layout::{Region, base_page};
    use crate::pager::source::Source;

    fn record(socket: &Path) -> PagerRecord {
        let file = tempfile::NamedTempFile::new().unwrap();
        let source = Source::open(file.path()).unwrap();
        PagerRecord::of_this_process(socket, source.identity()).unwrap()
    }

    fn layout(start: u64) -> Layout {
        Layout::new(vec![Region { start, len: base_page(), offset: 0 }], base_page())
    }

    #[test]
    fn record_is_found_by_its_socket_only() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = record("/run/one.sock".as_ref());
        assert!(record.learn(&layout(1 << 30)));
        record.write(folder.path()).unwrap();
        let found = find(folder.path(), "/run/one.sock".as_ref()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].layouts(), [layout(1 << 30)]);
        assert!(find(folder.path(), "/run/two.sock".as_ref()).unwrap().is_empty());
        found[0].remove(folder.path());
        assert!(find(folder.path(), "/run/one.sock".as_ref()).unwrap().is_empty());
    }

    #[test]
    fn layouts_of_one_kind_are_remembered_once() {
        let mut record = record("/run/one.sock".as_ref());
        assert!(record.learn(&layout(1 << 30)) && !record.learn(&layout(2 << 30)));
        let larger = |pages: u64| {
            let len = pages * base_page();
            Layout::new(vec![Region { start: 1 << 30, len, offset: 0 }], base_page())
        };
        assert!((2..9).all(|pages| record.learn(&larger(pages))));
        assert!(!record.learn(&larger(9)));
    }
}
