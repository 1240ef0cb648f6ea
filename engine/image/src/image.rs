//! An image: a sealed file of memory.

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

/// Memory that no process can change any more, and that many processes map privately: each has the same pages until it
/// writes to them. The memory is the kernel's again when the last descriptor and mapping is gone.
#[derive(Debug)]
pub struct Image {
    file: OwnedFd,
    bytes: usize,
    huge: u64,
}

impl Image {
    /// Loads a raw memory file, as Firecracker and QEMU write it.
    ///
    /// # Errors
    /// [`ImageError`]: the file cannot be opened or read, or was changed meanwhile, or memory is short.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ImageError> {
        let opened = crate::raw::open(path.as_ref());
        let file = opened.map_err(|source| ImageError::Read { nth: 0, at: 0, source })?;
        Self::builder("image").source(file).load()
    }

    /// Returns an image of several files, or of parts of one. `/proc` shows it as
    /// `/memfd:hugekit:NAME`.
    pub fn builder<'a>(name: &str) -> ImageBuilder<'a> {
        ImageBuilder::new(name)
    }

    /// Returns an image that the broker at `socket` holds: `hugekit broker`, which runs as root or
    /// as this process's user.
    ///
    /// # Errors
    /// [`ImageError::Broker`].
    pub fn of_broker(socket: impl AsRef<Path>, name: &str) -> Result<Self, ImageError> {
        let unknown = LeaseError::Refused(Refusal::NoImage);
        let name = name.parse().map_err(|_| unknown)?;
        let (file, facts) = hugekit_lease::images::get(socket.as_ref(), name)?;
        Ok(Self { huge: facts.huge, ..Self::check(file)? })
    }

    /// Returns an image of a file that another process has loaded, if no process can change it any
    /// more.
    ///
    /// # Errors
    /// [`ImageError::NotSealed`].
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

    /// Returns the image's file, opened again for reading: another process that gets it shares no
    /// position with this one.
    ///
    /// # Errors
    /// No descriptor is left, or the file's mode forbids it.
    #[doc(hidden)]
    pub fn open_again(&self) -> Result<OwnedFd, ImageError> {
        memfd::open_for_reading(&self.file).map_err(ImageError::of("open"))
    }

    /// Returns the number of bytes of it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of bytes that were on huge pages when it was loaded; 0 of a file that was
    /// [checked](Self::check).
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        self.huge
    }

    /// Returns the number of bytes of it that the kernel has put pages behind: the others are zero.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn present(&self) -> Result<u64, ImageError> {
        headroom::check()?;
        let facts = memfd::facts(&self.file).map_err(ImageError::of("fstat"))?;
        Ok(facts.map_or(0, |facts| facts.present))
    }

    /// Returns the numbers by which `/proc/PID/maps` shows it.
    ///
    /// # Errors
    /// The kernel does not say.
    #[doc(hidden)]
    pub fn identity(&self) -> Result<FileIdentity, ImageError> {
        FileIdentity::of(&self.file)
    }

    /// Maps it privately, at a multiple of 2 MiB. A mapping goes on without the image.
    ///
    /// # Errors
    /// Addresses or mappings are short.
    pub fn map(&self) -> Result<PrivateMapping, ImageError> {
        headroom::check()?;
        PrivateMapping::new(self)
    }

    /// Returns the file, opened for reading, to be passed on to another program.
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
