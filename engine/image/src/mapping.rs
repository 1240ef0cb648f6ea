//! An image as the memory of one process.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut};

use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::private_file::PrivateFile;

use crate::error::ImageError;
use crate::image::Image;

/// An image, mapped privately. Reads return the bytes of the image, or the bytes that this process
/// has written there.
///
/// The first read of each 2 MiB on a huge page costs one fault. The first write to a base page
/// copies the page, and from then on the 2 MiB around it are mapped by base pages. If memory is
/// short at that moment, the kernel's OOM killer ends a process: no error can be returned.
pub struct PrivateMapping {
    mapped: PrivateFile,
    bytes: usize,
}

impl PrivateMapping {
    pub(crate) fn new(image: &Image) -> Result<Self, ImageError> {
        let bytes = image.bytes();
        let mapped = PrivateFile::new(image, bytes, HUGE_PAGE_BYTES);
        Ok(Self { mapped: mapped.map_err(ImageError::of("mmap"))?, bytes })
    }

    /// Returns the bytes as a raw slice. This is for languages whose programs share memory between
    /// threads by rules of their own.
    #[doc(hidden)]
    #[must_use]
    pub fn as_raw(&self) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.mapped.start().as_ptr(), self.bytes)
    }
}

impl Deref for PrivateMapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes are mapped as long as this value lives, at the beginning of a file that is at least as
        // long. Its seals (`Image::check`) keep every process from changing its bytes and its length; this process
        // writes only through `deref_mut`, which borrows this value alone.
        unsafe { std::slice::from_raw_parts(self.mapped.start().as_ptr(), self.bytes) }
    }
}

impl DerefMut for PrivateMapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as of `deref`: mapped, and no other process can change the bytes. The mapping is private, so writes
        // stay in this process, and the borrow of this value is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.mapped.start().as_ptr(), self.bytes) }
    }
}

impl fmt::Debug for PrivateMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateMapping").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
