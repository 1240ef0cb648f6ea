//! Why a VM was not packed, or a layout is refused.

use std::io;
use std::path::PathBuf;

use hugekit_delta::DeltaError;
use hugekit_machine::size::Size;
use hugekit_sys::{ErrorKind, Remedy};

use super::digest::Digest;
use super::frames::FrameError;
use crate::pager::SourceError;

/// The reason why a VM cannot be packed, or a layout cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OciError {
    /// The layout, or a file of it, cannot be opened or read.
    #[error("{path} of the layout cannot be read", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system. `FilesystemLoop` and `NotADirectory` say that it is a symbolic link.
        source: io::Error,
    },
    /// The layout has another version of OCI.
    #[error("the layout has version {version}, this hugekit reads version 1")]
    LayoutVersion {
        /// Its version.
        version: String,
    },
    /// A document is not valid.
    #[error("the {document} of the layout is not valid")]
    Document {
        /// Its name.
        document: &'static str,
        /// The place.
        source: serde_json::Error,
    },
    /// No image, or none that is the only one, has this tag.
    #[error("{}{}", no_image(tag.as_deref(), tags, *images), Remedy(self.remedy()))]
    Tag {
        /// The tag that was asked for.
        tag: Option<String>,
        /// Tags of the layout.
        tags: Vec<String>,
        /// Images of the layout.
        images: usize,
    },
    /// The image is something else than a packed VM.
    #[error("the image is no packed VM: its media type is {media_type}{}", Remedy(self.remedy()))]
    NoVm {
        /// The type of the manifest or of the configuration.
        media_type: String,
    },
    /// A newer hugekit has packed it.
    #[error(
        "the packed VM has format version {found}, this hugekit reads version {known}: update hugekit",
        known = super::document::FORMAT_VERSION
    )]
    Newer {
        /// Its version.
        found: u32,
    },
    /// A layer is missing, stands at a wrong place, or has an unknown type.
    #[error(
        "layer {number} of the image has the media type {}: {} expected",
        found.as_deref().unwrap_or("none, because there are no more layers"),
        expected.unwrap_or("no further layer")
    )]
    Layer {
        /// Its place, from 0 on.
        number: usize,
        /// Its media type.
        found: Option<String>,
        /// The media type that fits there.
        expected: Option<&'static str>,
    },
    /// A blob has more or fewer bytes than the document that names it says, or than is allowed.
    #[error("blob {digest} has {found} bytes: {expected} expected")]
    BlobSize {
        /// The blob.
        digest: Digest,
        /// Bytes that it has.
        found: u64,
        /// Bytes that it should have.
        expected: String,
    },
    /// A blob has other bytes than its name says.
    #[error("blob {digest} has other bytes: their digest is {found}{}", Remedy(self.remedy()))]
    BlobDigest {
        /// The name of the blob.
        digest: Digest,
        /// The digest of its bytes.
        found: Digest,
    },
    /// A table of frames, or a frame, is refused.
    #[error("the frames of blob {digest} cannot be used{}", Remedy(self.remedy()))]
    Frames {
        /// The blob with the frames.
        digest: Digest,
        /// The reason.
        source: FrameError,
    },
    /// The sizes of the configuration contradict each other.
    #[error(
        "the packed VM has {bytes} bytes of memory in chunks of {chunk} bytes, and regions of {}: at most 1 TiB in \
         chunks of 65536 bytes, and regions of as many bytes, expected",
        regions.map_or("more than 2^64".to_owned(), |sum| sum.to_string())
    )]
    Memory {
        /// All memory.
        bytes: u64,
        /// Bytes of a chunk.
        chunk: u64,
        /// The sum of the regions; `None` if it is too large for a number.
        regions: Option<u64>,
    },
    /// The frames are of another file than the configuration says.
    #[error("the frames of blob {digest} are of {found} bytes of memory: {expected} expected")]
    OtherMemory {
        /// The blob with the frames.
        digest: Digest,
        /// Bytes by the table of frames.
        found: u64,
        /// Bytes by the configuration.
        expected: u64,
    },
    /// A delta is damaged, or does not follow on the state before it.
    #[error("delta {number} does not follow on the memory before it{}", Remedy(self.remedy()))]
    Delta {
        /// Its place among the deltas, from 1 on.
        number: usize,
        /// The reason.
        source: DeltaError,
    },
    /// A delta has more changes than blocks.
    #[error("delta {number} has more than {most} changes, which is the number of its blocks")]
    Changes {
        /// Its place among the deltas, from 1 on.
        number: usize,
        /// Blocks of the memory.
        most: u64,
    },
    /// A file that is to be packed cannot be used.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A file that is to be packed cannot be read.
    #[error("{path} cannot be read", path = path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The working set is of other memory.
    #[error("{path} is the working set of other memory{}", Remedy(self.remedy()), path = path.display())]
    WorkingSet {
        /// The file.
        path: PathBuf,
    },
    /// The output exists.
    #[error("{path} exists already{}", Remedy(self.remedy()), path = path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// There is no room for the memory.
    #[error(
        "no space for the memory: {} needed, {} free{}",
        size(*needed), size(*free), Remedy(self.remedy())
    )]
    Space {
        /// Bytes that are not zero.
        needed: u64,
        /// Bytes that the file system has.
        free: u64,
    },
    /// The output cannot be written.
    #[error("cannot write {path}", path = path.display())]
    Output {
        /// The folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A thread cannot be started, or has no memory.
    #[error("no thread can be started")]
    Thread(#[source] io::Error),
}

fn size(bytes: u64) -> Size {
    Size(usize::try_from(bytes).unwrap_or(usize::MAX))
}

fn no_image(tag: Option<&str>, tags: &[String], images: usize) -> String {
    let tags = if tags.is_empty() { "none".to_owned() } else { tags.join(", ") };
    match tag {
        Some(tag) => {
            format!("no image, or more than one, has the tag {tag}: the layout has {tags}")
        }
        None => format!("the layout has {images} images, with these tags: {tags}"),
    }
}

impl OciError {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Read { source, .. }
            | Self::Input { source, .. }
            | Self::Output { source, .. }
            | Self::Thread(source) => source.kind().into(),
            Self::Space { .. } => ErrorKind::NoMemory,
            Self::Source(_) => ErrorKind::Kernel,
            _ => ErrorKind::Invalid,
        }
    }

    /// Returns a step for the user, if there is one.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Tag { .. } => Some("name one image of the layout as LAYOUT:TAG"),
            Self::NoVm { .. } => Some("name a layout that hugekit image pack has made"),
            Self::BlobDigest { .. } | Self::Frames { .. } => {
                Some("copy the image again from where it came")
            }
            Self::Delta { .. } => Some(
                "name the folders of checkpoints of one VM, the full one first, as hugekit checkpoint --delta does",
            ),
            Self::WorkingSet { .. } => {
                Some("restore the VM once by hugekit pager, which records the set")
            }
            Self::Exists { .. } => Some("name a folder that does not exist"),
            Self::Space { .. } => {
                Some("free space, use another file system, or serve the VM by hugekit pager --oci")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use hugekit_testing::remedies::prints_remedy_once;

    use super::*;

    #[test]
    fn chain_of_a_refused_layout_has_its_remedy_once() {
        let digest = Digest::of(b"");
        for error in [
            OciError::Tag { tag: None, tags: Vec::new(), images: 2 },
            OciError::NoVm { media_type: "text/plain".to_owned() },
            OciError::BlobDigest { digest, found: digest },
            OciError::Frames { digest, source: FrameError::NoTable },
            OciError::Delta { number: 1, source: DeltaError::NoDelta },
            OciError::WorkingSet { path: "set".into() },
            OciError::Exists { path: "layout".into() },
            OciError::Space { needed: 2 << 20, free: 1 << 20 },
        ] {
            let remedy = error.remedy();
            assert!(remedy.is_some(), "{error}");
            prints_remedy_once(error, remedy);
        }
    }
}
