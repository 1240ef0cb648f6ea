//! The record of a pager: a `.pager` file in the state folder. If the pager is killed, the next
//! pager uses the record to find VMs that had connected and were not recorded yet.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use hugekit_machine::processes::ProcessFolder;
use hugekit_sys::private_folder::PrivateFolder;
use serde::{Deserialize, Serialize};

use crate::pager::source::MemoryIdentity;
use crate::vmm::Layout;

const VERSION: u32 = 2;

/// The highest length of a file in bytes. Longer files are not hugekit's.
const LONGEST: u64 = 256 << 10;

/// The highest number of layouts that are kept for one memory file.
const MOST_LAYOUTS: usize = 8;

/// The file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PagerRecord {
    version: u32,
    /// The number of the pager among the pagers of its process.
    number: u64,
    pub(crate) pid: i32,
    pub(crate) started: u64,
    /// The name of its socket, which its peers see.
    pub(crate) socket: Vec<u8>,
    pub(crate) source: MemoryIdentity,
    /// Layouts of VMs that were restored from this memory, one of each kind.
    layouts: Vec<Layout>,
}

impl PagerRecord {
    /// Makes the record of this process.
    pub(crate) fn of_this_process(socket: &Path, source: &MemoryIdentity) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let pid = rustix::process::getpid().as_raw_pid();
        Ok(Self {
            version: VERSION,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            pid,
            started: ProcessFolder::own()?.stat()?.started,
            socket: socket.as_os_str().as_bytes().to_vec(),
            source: source.clone(),
            layouts: Vec::new(),
        })
    }

    pub(crate) fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// Stores a layout. Returns true if it is of a new kind.
    pub(crate) fn learn(&mut self, layout: &Layout) -> bool {
        let is_new = self.layouts.len() < MOST_LAYOUTS
            && !self.layouts.iter().any(|known| known.is_like(layout));
        if is_new {
            self.layouts.push(layout.clone());
        }
        is_new
    }

    /// Writes the record, completely or not at all.
    pub(crate) fn write(&self, folder: &PrivateFolder) -> io::Result<()> {
        folder.write(&self.name(), &serde_json::to_vec(self)?)
    }

    pub(crate) fn remove(&self, folder: &PrivateFolder) {
        folder.remove(&self.name());
    }

    fn name(&self) -> OsString {
        format!("{}-{}-{}.pager", self.pid, self.started, self.number).into()
    }
}

/// Finds the records of earlier pagers at a socket.
pub(crate) fn find(folder: &PrivateFolder, socket: &Path) -> io::Result<Vec<PagerRecord>> {
    let is_record = |name: &OsString| Path::new(name).extension() == Some("pager".as_ref());
    let names = folder.names()?.into_iter().filter(is_record);
    let records = names.filter_map(|name| read(folder, &name));
    Ok(records.filter(|record| record.socket == socket.as_os_str().as_bytes()).collect())
}

fn read(folder: &PrivateFolder, name: &OsStr) -> Option<PagerRecord> {
    let mut record: PagerRecord = serde_json::from_slice(&folder.read(name, LONGEST).ok()?).ok()?;
    let layouts = std::mem::take(&mut record.layouts);
    record.layouts = layouts.into_iter().filter_map(|l| l.checked(u64::MAX).ok()).collect();
    (record.version == VERSION).then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::source::Source;
    use crate::vmm::{Region, base_page};

    fn record(socket: &Path) -> PagerRecord {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(base_page()).unwrap();
        let source = Source::open(file.path()).unwrap();
        PagerRecord::of_this_process(socket, source.identity()).unwrap()
    }

    fn layout(start: u64) -> Layout {
        Layout::new(vec![Region { start, len: base_page(), offset: 0 }], base_page())
    }

    #[test]
    fn record_is_found_by_its_socket_only() {
        let above = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::open(&above.path().join("state")).unwrap();
        let mut record = record("/run/one.sock".as_ref());
        assert!(record.learn(&layout(1 << 30)));
        record.write(&folder).unwrap();
        let found = find(&folder, "/run/one.sock".as_ref()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].layouts(), [layout(1 << 30)]);
        assert!(find(&folder, "/run/two.sock".as_ref()).unwrap().is_empty());
        found[0].remove(&folder);
        assert!(find(&folder, "/run/one.sock".as_ref()).unwrap().is_empty());
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
