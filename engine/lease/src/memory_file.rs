//! A file of memory with a permanent length. Leases consist of such files.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;

use super::error::{LeaseError, Unfit, shortage};
use hugekit_bulk::PopulateOptions;
use hugekit_machine::Root;
use hugekit_sys::backing::Backing;
use hugekit_sys::headroom;
use hugekit_sys::mapping::SharedMapping;
use hugekit_sys::memfd::{self, Facts};
use hugekit_sys::mempolicy::{self, Mode};

/// A file of memory whose length no process can change.
#[derive(Debug)]
pub struct MemoryFile {
    file: OwnedFd,
    bytes: usize,
    backing: Backing,
}

impl MemoryFile {
    /// Makes a file of `bytes`, all holes. `/proc` shows the file as `/memfd:hugekit:NAME`; the
    /// name is cut at the first NUL.
    ///
    /// # Errors
    /// [`LeaseError::Unfit`] if `bytes` is 0 or not a multiple of the backing's page size. Another
    /// [`LeaseError`] if the kernel has no such pages, or if no descriptor is left.
    pub fn create(name: &str, bytes: usize, backing: Backing) -> Result<Self, LeaseError> {
        headroom::check()?;
        let page_size = backing.page_size();
        if bytes == 0 || bytes % page_size != 0 {
            return Err(Unfit::Length { bytes: bytes as u64, page_size }.into());
        }
        let kernel = |call| move |errno: Errno| LeaseError::Kernel { call, source: errno.into() };
        let file =
            memfd::create(&memfd::name(name), backing.pages()).map_err(|errno| match errno {
                Errno::INVAL | Errno::NODEV | Errno::NOENT if backing.is_reserved() => {
                    LeaseError::NoHugePages { page_size }
                }
                other => kernel("memfd_create")(other),
            })?;
        memfd::size_for_good(&file, bytes as u64).map_err(kernel("ftruncate"))?;
        Ok(Self { file, bytes, backing })
    }

    /// Makes a file without a name, all holes, in a folder of a mounted hugetlbfs or of a tmpfs.
    /// This is for programs that need a path. A process that opens the file by a [name](Self::link)
    /// may change its length.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create), and an error if the folder is in no such file
    /// system.
    pub fn create_in(folder: &Path, bytes: usize) -> Result<Self, LeaseError> {
        headroom::check()?;
        let kernel = |call| move |errno: Errno| LeaseError::Kernel { call, source: errno.into() };
        let file = memfd::create_in(folder).map_err(kernel("open(O_TMPFILE)"))?;
        let huge = memfd::huge_page(&file).map_err(kernel("fstatfs"))?;
        let huge = huge.ok_or(Unfit::NoMemoryFolder)?;
        let backing = backing_of(bytes as u64, huge)?;
        let page_size = backing.page_size();
        if bytes == 0 || bytes % page_size != 0 {
            return Err(Unfit::Length { bytes: bytes as u64, page_size }.into());
        }
        memfd::size(&file, bytes as u64).map_err(kernel("ftruncate"))?;
        Ok(Self { file, bytes, backing })
    }

    /// Gives a name to a file of [`create_in`](Self::create_in). The folder may have no file of
    /// that name yet. The memory stays allocated until the name is removed.
    ///
    /// # Errors
    /// [`LeaseError::Kernel`] if the kernel refuses the name.
    pub fn link(&self, path: &Path) -> Result<(), LeaseError> {
        headroom::check()?;
        memfd::link(&self.file, path)
            .map_err(|errno| LeaseError::Kernel { call: "linkat", source: errno.into() })
    }

    /// Makes a memory file of a file from another process, after checks: the file is memory, this
    /// library knows its page size, its length is permanent, and it may be written. The content of
    /// the file cannot be checked, nor can other holders of the file.
    ///
    /// # Errors
    /// [`LeaseError::Unfit`] with the first of these conditions that the file does not meet.
    pub fn check(file: OwnedFd) -> Result<Self, LeaseError> {
        headroom::check()?;
        let facts = memfd::facts(&file)
            .map_err(|errno| LeaseError::Kernel { call: "fstat", source: errno.into() })?
            .ok_or(Unfit::NoMemoryFile)?;
        let (bytes, backing) = fit(&facts)?;
        Ok(Self { file, bytes, backing })
    }

    /// Forbids transparent huge pages for this file. By default shared memory uses them.
    #[must_use]
    pub fn on_base_pages(mut self) -> Self {
        if self.backing.is_transparent() {
            self.backing = Backing::Base;
        }
        self
    }

    /// Reserves huge pages for the whole file until it is closed. Populating it can then fail only
    /// because of a NUMA node or a control group. Does nothing for shared memory.
    ///
    /// # Errors
    /// [`LeaseError::Pages`], with figures, if too few huge pages are free.
    pub fn reserve(&self) -> Result<(), LeaseError> {
        if self.backing.is_reserved() {
            drop(self.mapped()?);
        }
        Ok(())
    }

    fn mapped(&self) -> Result<HeldMapping, LeaseError> {
        headroom::check()?;
        let mapping = SharedMapping::new(&self.file, 0, self.bytes, self.backing.page_size());
        mapping.map(HeldMapping).map_err(|errno| {
            let refused = || LeaseError::Kernel { call: "mmap", source: errno.into() };
            shortage(&Root::default(), self.backing, self.bytes).unwrap_or_else(refused)
        })
    }

    /// Populates the whole file with zeroed pages through a temporary mapping. Pages that exist do
    /// not change. `node` restricts the new pages to one NUMA node. Returns the number of bytes on
    /// huge pages; for transparent huge pages this depends on the kernel's free huge pages.
    ///
    /// # Errors
    /// [`LeaseError`] if pages are short; for huge pages [`LeaseError::Pages`], with figures.
    ///
    /// # Panics
    /// If the progress callback panics.
    pub fn populate(
        &self,
        options: &PopulateOptions<'_>,
        node: Option<u32>,
    ) -> Result<u64, LeaseError> {
        let kernel = |call| move |errno: Errno| LeaseError::Kernel { call, source: errno.into() };
        let mapping = self.mapped()?;
        if let Some(node) = node {
            let nodes = [node].into_iter().collect();
            mempolicy::bind(&mapping.0, Mode::Bind, &nodes).map_err(kernel("mbind"))?;
        }
        let start = mapping.0.start().as_ptr();
        if self.backing.is_transparent() {
            // Refused where the kernel has none: the pages are base pages then.
            let _ = mapping.0.want_huge_pages();
            // SAFETY: a new mapping, which no userfaultfd watches, so that accesses to it wait for no thread.
            return Ok(unsafe { options.run_huge(start, self.bytes, self.backing.page_size()) }?);
        }
        let start = start.expose_provenance();
        let options = options.clone().page_size(self.backing.page_size());
        options.run_range(start..start + self.bytes)?;
        Ok(if self.backing.is_reserved() { self.bytes as u64 } else { 0 })
    }

    /// Returns the length of the file in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the backing of the file. If shared memory comes from another process, its pages are
    /// unknown: [`Backing::Thp`] is returned if the length permits huge pages.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// Returns the number of bytes of the file that are populated.
    ///
    /// # Errors
    /// [`LeaseError::Kernel`] if the kernel refuses the call.
    pub fn present(&self) -> Result<u64, LeaseError> {
        headroom::check()?;
        let facts = memfd::facts(&self.file)
            .map_err(|errno| LeaseError::Kernel { call: "fstat", source: errno.into() })?;
        Ok(facts.map_or(0, |facts| facts.present))
    }

    /// Returns the descriptor of the file.
    #[must_use]
    pub fn into_file(self) -> OwnedFd {
        self.file
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Checks that a file is suitable. Returns its length and backing.
fn fit(facts: &Facts) -> Result<(usize, Backing), Unfit> {
    let backing = backing_of(facts.len, facts.huge_page)?;
    let page_size = backing.page_size();
    match usize::try_from(facts.len) {
        _ if !facts.has_one_length => Err(Unfit::NotSealed),
        _ if !facts.is_writable => Err(Unfit::ReadOnly),
        Ok(bytes) if bytes > 0 && bytes % page_size == 0 => Ok((bytes, backing)),
        _ => Err(Unfit::Length { bytes: facts.len, page_size }),
    }
}

/// Returns the backing of a file of that length. Its pages are shared memory, or huge pages of a size.
fn backing_of(len: u64, huge_page: Option<u64>) -> Result<Backing, Unfit> {
    let is_reserved = huge_page.is_some();
    let mut backings = Backing::ALL.iter().filter(|backing| backing.is_reserved() == is_reserved);
    let page_size = |backing: &&Backing| backing.page_size() as u64;
    let found = match huge_page {
        None => backings.find(|backing| len % page_size(backing) == 0).or(Some(&Backing::Base)),
        Some(size) => backings.find(|backing| page_size(backing) == size),
    };
    found.copied().ok_or(Unfit::PageSize { page_size: huge_page.unwrap_or_default() })
}

/// A mapping that goes with this value.
struct HeldMapping(SharedMapping);

impl Drop for HeldMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `populate` in this process, whose threads are done with it. Refused, the addresses are lost
        // and the memory is held until the process ends.
        if let Err(errno) = unsafe { self.0.unmap() } {
            hugekit_sys::events::error!("a populated file cannot be unmapped: {errno}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: usize) -> MemoryFile {
        MemoryFile::create("test", bytes, Backing::Base).unwrap()
    }

    fn unfit(file: impl Into<OwnedFd>) -> Unfit {
        match MemoryFile::check(file.into()) {
            Err(LeaseError::Unfit(unfit)) => unfit,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    #[cfg_attr(
        target_arch = "aarch64",
        ignore = "qemu, which tests this CPU, says that it populates memory and does not"
    )]
    fn file_that_is_populated_has_all_its_pages_and_one_length() {
        let made = file(3 << 20);
        assert_eq!(made.present().unwrap(), 0);
        made.populate(&PopulateOptions::new(), None).unwrap();
        assert_eq!(made.present().unwrap(), 3 << 20);
        let checked = MemoryFile::check(made.into_file()).unwrap();
        assert_eq!((checked.bytes(), checked.backing()), (3 << 20, Backing::Base));
        for len in [0, 4 << 20] {
            assert!(rustix::fs::ftruncate(&checked, len).is_err());
        }
    }

    #[test]
    fn file_of_any_other_kind_is_unfit() {
        let plain = std::fs::File::open("/proc/self/status").unwrap();
        assert_eq!(unfit(plain), Unfit::NoMemoryFile);
        let open = memfd::create(c"open", Backing::Base.pages()).unwrap();
        rustix::fs::ftruncate(&open, 1 << 20).unwrap();
        assert_eq!(unfit(open), Unfit::NotSealed);
        let made = file(1 << 20);
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&made.as_fd()));
        assert_eq!(unfit(std::fs::File::open(path).unwrap()), Unfit::ReadOnly);
        let empty = memfd::create(c"empty", Backing::Base.pages()).unwrap();
        memfd::size_for_good(&empty, 0).unwrap();
        assert!(matches!(unfit(empty), Unfit::Length { bytes: 0, .. }));
        let odd = memfd::create(c"odd", Backing::Base.pages()).unwrap();
        memfd::size_for_good(&odd, 5).unwrap();
        assert!(matches!(unfit(odd), Unfit::Length { bytes: 5, .. }));
    }

    #[test]
    fn file_of_pages_of_another_size_is_unfit() {
        let facts = Facts {
            len: 1 << 30,
            present: 0,
            huge_page: Some(512 << 20),
            has_one_length: true,
            is_writable: true,
        };
        assert_eq!(fit(&facts), Err(Unfit::PageSize { page_size: 512 << 20 }));
        let two = Facts { huge_page: Some(2 << 20), ..facts };
        assert_eq!(fit(&two), Ok((1 << 30, Backing::Hugetlb2M)));
        let odd = Facts { len: 3 << 20, ..two };
        assert_eq!(fit(&odd), Err(Unfit::Length { bytes: 3 << 20, page_size: 2 << 20 }));
    }

    #[test]
    fn file_of_no_whole_pages_is_not_made() {
        for bytes in [0, 5] {
            let made = MemoryFile::create("test", bytes, Backing::Base);
            assert!(matches!(made, Err(LeaseError::Unfit(Unfit::Length { .. }))));
        }
    }
}
