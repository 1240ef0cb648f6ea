//! The pool's memory: one file, and the mapping of all of it that only the pool uses.
//!
//! This file contains all operations that change the state of an extent. They use only the file and
//! this *alias mapping*, and never another address.
#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::CString;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::param::page_size;

use super::extent::{Clean, Content, Dirty, Extent, Hole, Idle, InUse};
use super::{Backing, NodePolicy, PoolError};
use hugekit_bulk::parallel::{Bytes, Done, JobError, Progress, Threads, WorkSharing};
use hugekit_bulk::populate::{PopulateError, populate_folio, populate_pages};
use hugekit_bulk::profile::Profile;
use hugekit_bulk::{ClearError, ClearOptions, PopulateOptions};
use hugekit_lease::MemoryFile;
use hugekit_sys::error_chain;
use hugekit_sys::fork_mark::ForkMark;
use hugekit_sys::mapping::{SharedMapping, collapse};
use hugekit_sys::{HUGE_PAGE_BYTES, memfd, memory};

/// The settings that a pool's memory is made with.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) name: CString,
    pub(super) nodes: NodePolicy,
    pub(super) in_core_dumps: bool,
}

/// The file and its alias mapping.
#[derive(Debug)]
pub(crate) struct PoolMemory {
    file: OwnedFd,
    /// `None` only while the memory is being dropped.
    alias: Option<SharedMapping>,
    backing: Backing,
    by_collapse: bool,
    in_core_dumps: bool,
    /// The number of nodes that provide pages in turn.
    turns: usize,
    mark: ForkMark,
    /// Folios that the kernel made of base pages although huge pages were requested.
    fragmented: AtomicUsize,
}

/// An extent that is in use, with the addresses by which it is used.
#[derive(Debug)]
pub(crate) struct Mapped {
    extent: Extent<InUse>,
    mapping: SharedMapping,
}

impl Mapped {
    pub(crate) fn mapping(&self) -> &SharedMapping {
        &self.mapping
    }

    pub(crate) fn extent(&self) -> &Extent<InUse> {
        &self.extent
    }

    /// Returns the token of the folios and the mapping separately. The caller must return the
    /// folios to the pool only when nothing maps them.
    pub(crate) fn into_parts(self) -> (Extent<InUse>, SharedMapping) {
        (self.extent, self.mapping)
    }

    /// Joins token and mapping again.
    pub(crate) fn of_parts(extent: Extent<InUse>, mapping: SharedMapping) -> Self {
        Self { extent, mapping }
    }
}

/// The reason why an extent stayed as it was.
#[derive(Debug)]
pub(super) enum Failure {
    /// The limits do not allow it.
    Refused(PoolError),
    Populate(JobError<PopulateError>),
    Clear(ClearError),
    /// The caller's progress callback panicked.
    Panic(Box<dyn Any + Send>),
}

impl Failure {
    /// Returns the error for the caller. Resumes a callback's panic.
    pub(super) fn into_error(self) -> PoolError {
        match self {
            Self::Refused(error) => error,
            Self::Populate(error) => PoolError::Populate(error),
            Self::Clear(error) => PoolError::Clear(error),
            Self::Panic(payload) => resume_unwind(payload),
        }
    }
}

impl From<JobError<PopulateError>> for Failure {
    fn from(error: JobError<PopulateError>) -> Self {
        Self::Populate(error)
    }
}

impl From<ClearError> for Failure {
    fn from(error: ClearError) -> Self {
        Self::Clear(error)
    }
}

/// Returns the error for refused advice about transparent huge pages.
fn refused(call: &'static str, errno: Errno) -> PoolError {
    match errno {
        // None of these says that the kernel has no such pages.
        Errno::NOMEM | Errno::AGAIN | Errno::PERM => {
            PoolError::Kernel { call, source: errno.into() }
        }
        _ => PoolError::NoThp { reason: format!("{call}: {}", std::io::Error::from(errno)) },
    }
}

/// Runs a job. A panic of its callback becomes an error, because otherwise the token would be
/// dropped and its folios lost.
fn unless_it_panics<R, E: Into<Failure>>(job: impl FnOnce() -> Result<R, E>) -> Result<R, Failure> {
    match catch_unwind(AssertUnwindSafe(job)) {
        Ok(outcome) => outcome.map_err(Into::into),
        Err(payload) => Err(Failure::Panic(payload)),
    }
}

impl PoolMemory {
    /// Makes a file of `bytes`, a multiple of the backing's page size, all holes. This reserves
    /// huge pages of the kernel's pool, so no other process can take them.
    pub(super) fn new(backing: Backing, bytes: usize, recipe: &Recipe) -> Result<Self, PoolError> {
        let file = memfd::create(&recipe.name, backing.pages()).map_err(|errno| match errno {
            Errno::MFILE | Errno::NFILE => PoolError::NoDescriptor(errno.into()),
            Errno::INVAL | Errno::NODEV | Errno::NOENT if backing.is_reserved() => {
                PoolError::NoHugePages { page_size: backing.page_size() }
            }
            _ => PoolError::Kernel { call: "memfd_create", source: errno.into() },
        })?;
        memfd::size_for_good(&file, bytes as u64)
            .map_err(|errno| PoolError::Kernel { call: "ftruncate", source: errno.into() })?;
        let mut memory = Self::mapped(file, backing, bytes, recipe)?;
        recipe.nodes.apply(memory.alias())?;
        if backing.is_transparent() {
            memory.by_collapse = memory.try_huge_page()?;
        }
        Ok(memory)
    }

    /// Uses a file of another process, which is responsible for its huge pages.
    pub(super) fn adopt(file: MemoryFile, recipe: &Recipe) -> Result<Self, PoolError> {
        let (backing, bytes) = (file.backing(), file.bytes());
        let memory = Self::mapped(file.into_file(), backing, bytes, recipe)?;
        if backing.is_transparent() {
            // Refused where the kernel has none, and then the pages are base pages.
            let _ = memory.alias().want_huge_pages();
        }
        Ok(memory)
    }

    fn mapped(
        file: OwnedFd,
        backing: Backing,
        bytes: usize,
        recipe: &Recipe,
    ) -> Result<Self, PoolError> {
        let alias = SharedMapping::new(&file, 0, bytes, backing.page_size())
            .map_err(|errno| PoolError::NotMapped { bytes, source: errno.into() })?;
        let memory = Self {
            file,
            alias: Some(alias),
            backing,
            by_collapse: false,
            in_core_dumps: recipe.in_core_dumps,
            turns: recipe.nodes.turns(),
            mark: ForkMark::new(),
            fragmented: AtomicUsize::new(0),
        };
        let advised = |errno: Errno| PoolError::Kernel { call: "madvise", source: errno.into() };
        // A dump has each byte once, from the region that holds it.
        memory.alias().keep_from_dumps().map_err(advised)?;
        Ok(memory)
    }

    /// Makes one huge page, to find out if the kernel allocates them here or only collapses.
    fn try_huge_page(&self) -> Result<bool, PoolError> {
        self.alias().want_huge_pages().map_err(|errno| refused("madvise(MADV_HUGEPAGE)", errno))?;
        let (start, page) = (self.at(0), page_size());
        let first = start.expose_provenance();
        populate_pages(first..first + page).map_err(|error| {
            PoolError::Populate(JobError::Chunk {
                range: 0..page,
                done: Done::nothing(page),
                error,
            })
        })?;
        let is_huge = || {
            let next = start.wrapping_add(page);
            memory::probe_present(next, page)
                .map_err(|errno| PoolError::Kernel { call: "mincore", source: errno.into() })
        };
        if is_huge()? {
            return Ok(false);
        }
        let size = self.page_size();
        debug_assert_eq!(size, HUGE_PAGE_BYTES, "transparent pages of a pool have 2 MiB");
        // SAFETY: accesses to the alias mapping wait for no thread.
        unsafe { collapse(start, size) }
            .map_err(|errno| refused("madvise(MADV_COLLAPSE)", errno))?;
        if is_huge()? {
            Ok(true)
        } else {
            Err(PoolError::NoThp { reason: "MADV_COLLAPSE leaves base pages".to_owned() })
        }
    }

    pub(crate) fn backing(&self) -> Backing {
        self.backing
    }

    pub(super) fn by_collapse(&self) -> bool {
        self.by_collapse
    }

    pub(crate) fn page_size(&self) -> usize {
        self.backing.page_size()
    }

    /// Returns the number of bytes of all of it.
    pub(super) fn capacity(&self) -> usize {
        self.alias().len()
    }

    pub(super) fn fragmented(&self) -> usize {
        self.fragmented.load(Ordering::Relaxed)
    }

    /// Returns true if this process made the memory. A forked child has only the descriptor.
    pub(crate) fn is_ours(&self) -> bool {
        self.mark.is_ours()
    }

    /// Returns true if core dumps contain the bytes of regions.
    pub(crate) fn in_core_dumps(&self) -> bool {
        self.in_core_dumps
    }

    /// Returns the file. A holder of its descriptor can access every byte of the pool.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the offset of an extent in the file.
    pub(crate) fn offset<S>(&self, extent: &Extent<S>) -> u64 {
        (extent.folios().start * self.page_size()) as u64
    }

    pub(crate) fn bytes<S>(&self, extent: &Extent<S>) -> usize {
        extent.folios().len() * self.page_size()
    }

    fn alias(&self) -> &SharedMapping {
        self.alias.as_ref().expect("there until dropped")
    }

    /// Returns the addresses of an extent in the alias mapping: for the code that makes its folios ready while they are
    /// in use.
    pub(crate) fn alias_of(&self, extent: &Extent<InUse>) -> Bytes {
        Bytes(self.at(extent.folios().start))
    }

    /// Returns the address of a folio in the alias mapping.
    fn at(&self, folio: usize) -> *mut u8 {
        self.alias().start().as_ptr().wrapping_add(folio * self.page_size())
    }

    /// Makes the kernel populate the extent with cleared pages.
    pub(super) fn populate(
        &self,
        extent: Extent<Hole>,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<Extent<Clean>, (Extent<Hole>, Failure)> {
        let populated = unless_it_panics(|| {
            if self.backing.is_transparent() {
                self.populate_huge(&extent, threads, progress)
            } else {
                self.populate_plain(&extent, threads, progress)
            }
        });
        match populated {
            // SAFETY: the pages were holes, and the kernel puts zeroes there.
            Ok(()) => Ok(unsafe { extent.become_() }),
            // What was populated before it failed holds zeroes as well, and it does not matter that it is
            // populated again.
            Err(failure) => Err((extent, failure)),
        }
    }

    fn populate_plain(
        &self,
        extent: &Extent<Hole>,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<(), JobError<PopulateError>> {
        let populate = PopulateOptions::new().threads(threads).page_size(self.page_size());
        let populate = progress.into_iter().fold(populate, PopulateOptions::progress);
        let start = self.at(extent.folios().start).expose_provenance();
        populate.run_range(start..start + self.bytes(extent)).map(|_| ())
    }

    /// Populates folio by folio, and counts the folios that stay on base pages.
    fn populate_huge(
        &self,
        extent: &Extent<Hole>,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<(), JobError<PopulateError>> {
        let (start, folio) = (Bytes(self.at(extent.folios().start)), self.page_size());
        let sharing = WorkSharing { threads, progress, ..WorkSharing::default() };
        let (len, profile) = (self.bytes(extent), Profile::current());
        let min_chunk = profile.min_chunk.max(1).next_multiple_of(folio);
        let populated = sharing.run(start.0, len, profile, min_chunk, |chunk| {
            for offset in chunk.step_by(folio) {
                let first = self.first_page(extent.folios().start + offset / folio) * page_size();
                // SAFETY: accesses to the alias mapping wait for no thread.
                if !unsafe { populate_folio(start.at(offset), folio, first) }? {
                    self.fragmented.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        });
        populated.map(|_| ())
    }

    /// Returns the base page of a folio that is touched first. A collapse puts the huge page on
    /// that page's node, and the kernel counts turns in base pages then: from the first page of
    /// each folio, all of 512 would be the same node's.
    fn first_page(&self, folio: usize) -> usize {
        if !self.by_collapse {
            return 0;
        }
        first_page_in_turn(folio, self.page_size() / page_size(), self.turns)
    }

    /// Sets every byte to zero, through the alias mapping. If the call is stopped early, or memory
    /// has failed, the extent stays dirty.
    pub(super) fn scrub(
        &self,
        extent: Extent<Dirty>,
        how: &ClearOptions<'_>,
    ) -> Result<Extent<Clean>, (Extent<Dirty>, Failure)> {
        let (start, len) = (self.at(extent.folios().start), self.bytes(&extent));
        if let Err(error) = self.check_sound(&extent.folios()) {
            let error = JobError::Chunk { range: 0..len, done: Done::nothing(len), error };
            return Err((extent, Failure::Populate(error)));
        }
        // SAFETY: the folios lie within the alias mapping, which is ours in this process (a child
        // gets no token), and a dirty extent is mapped nowhere else.
        match unless_it_panics(|| unsafe { how.run_raw(start, len) }) {
            // SAFETY: all of it was cleared.
            Ok(_) => Ok(unsafe { extent.become_() }),
            Err(failure) => Err((extent, failure)),
        }
    }

    /// Checks that the kernel knows of no failed memory there: to clear such memory would end the process, although
    /// no thread uses it. It is a look at one entry for each huge page; base pages would take as long as
    /// clearing them, and are not looked at.
    fn check_sound(&self, folios: &Range<usize>) -> Result<(), PopulateError> {
        let (start, len) = (self.at(folios.start), folios.len() * self.page_size());
        if self.backing == Backing::Base {
            return Ok(());
        }
        match memory::populate_read(start, len) {
            Err(Errno::HWPOISON | Errno::FAULT) => Err(PopulateError::Poisoned),
            // A kernel before Linux 5.14 does not say, and want of memory is met again where it matters.
            _ => Ok(()),
        }
    }

    /// Returns the parts of an extent without folios whose memory has failed. Their tokens end here, and they are never
    /// allocated again.
    pub(super) fn without_failed(&self, mut rest: Extent<Dirty>) -> Vec<Idle> {
        let mut sound = Vec::new();
        while !rest.folios().is_empty() {
            let tail = rest.split_off(1);
            let folio = std::mem::replace(&mut rest, tail);
            match self.check_sound(&folio.folios()) {
                Ok(()) => sound.push(folio.into()),
                Err(error) => {
                    hugekit_sys::events::error!(
                        "folio {} is lost: {}",
                        folio.folios().start,
                        error_chain(&error)
                    );
                }
            }
        }
        sound
    }

    /// Sets bytes of an extent in use to zero, through the alias mapping. For the extent's user,
    /// this is like a write of another process.
    pub(super) fn clear_in_use(
        &self,
        extent: &Extent<InUse>,
        bytes: Range<usize>,
        how: &ClearOptions<'_>,
    ) -> Result<(), ClearError> {
        assert!(bytes.start <= bytes.end && bytes.end <= self.bytes(extent));
        let start = self.at(extent.folios().start).wrapping_add(bytes.start);
        // SAFETY: within the alias mapping, by which no other thread accesses this extent. Its user's
        // accesses go to other addresses; where they race, whole bytes are old, new or zero.
        unsafe { how.run_raw(start, bytes.len()) }.map(|_| ())
    }

    /// Returns the pages to the kernel. Pages that a system call still holds keep their content and
    /// belong to no owner any more. After an error no caller gets them either.
    pub(super) fn punch(&self, extent: Extent<Dirty>) -> Result<Extent<Hole>, Errno> {
        memfd::punch(&self.file, self.offset(&extent), self.bytes(&extent) as u64)?;
        // SAFETY: the file has no pages there any more.
        Ok(unsafe { extent.become_() })
    }

    /// Maps the extent for a user.
    pub(super) fn map(&self, extent: Extent<Clean>) -> Result<Mapped, (Extent<Clean>, PoolError)> {
        match self.map_folios(&extent.folios()) {
            // SAFETY: it is mapped for the one who gets this.
            Ok(mapping) => Ok(Mapped { extent: unsafe { extent.become_() }, mapping }),
            Err(error) => Err((extent, error)),
        }
    }

    /// Maps adjacent extents, in ascending order, as they are: holes, clean and dirty.
    ///
    /// # Safety
    /// No thread accesses an address of it before every access there waits until the folio is clean.
    pub(super) unsafe fn map_unready(
        &self,
        parts: Vec<Idle>,
    ) -> Result<Mapped, (Vec<Idle>, PoolError)> {
        let first = parts.first().map_or(0, |part| part.folios().start);
        let folios = first..parts.last().map_or(first, |part| part.folios().end);
        match self.map_folios(&folios) {
            // SAFETY: it is mapped for the one who gets this; the tokens that named these folios end
            // here.
            Ok(mapping) => Ok(Mapped { extent: unsafe { Extent::mint(folios) }, mapping }),
            Err(error) => Err((parts, error)),
        }
    }

    fn map_folios(&self, folios: &Range<usize>) -> Result<SharedMapping, PoolError> {
        let (offset, bytes) =
            ((folios.start * self.page_size()) as u64, folios.len() * self.page_size());
        let mapping = SharedMapping::new(&self.file, offset, bytes, self.page_size())
            .map_err(|errno| PoolError::NotMapped { bytes, source: errno.into() })?;
        self.keep_from_dumps(mapping)
    }

    /// Returns a mapping that is new, out of core dumps where the pool is to be.
    fn keep_from_dumps(&self, mapping: SharedMapping) -> Result<SharedMapping, PoolError> {
        let kept = if self.in_core_dumps { Ok(()) } else { mapping.keep_from_dumps() };
        kept.map_err(|errno| {
            // SAFETY: just mapped, and no other thread knows of it.
            let source = unsafe { mapping.unmap() }.err().unwrap_or(errno).into();
            PoolError::Kernel { call: "madvise", source }
        })?;
        Ok(mapping)
    }

    /// Maps all of it so that forked children keep it: for memory that never has another owner.
    pub(super) fn map_for_children(&self) -> Result<SharedMapping, PoolError> {
        let (bytes, page_size) = (self.capacity(), self.page_size());
        let mapping = SharedMapping::of_children_too(&self.file, 0, bytes, page_size)
            .map_err(|errno| PoolError::NotMapped { bytes, source: errno.into() })?;
        self.keep_from_dumps(mapping)
    }

    /// Unmaps the user's addresses. If the kernel refuses, nothing changes.
    ///
    /// # Safety
    /// In the process that made the memory, and the user is done with the addresses.
    pub(super) unsafe fn unmap(&self, mapped: Mapped) -> Result<Extent<Dirty>, (Mapped, Errno)> {
        // SAFETY: the addresses are still the mapping's, because in the process that mapped it
        // none but this unmaps it, and the user is done with them.
        if let Err(errno) = unsafe { mapped.mapping.unmap() } {
            return Err((mapped, errno));
        }
        // SAFETY: mapped nowhere but in the alias mapping now.
        Ok(unsafe { mapped.extent.become_() })
    }

    /// Like [`unmap`](Self::unmap), if the content of each run of folios is known.
    ///
    /// # Safety
    /// The conditions of [`unmap`](Self::unmap), and each run of folios holds what `contents` says.
    pub(super) unsafe fn unmap_as(
        &self,
        mapped: Mapped,
        contents: &[(usize, Content)],
    ) -> Result<Vec<Idle>, (Mapped, Errno)> {
        // SAFETY: the user is done with the addresses, and the runs hold what they say.
        Ok(unsafe { parts_of(self.unmap(mapped)?, contents) })
    }

    /// Like [`unmap_as`](Self::unmap_as), for all folios except the first `count`. There are more
    /// than `count`.
    ///
    /// # Safety
    /// The conditions of [`unmap_as`](Self::unmap_as), for these folios.
    pub(super) unsafe fn unmap_tail(
        &self,
        mapped: &mut Mapped,
        count: usize,
        contents: &[(usize, Content)],
    ) -> Result<Vec<Idle>, Errno> {
        // SAFETY: the addresses behind are this mapping's still, and their user is done with them.
        unsafe { mapped.mapping.unmap_from(count * self.page_size()) }?;
        let tail = mapped.extent.split_off(count);
        // SAFETY: mapped nowhere but in the alias mapping now, and the runs hold what they say.
        Ok(unsafe { parts_of(tail.become_(), contents) })
    }
}

/// Returns the runs of an extent with their contents, without broken folios.
///
/// # Safety
/// The runs have these contents.
pub(super) unsafe fn parts_of(mut rest: Extent<Dirty>, contents: &[(usize, Content)]) -> Vec<Idle> {
    let part = |&(count, content): &(usize, Content)| {
        let tail = rest.split_off(count);
        let part = std::mem::replace(&mut rest, tail);
        // SAFETY: the runs hold what they say.
        unsafe {
            Some(match content {
                Content::Hole => part.become_::<Hole>().into(),
                Content::Clean => part.become_::<Clean>().into(),
                Content::Dirty => part.into(),
                Content::Broken => return None,
            })
        }
    };
    contents.iter().filter_map(part).collect()
}

impl Drop for PoolMemory {
    fn drop(&mut self) {
        if !self.is_ours() {
            return; // A child has no such mapping, and may have another at these addresses.
        }
        if let Some(alias) = self.alias.take() {
            // SAFETY: mapped in this process, and only methods of this value follow its addresses.
            if unsafe { alias.unmap() }.is_err() {
                // The addresses are lost, the memory is not.
                let _ = memfd::punch(&self.file, 0, alias.len() as u64);
            }
        }
    }
}

/// Returns the page with which a folio of `pages` pages begins, so that the folio's node has its
/// turn.
fn first_page_in_turn(folio: usize, pages: usize, turns: usize) -> usize {
    (folio % turns + turns - folio * pages % turns) % turns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel takes pages from one node after the other, from any node on.
    #[test]
    fn first_pages_of_folios_are_in_turn() {
        for (turns, pages) in (1..9).flat_map(|turns| [32, 512, 1024].map(|pages| (turns, pages))) {
            let node = |folio| {
                let first = first_page_in_turn(folio, pages, turns);
                assert!(first < pages);
                (folio * pages + first) % turns
            };
            assert!((0..40).all(|folio| node(folio) == folio % turns), "{turns} {pages}");
        }
    }
}
