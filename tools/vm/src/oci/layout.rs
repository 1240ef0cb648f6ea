//! A layout on disk, opened by descriptors. No link in it is followed, and nothing but regular files of the named size is
//! read.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use hugekit_sys::input;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::digest::{Digest, Hashed};
use super::document::{
    Descriptor, FramedLayer, ImageIndex, LONGEST, Layers, Manifest, VmConfig, check_layout,
};
use super::error::OciError;
use super::frames::{Chunks, FrameTable};
use crate::checkpoint::previous::LONGEST_STATE;

/// The folder of the blobs.
const BLOBS: [&str; 2] = ["blobs", "sha256"];

/// The path of a blob in a layout.
pub(crate) fn blob_name(digest: &Digest) -> String {
    format!("{}/{}/{}", BLOBS[0], BLOBS[1], digest.file_name())
}

/// A folder and an image in it, as skopeo names them: `PATH` or `PATH:TAG`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) path: PathBuf,
    pub(crate) tag: Option<String>,
}

impl Reference {
    /// Splits a tag from a path, unless the whole text is a folder that exists.
    pub(crate) fn parse(text: &Path) -> Self {
        let whole = || Self { path: text.to_owned(), tag: None };
        if text.is_dir() {
            return whole();
        }
        let split = text.to_str().and_then(|text| text.rsplit_once(':'));
        match split {
            Some((path, tag)) if !path.is_empty() && !tag.is_empty() && !tag.contains('/') => {
                Self { path: path.into(), tag: Some(tag.to_owned()) }
            }
            _ => whole(),
        }
    }

    /// The reference with the whole path, by which a later process finds the same image.
    pub(crate) fn absolute(&self) -> io::Result<PathBuf> {
        let mut path = self.path.canonicalize()?.into_os_string();
        if let Some(tag) = &self.tag {
            path.push(":");
            path.push(tag);
        }
        Ok(path.into())
    }
}

/// The folder of a layout.
#[derive(Debug)]
pub(crate) struct LayoutFolder {
    path: PathBuf,
    folder: OwnedFd,
    blobs: OwnedFd,
}

const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

impl LayoutFolder {
    /// The user has named the folder, so links to it are followed.
    pub(crate) fn open(path: &Path) -> Result<Self, OciError> {
        let refused = |path: &Path, errno: rustix::io::Errno| OciError::Read {
            path: path.to_owned(),
            source: errno.into(),
        };
        let open = |within, name: &Path, flags| openat(within, name, FOLDER | flags, Mode::empty());
        let absolute = std::fs::canonicalize(path);
        let absolute = absolute.map_err(|source| OciError::Read { path: path.into(), source })?;
        let path = absolute.as_path();
        let folder = openat(CWD, path, FOLDER, Mode::empty());
        let folder = folder.map_err(|errno| refused(path, errno))?;
        let mut within = path.join(BLOBS[0]);
        let above = open(&folder, BLOBS[0].as_ref(), OFlags::NOFOLLOW);
        let above = above.map_err(|errno| refused(&within, errno))?;
        within.push(BLOBS[1]);
        let blobs = open(&above, BLOBS[1].as_ref(), OFlags::NOFOLLOW);
        let blobs = blobs.map_err(|errno| refused(&within, errno))?;
        Ok(Self { path: path.to_owned(), folder, blobs })
    }

    /// The path of a blob, for people and other programs.
    pub(crate) fn path_of(&self, digest: &Digest) -> PathBuf {
        self.path.join(blob_name(digest))
    }

    fn document(&self, name: &str) -> Result<Vec<u8>, OciError> {
        let read = open_file(&self.folder, name).and_then(|file| input::read(&file, LONGEST));
        read.map_err(|source| OciError::Read { path: self.path.join(name), source })
    }

    /// Opens a blob that has the size of its descriptor.
    pub(crate) fn blob(&self, of: &Descriptor) -> Result<File, OciError> {
        let found = open_file(&self.blobs, &of.digest.file_name())
            .and_then(|file| Ok((file.metadata()?.len(), file)));
        let refused = |source| OciError::Read { path: self.path_of(&of.digest), source };
        let (found, file) = found.map_err(refused)?;
        if found == of.size {
            return Ok(file);
        }
        Err(OciError::BlobSize { digest: of.digest, found, expected: of.size.to_string() })
    }

    /// Reads a blob of at most `most` bytes, and checks all of them.
    pub(crate) fn read(&self, of: &Descriptor, most: u64) -> Result<Vec<u8>, OciError> {
        if of.size > most {
            let expected = format!("at most {most}");
            return Err(OciError::BlobSize { digest: of.digest, found: of.size, expected });
        }
        let refused = |source| OciError::Read { path: self.path_of(&of.digest), source };
        let bytes = input::read(&self.blob(of)?, most).map_err(refused)?;
        check_digest(of.digest, Digest::of(&bytes))?;
        Ok(bytes)
    }

    pub(crate) fn state(&self, of: &Descriptor) -> Result<Vec<u8>, OciError> {
        self.read(of, LONGEST_STATE)
    }

    /// The image of a tag: its layers, and its configuration.
    pub(crate) fn image(&self, tag: Option<&str>) -> Result<(Layers, VmConfig), OciError> {
        check_layout(&self.document("oci-layout")?)?;
        let index = ImageIndex::of_bytes(&self.document("index.json")?)?;
        let manifest = Manifest::of_bytes(&self.read(index.image(tag)?, LONGEST)?)?;
        let layers = manifest.into_layers()?;
        let config = VmConfig::of_bytes(&self.read(&layers.config, LONGEST)?)?;
        Ok((layers, config))
    }

    /// Reads the table of frames of a layer, of at most `most` frames.
    pub(crate) fn table(
        &self,
        layer: &FramedLayer,
        chunks: Chunks,
        most: u64,
    ) -> Result<FrameTable, OciError> {
        let mut compressed = Hashed::new(BufReader::new(self.blob(&layer.index)?));
        let table = FrameTable::read(&mut compressed, layer.frames.size, chunks, most);
        let digest = layer.frames.digest;
        let table = table.map_err(|source| OciError::Frames { digest, source })?;
        check_digest(layer.index.digest, compressed.finish())?;
        Ok(table)
    }

    /// Reads all of a blob, and compares its digest.
    pub(crate) fn verify(&self, of: &Descriptor) -> Result<(), OciError> {
        let refused = |source| OciError::Read { path: self.path_of(&of.digest), source };
        check_digest(of.digest, Digest::of_file(&self.blob(of)?).map_err(refused)?)
    }
}

fn check_digest(digest: Digest, found: Digest) -> Result<(), OciError> {
    if digest == found { Ok(()) } else { Err(OciError::BlobDigest { digest, found }) }
}

/// Opens a regular file, not through a link.
fn open_file(folder: &OwnedFd, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(openat(folder, name, flags | OFlags::CLOEXEC, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_follows_a_path_that_is_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let with_colon = folder.path().join("a:b");
        let tagged = |text: &Path| Reference::parse(text).tag;
        assert_eq!(tagged(&with_colon), Some("b".to_owned()));
        assert_eq!(Reference::parse(&with_colon).path, folder.path().join("a"));
        std::fs::create_dir(&with_colon).unwrap();
        assert_eq!(Reference::parse(&with_colon), Reference { path: with_colon, tag: None });
        for none in ["layout", "a:b/c", ":tag", "layout:"] {
            assert_eq!(tagged(none.as_ref()), None, "{none}");
        }
    }
}
