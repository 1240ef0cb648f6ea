//! Images: sealed files of memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use hugekit_lease::LeaseError;
use hugekit_lease::protocol::Refusal;
use hugekit_sys::headroom;
use hugekit_sys::memfd;

use crate::builder::ImageBuilder;
use crate::clones::FileIdentity;
use crate::error::ImageError;
use crate::mapping::PrivateMapping;

/// Sealed memory on huge pages. No process can change it, and many processes map it privately: they
/// share its pages until they write to them. The kernel frees the memory when the last descriptor
/// and the last mapping are gone.
#[derive(Debug)]
pub struct Image {
    file: OwnedFd,
    bytes: usize,
    huge: u64,
}

impl Image {
    /// Loads a raw memory file, in the format that Firecracker and QEMU write.
    ///
    /// # Errors
    /// [`ImageError`] if the file cannot be opened or read, if it was changed during the load, or
    /// if memory is short.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ImageError> {
        let opened = crate::raw::open(path.as_ref());
        let file = opened.map_err(|source| ImageError::Read { nth: 0, at: 0, source })?;
        Self::builder("image").source(file).load()
    }

    /// Makes a builder for an image of several files, or of parts of a file. `/proc` shows the
    /// image as `/memfd:hugekit:NAME`.
    pub fn builder<'a>(name: &str) -> ImageBuilder<'a> {
        ImageBuilder::new(name)
    }

    /// Opens an image that the broker at `socket` holds. The broker must run as root or as this
    /// process's user.
    ///
    /// # Errors
    /// [`ImageError::Broker`] if the broker has no such image, or if the request failed.
    pub fn of_broker(socket: impl AsRef<Path>, name: &str) -> Result<Self, ImageError> {
        let unknown = LeaseError::Refused(Refusal::NoImage);
        let name = name.parse().map_err(|_| unknown)?;
        let (file, facts) = hugekit_lease::images::get(socket.as_ref(), name)?;
        Ok(Self { huge: facts.huge, ..Self::check(file)? })
    }

    /// Makes an image of a file that another process has loaded, after a check that no process can
    /// change the file.
    ///
    /// # Errors
    /// [`ImageError::NotSealed`] if a process could change the file.
    pub fn check(file: OwnedFd) -> Result<Self, ImageError> {
        headroom::check()?;
        let kernel = ImageError::of("fcntl(F_GET_SEALS)");
        if !memfd::has_sealed_contents(&file).map_err(kernel)? {
            return Err(ImageError::NotSealed);
        }
        let facts = memfd::facts(&file).map_err(ImageError::of("fstat"))?;
        let facts = facts.filter(|facts| facts.huge_page.is_none() && facts.len > 0);
        let bytes = facts.and_then(|facts| usize::try_from(facts.len).ok());
        Ok(Self { file, bytes: bytes.ok_or(ImageError::NotSealed)?, huge: 0 })
    }

    /// Makes an image of a file that is complete, and that is mapped nowhere for writing.
    pub(crate) fn seal(file: OwnedFd, huge: u64) -> Result<Self, ImageError> {
        memfd::seal_contents(&file).map_err(ImageError::of("fcntl(F_ADD_SEALS)"))?;
        let image = Self::check(file)?;
        Ok(Self { file: image.open_again()?, huge, ..image })
    }

    /// Opens the image's file again for reading. A process that gets this descriptor shares no file
    /// position with this process.
    ///
    /// # Errors
    /// [`ImageError::Kernel`] if no descriptor is left, or if the file's mode forbids reading.
    #[doc(hidden)]
    pub fn open_again(&self) -> Result<OwnedFd, ImageError> {
        memfd::open_for_reading(&self.file).map_err(ImageError::of("open"))
    }

    /// Returns the length of the image in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of bytes that were on huge pages when the image was loaded; 0 if the
    /// image was made by [`check`](Self::check).
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        self.huge
    }

    /// Returns the number of bytes that are populated. The other bytes are zero.
    ///
    /// # Errors
    /// [`ImageError::Kernel`] if the kernel refuses the call.
    pub fn present(&self) -> Result<u64, ImageError> {
        headroom::check()?;
        let facts = memfd::facts(&self.file).map_err(ImageError::of("fstat"))?;
        Ok(facts.map_or(0, |facts| facts.present))
    }

    /// Returns the numbers by which `/proc/PID/maps` shows the image.
    ///
    /// # Errors
    /// [`ImageError::Kernel`] if the kernel refuses the call.
    #[doc(hidden)]
    pub fn identity(&self) -> Result<FileIdentity, ImageError> {
        FileIdentity::of(&self.file)
    }

    /// Maps the image privately, at a multiple of 2 MiB. The mapping stays valid after the image is
    /// dropped.
    ///
    /// # Errors
    /// [`ImageError::Kernel`] if the process has no addresses or no mappings left, and
    /// [`ImageError::Heap`] if the heap has no room.
    pub fn map(&self) -> Result<PrivateMapping, ImageError> {
        headroom::check()?;
        PrivateMapping::new(self)
    }

    /// Returns the file of the image, opened for reading, for another program.
    #[must_use]
    pub fn into_file(self) -> OwnedFd {
        self.file
    }
}

impl AsFd for Image {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
