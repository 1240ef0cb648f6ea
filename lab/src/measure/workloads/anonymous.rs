//! Memory as the kernel hands it out: private, anonymous, and cleared by the thread that touches it first.

#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use hugekit_machine::size::{GIB, MIB, Size};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::measure::LabError;

/// The pages that the kernel is asked to put behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// The pages that the machine's settings give to a mapping without advice.
    Unsaid,
    /// Base pages, whatever the setting.
    Base,
    /// Transparent huge pages where the setting allows them to programs that ask.
    Thp,
    /// Reserved pages of 2 MiB.
    Hugetlb2M,
    /// Reserved pages of 1 GiB.
    Hugetlb1G,
}

impl Pages {
    /// Bytes that one touch brings in.
    pub fn size(self) -> usize {
        match self {
            Self::Unsaid | Self::Base => rustix::param::page_size(),
            Self::Thp | Self::Hugetlb2M => 2 * MIB,
            Self::Hugetlb1G => GIB,
        }
    }

    fn flags(self) -> MapFlags {
        match self {
            Self::Unsaid | Self::Base | Self::Thp => MapFlags::empty(),
            Self::Hugetlb2M => MapFlags::HUGETLB | MapFlags::HUGE_2MB,
            Self::Hugetlb1G => MapFlags::HUGETLB | MapFlags::HUGE_1GB,
        }
    }

    fn advice(self) -> Option<Advice> {
        match self {
            Self::Base => Some(Advice::LinuxNoHugepage),
            Self::Thp => Some(Advice::LinuxHugepage),
            _ => None,
        }
    }
}

/// A mapping of such memory.
#[derive(Debug)]
pub struct Anonymous {
    start: NonNull<u8>,
    len: usize,
    mapping: (NonNull<u8>, usize),
}

// SAFETY: memory of its own, which its holder may use from any thread.
unsafe impl Send for Anonymous {}

impl Anonymous {
    /// Maps `len` bytes, a multiple of the pages' size. Reserved pages are promised by this, so that
    /// touching them cannot fail.
    pub fn new(pages: Pages, len: usize) -> Result<Self, LabError> {
        // Reserved pages are aligned as they are, base pages as any mapping is.
        let align = if pages == Pages::Thp { pages.size() } else { 1 };
        let anonymous = Self::map(len, align, pages.flags()).map_err(refused(len))?;
        anonymous.advise(pages.advice());
        Ok(anonymous)
    }

    /// Does [`new`](Self::new) with a call that also populates every page.
    pub fn populated(pages: Pages, len: usize) -> Result<Self, LabError> {
        Self::map(len, 1, pages.flags() | MapFlags::POPULATE).map_err(refused(len))
    }

    /// Maps `len` bytes from a multiple of `align` on, which want to be on transparent huge pages and
    /// of which nothing is promised.
    pub fn aligned(len: usize, align: usize) -> Result<Self, LabError> {
        let anonymous = Self::map(len, align, MapFlags::NORESERVE).map_err(refused(len))?;
        anonymous.advise(Pages::Thp.advice());
        Ok(anonymous)
    }

    fn map(len: usize, align: usize, flags: MapFlags) -> Result<Self, Errno> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, flags | MapFlags::PRIVATE);
        let mapped = if align > 1 { len + align } else { len };
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), mapped, prot, flags) }?
            .cast::<u8>();
        let start = base.wrapping_add(base.align_offset(align));
        let non_null = |at| NonNull::new(at).expect("the kernel maps nothing at address 0");
        Ok(Self { start: non_null(start), len, mapping: (non_null(base), mapped) })
    }

    /// A kernel without transparent huge pages refuses, and base pages serve as well.
    fn advise(&self, advice: Option<Advice>) {
        if let Some(advice) = advice {
            // SAFETY: within the mapping; the advices of `Pages` change no contents.
            let _ = unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.len, advice) };
        }
    }

    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes from `start` lie within the mapping, which lives as long as self,
        // holds initialised bytes (the kernel's zeroes at first), and is borrowed mutably here.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Gives the pages of the first `len` bytes back to the kernel; they are zeroes when touched or
    /// populated again. What the hypervisor gave to this machine stays with it.
    pub fn give_back(&mut self, len: usize) -> Result<(), LabError> {
        let start = self.bytes()[..len].as_mut_ptr();
        // SAFETY: private anonymous memory of our own, borrowed mutably: it reads as zeroes from
        // here on, which are initialised bytes.
        let given = unsafe { rustix::mm::madvise(start.cast(), len, Advice::LinuxDontNeed) };
        given.map_err(|errno| LabError::GiveBack { len: Size(len), source: errno.into() })
    }

    /// Its addresses.
    pub fn addresses(&self) -> std::ops::Range<usize> {
        let start = self.start.as_ptr().addr();
        start..start + self.len
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        let (base, len) = self.mapping;
        // SAFETY: exactly the mapping made in `map`; every borrow of it has ended.
        let _ = unsafe { rustix::mm::munmap(base.as_ptr().cast(), len) };
    }
}

fn refused(len: usize) -> impl Fn(Errno) -> LabError {
    move |cause| LabError::Map { len: Size(len), source: cause.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_aligned_writable_and_zeroed() {
        for pages in [Pages::Unsaid, Pages::Base, Pages::Thp] {
            for make in [Anonymous::new, Anonymous::populated] {
                let mut memory = make(pages, 4 * MIB).unwrap();
                assert_eq!(memory.addresses().len(), 4 * MIB);
                assert!(memory.bytes().iter().all(|&byte| byte == 0), "{pages:?}");
                memory.bytes().fill(1);
            }
        }
        let thp = Anonymous::new(Pages::Thp, 4 * MIB).unwrap();
        assert!(thp.addresses().start.is_multiple_of(2 * MIB));
    }

    #[test]
    fn what_the_kernel_cannot_promise_is_an_error_with_the_size() {
        let error = Anonymous::new(Pages::Hugetlb2M, 1 << 50).unwrap_err();
        assert_eq!(error.to_string(), "cannot map 1024TiB to measure on");
    }
}
